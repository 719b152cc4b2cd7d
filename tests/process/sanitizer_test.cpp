// What compute-sanitizer prints, and a stand-in for it.
#include "process/sanitizer.hpp"

#include <cstdlib>

#include "testing.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;
using testing_support::TemporaryFolder;

TEST(Sanitizer, PassesWithItsExitCode) {
  const Sanitized one =
      read_sanitizer("memcheck", "========= COMPUTE-SANITIZER\nok\n========= ERROR SUMMARY: 0 errors\n", 0);
  EXPECT_TRUE(one.passed);
  EXPECT_EQ(one.reason, "");
}

TEST(Sanitizer, NamesTheFirstFinding) {
  const Sanitized one =
      read_sanitizer("memcheck",
                     "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n"
                     "=========     at heed_forward+0x90\n========= ERROR SUMMARY: 1 error\n",
                     99);
  EXPECT_FALSE(one.passed);
  EXPECT_EQ(one.reason, "Invalid __global__ read of size 4 bytes");
  EXPECT_EQ(read_sanitizer("memcheck", "========= COMPUTE-SANITIZER\n", 99).reason,
            "it found something and does not say what");
}

// A variant that the gate refuses is no finding of the sanitizer, and no pass.
TEST(Sanitizer, SaysWhatEndedOtherwise) {
  const Sanitized one = read_sanitizer(
      "synccheck", "========= COMPUTE-SANITIZER\nheed: no such variant\n========= ERROR SUMMARY: 0 errors\n", 2);
  EXPECT_FALSE(one.passed);
  EXPECT_THAT(one.reason, HasSubstr("it ended with exit code 2"));
}

class StandIn : public ::testing::Test {
 protected:
  void SetUp() override { path_ = std::getenv("PATH"); }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }
  void install(const std::string& script) {
    const std::string file = folder_.file("compute-sanitizer");
    write_file_atomically(file, "#!/bin/sh\n" + script, ErrorCode::internal);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(StandIn, EveryToolRunsTheCommand) {
  install("[ $2 = racecheck ] && { echo '========= Race reported'; exit 99; }\necho \"$@\" >> " +
          folder_.file("asked") + "\n");
  const std::vector<Sanitized> all = sanitize({"heed", "verify", "x"}, 20);
  ASSERT_EQ(all.size(), 4U);
  for (const Sanitized& one : all) EXPECT_EQ(one.passed, one.tool != "racecheck") << one.reason;
  EXPECT_EQ(all[1].reason, "Race reported");
  EXPECT_THAT(read_file(folder_.file("asked"), ErrorCode::internal),
              HasSubstr("--tool memcheck --target-processes all --error-exitcode 99 --print-limit 20 heed verify x\n"));
}

TEST_F(StandIn, AToolThatHangsIsGivenUp) {
  install("sleep 30\n");
  for (const Sanitized& one : sanitize({"heed"}, 0.2)) EXPECT_THAT(one.reason, HasSubstr("did not end within"));
}

TEST_F(StandIn, NoneIsASentence) {
  if (std::filesystem::exists("/usr/local/cuda/bin/compute-sanitizer")) GTEST_SKIP() << "there is one";
  ::setenv("PATH", folder_.path().c_str(), 1);
  testing_support::expect_error(ErrorCode::unsupported, "comes with the CUDA toolkit",
                                [] { (void)sanitize({"heed"}, 20); });
}

}  // namespace
}  // namespace heed
