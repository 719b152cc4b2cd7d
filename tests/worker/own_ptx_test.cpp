// The worker's own kernels, as the assembler sees them: no GPU is needed.
#include "worker/own_ptx.hpp"

#include <cstdlib>
#include <regex>

#include "testing.hpp"

namespace heed::worker {
namespace {

using testing_support::TemporaryFolder;

// ptxas's report of a text, or nothing where there is no ptxas.
std::string assembled(const std::string& ptx, const char* arch) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("a.ptx")) << ptx;
  const std::string command = "ptxas -v -arch=" + std::string(arch) + " -o " + folder.file("a.cubin") + " " +
                              folder.file("a.ptx") + " > " + folder.file("log") + " 2>&1";
  const int status = std::system(command.c_str());
  const std::string log = read_file(folder.file("log"), ErrorCode::internal);
  if (log.find("not found") != std::string::npos) return {};
  EXPECT_EQ(status, 0) << log;
  return log;
}

TEST(OwnPtx, AreAssembledForEveryGpu) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    const std::string log = assembled(own_kernels_ptx(), arch);
    if (log.empty()) GTEST_SKIP() << "no ptxas on this machine";
    // All registers of a multiprocessor, for 256 threads: 240 and more each, and none spilled.
    const std::regex registers("heed_poison_registers[^]*?(\\d+) bytes spill stores[^]*?Used (\\d+) registers");
    std::smatch match;
    ASSERT_TRUE(std::regex_search(log, match, registers)) << log;
    EXPECT_EQ(match[1], "0");
    EXPECT_GT(std::stoi(match[2]), 240) << log;
  }
}

TEST(OwnPtx, LocalMemoryIsPoisonedInAFrameOfTheSameSize) {
  for (const int bytes : {4, 24, 1000}) {
    const std::string log = assembled(poison_local_ptx(bytes), "sm_90a");
    if (log.empty()) GTEST_SKIP() << "no ptxas on this machine";
    const std::regex frame("(\\d+) bytes stack frame");
    std::smatch match;
    ASSERT_TRUE(std::regex_search(log, match, frame)) << log;
    EXPECT_GE(std::stoi(match[1]), bytes);
    EXPECT_LE(std::stoi(match[1]), bytes + 16);
  }
}

}  // namespace
}  // namespace heed::worker
