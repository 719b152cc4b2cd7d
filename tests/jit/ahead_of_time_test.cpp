// What nvcc made of tuned/variants.txt during the build: every variant for every architecture, without spills.
#include "folders.hpp"
#include "jit/elf.hpp"
#include "jit/toolchain.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

TEST(AheadOfTime, CubinsHaveNoSpillsAndAnEntry) {
  const std::filesystem::path folder = testing_support::kAheadOfTimeFolder;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "nvcc was not found when the build was configured";
  int cubins = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".cubin") continue;
    ++cubins;
    SCOPED_TRACE(entry.path().filename().string());
    const Resources r = parse_ptxas_report(read_file(entry.path().string() + ".log", ErrorCode::internal));
    EXPECT_GT(r.registers, 30);
    EXPECT_LE(r.registers, 255);
    EXPECT_EQ(r.spill_store_bytes, 0);
    EXPECT_EQ(r.spill_load_bytes, 0);
    EXPECT_EQ(r.stack_bytes, 0);
    const std::string bytes = read_file(entry.path(), ErrorCode::internal);
    EXPECT_EQ(contract_violation_in_cubin(parse_elf(bytes), "heed_forward"), "");
  }
  EXPECT_GE(cubins, 36);
}

}  // namespace
}  // namespace heed::jit
