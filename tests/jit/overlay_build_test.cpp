// Edited sources reach the compiler in place of those that the binary carries, and the cache knows them apart.
#include <fstream>

#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "jit/builders.hpp"
#include "requirements.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

using testing_support::TemporaryFolder;

BuildRequest edited(const std::string& line) {
  const Workload workload = parse_workload("b1h2l64d64:fp32");
  Variant variant = parse_variant("fwd_cpu:unit=vector", workload, cpu_facts());
  if (!line.empty()) {
    std::string text(compile::device_file("cpu/rows.hpp"));
    const std::string sum = "return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");";
    const std::size_t at = text.find(sum);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, sum.size(), line);
    variant.overlay = std::make_shared<const Overlay>(Overlay{{{"cpu/rows.hpp", text}}});
  }
  return request_for(variant, workload, cpu_facts());
}

TEST(OverlayBuild, MakesAnotherProgram) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome carried = builder.build(edited(""));
  const BuildOutcome other = builder.build(edited("return 2.0F / sum;"));
  const BuildOutcome same =
      builder.build(edited("/* a comment */ return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");"));
  ASSERT_TRUE(carried.artifact && other.artifact && same.artifact) << carried.log << other.log << same.log;
  EXPECT_NE(carried.artifact->machine_code, other.artifact->machine_code);
  EXPECT_EQ(carried.artifact->machine_code, same.artifact->machine_code);
  EXPECT_NE(carried.artifact->path, same.artifact->path);
  EXPECT_TRUE(builder.build(edited("return 2.0F / sum;")).artifact->from_cache);
}

// The compiler's words name the file as edits do, and lines of it.
TEST(OverlayBuild, AnErrorNamesTheEditedFile) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome outcome = builder.build(edited("return no_such_name;"));
  EXPECT_FALSE(outcome.artifact);
  EXPECT_THAT(outcome.log, ::testing::HasSubstr("cpu/rows.hpp:65:"));
  EXPECT_THAT(outcome.log, ::testing::HasSubstr("no_such_name"));
  EXPECT_EQ(outcome.log.find(folder.path().string() + "/.build"), std::string::npos) << outcome.log;
}

TEST(OverlayBuild, NvrtcTakesEditedSources) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const Workload workload = parse_workload("b1h2l64d64:fp16");
  const DeviceFacts device = gpu_limits("sm_80");
  Variant variant = parse_variant("fwd_sm80", workload, device);
  const BuildOutcome carried = builder.build(request_for(variant, workload, device));
  std::string text(compile::device_file("kernels/attention/exp2.cuh"));
  const std::string call = "return ptx::ex2_approx_ftz(x);";
  text.replace(text.find(call), call.size(), "return ptx::ex2_approx_ftz(x) + 1.0F;");
  variant.overlay = std::make_shared<const Overlay>(Overlay{{{"kernels/attention/exp2.cuh", text}}});
  const BuildOutcome other = builder.build(request_for(variant, workload, device));
  ASSERT_TRUE(carried.artifact && other.artifact) << carried.log << other.log;
  EXPECT_EQ(other.artifact->violation, "");
  EXPECT_NE(carried.artifact->machine_code, other.artifact->machine_code);
}

}  // namespace
}  // namespace heed::jit
