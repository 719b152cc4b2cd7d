// The rule of HEED_REQUIRE itself: the same lack skips where nothing is required and fails where it is.
#include "requirements.hpp"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "process/process.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kLimit_s = 100;

// Started by the tests below alone, as a program of its own.
TEST(DISABLED_Lacking, AGpu) {
  HEED_LACKS("gpu", "a reason");
}
TEST(DISABLED_Lacking, Nvrtc) {
  HEED_LACKS("nvrtc", "a reason");
}

ProcessResult lacking(const std::string& test, const std::string& required) {
  return run_process({"env", "-u", "GTEST_TOTAL_SHARDS", "-u", "GTEST_SHARD_INDEX", "HEED_REQUIRE=" + required,
                      self_executable(), "--gtest_also_run_disabled_tests", "--gtest_filter=DISABLED_Lacking." + test},
                     {}, kLimit_s);
}

TEST(Requirements, WhatIsLackedSkipsUnlessItIsRequired) {
  for (const char* required : {"", "nvrtc"}) {
    const ProcessResult result = lacking("AGpu", required);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("[  SKIPPED ]"));
    EXPECT_THAT(result.output, HasSubstr("no gpu: a reason"));
  }
}

TEST(Requirements, WhatIsRequiredFailsAndSaysWhatIsLacked) {
  for (const auto& [test, required] : std::vector<std::pair<std::string, std::string>>{
           {"AGpu", "gpu"}, {"AGpu", "nvrtc, gpu"}, {"Nvrtc", "gpu,nvrtc"}}) {
    const ProcessResult result = lacking(test, required);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("this machine lacks it: a reason"));
    EXPECT_THAT(result.output, Not(HasSubstr("[  SKIPPED ]")));
  }
}

TEST(Requirements, AnUnknownNameIsRefused) {
  const ProcessResult result = lacking("AGpu", "gpu,nvtrc");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("HEED_REQUIRE names nvtrc; it takes gpu and nvrtc"));
}

}  // namespace
}  // namespace heed
