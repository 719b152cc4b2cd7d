// Edited kernels on the emulated GPU as a step of a trial: right ones pass, broken ones are refused with a
// sentence, and what the emulator cannot run is told apart from both.
#include "emulator/emulate.hpp"

#include <memory>
#include <regex>

#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "emulator/program.hpp"
#include "emulator/workloads.hpp"
#include "source/editable.hpp"
#include "testing.hpp"
#include "variant/overlay.hpp"

namespace heed::emulator {
namespace {

using ::testing::HasSubstr;

// Small enough for all of its lengths to be launched as they are.
constexpr const char* kWorkload = "b1h2hkv1l70k120d64:fp16:causal_top_left";
constexpr const char* kAmpere = "fwd_sm80";

class Emulate : public ::testing::Test {
 protected:
  // A test is a process: the emulator's own part, four seconds of a compiler, stays in their cache.
  static void SetUpTestSuite() {
    jit::BuilderOptions options;
    options.cache_folder = testing_support::shared_cache();
    options.jobs = 1;
    builder_ = new jit::Builder(options);
  }
  static void TearDownTestSuite() { delete builder_; }

  static DeviceFacts device() { return gpu_limits("sm_90a"); }
  static Variant variant_of(const std::string& text, const std::string& workload = kWorkload) {
    return parse_variant(text, parse_workload(workload), device());
  }
  static Report emulated(const Variant& variant, const Options& options = {}, const std::string& workload = kWorkload) {
    return emulate(variant, parse_workload(workload), device(), *builder_, options);
  }
  static Variant with(const Overlay& edits) {
    Variant variant = variant_of(kAmpere);
    variant.overlay = std::make_shared<const Overlay>(edits);
    return variant;
  }
  /// With other parameters for the kernel, or more before it runs.
  static Variant with_entry(const std::string& before, const std::string& params = "params") {
    std::string entry = variant_of(kAmpere).family->entry();
    const std::regex call(R"(\n( *heed::sm80::.*)\(params, shared\))");
    EXPECT_TRUE(std::regex_search(entry, call)) << entry;
    entry = std::regex_replace(entry, call, "\n  " + before + "\n$1(" + params + ", shared)");
    return with({{{std::string(Overlay::kEntry), entry}}});
  }
  /// With every place of its family's sources changed that a pattern finds.
  static Variant with_sources(const std::regex& pattern, const std::string& text) {
    Overlay edits;
    for (const auto& [path, source] : source::editable(*variant_of(kAmpere).family))
      if (!path.starts_with("kernels/ptx/") && std::regex_search(source, pattern))
        edits.files[path] = std::regex_replace(source, pattern, text);
    EXPECT_FALSE(edits.files.empty());
    return with(edits);
  }

  static jit::Builder* builder_;
};
jit::Builder* Emulate::builder_ = nullptr;

TEST_F(Emulate, AFamilyPasses) {
  const Report report = emulated(variant_of(kAmpere));
  EXPECT_EQ(report.outcome, Outcome::passed) << report.check << ": " << report.reason;
  EXPECT_EQ(report.launches, 2 * static_cast<int>(report.workloads.size()));
  EXPECT_GE(report.workloads.size(), 2U);
  EXPECT_EQ(report.digest, emulator_digest());
}

TEST_F(Emulate, AnHonestEditPasses) {
  const Report report = emulated(with_entry("const int unused = 1; (void)unused;"));
  EXPECT_EQ(report.outcome, Outcome::passed) << report.check << ": " << report.reason;
}

// A mask that lets each row see one key more.
TEST_F(Emulate, AWrongMaskIsRefused) {
  const Report report =
      emulated(with_entry("heed::Params<kProblem> shifted = params; shifted.right_offset += 1;", "shifted"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::wrong);
  EXPECT_THAT(report.check, HasSubstr("emulated b1h2hkv1l37k83d64:fp16:causal_top_left"));
  EXPECT_FALSE(report.reason.empty());
}

// A GPU nearly always has the copy by then.
TEST_F(Emulate, AMissingWaitIsRefused) {
  const Report report = emulated(with_sources(std::regex(R"(ptx::cp_async_wait_(group<[^;]*>|all)\(\);)"), ";"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_NE(report.verdict, Verdict::ok);
  EXPECT_FALSE(report.reason.empty());
}

TEST_F(Emulate, AStorePastSharedMemoryIsRefused) {
  const Workload small = parse_workload("b1h1l37k83d64:fp16:causal_top_left");
  const std::int64_t bytes = variant_of(kAmpere).plan(small, device()).shared_bytes;
  const Report report = emulated(with_entry("if (threadIdx.x == 5) shared[" + std::to_string(bytes + 3) + "] = 1;"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::crashed);
  EXPECT_EQ(report.reason, "the emulated kernel writes past its shared memory: offset " + std::to_string(bytes + 3));
}

TEST_F(Emulate, AStoreBesideOutputsIsRefused) {
  const Report report = emulated(with_entry("static_cast<long long*>(params.o)[-1] = 0;"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::cheating);
  EXPECT_EQ(report.finding, Finding::wrote_outside);
}

TEST_F(Emulate, ThreadsThatLeaveTheirWarpAreRefused) {
  const Report report = emulated(with_entry("if (threadIdx.x == 3) return;"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::crashed);
  EXPECT_THAT(report.reason, HasSubstr("the emulated kernel is stuck"));
}

TEST_F(Emulate, AnAddressOutsideAllMemoryIsRefused) {
  const Report report = emulated(with_entry("*reinterpret_cast<volatile int*>(16) = 1;"));
  EXPECT_EQ(report.verdict, Verdict::crashed);
  EXPECT_THAT(report.reason, HasSubstr("signal 11"));
}

TEST_F(Emulate, ALoopWithoutEndIsRefused) {
  Options options;
  options.launch_limit_s = 1;
  const Report report = emulated(with_entry("for (volatile int i = 1; i != 0;) {}"), options);
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::timed_out);
  EXPECT_EQ(report.reason, "the emulated launch did not end within 1 s");
}

TEST_F(Emulate, MuchMemoryIsRefused) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "processes of a sanitized program have no limit of memory (process/confinement.cpp)";
#endif
  const Report report = emulated(
      with_entry("for (int i = 0; i < 1024; ++i) static_cast<volatile char*>(__builtin_malloc(1 << 24))[0] = 1;"));
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.verdict, Verdict::crashed);
}

TEST_F(Emulate, WhatItCannotRunIsNoVerdict) {
  const auto expect_not_run = [](const Report& report, const char* reason) {
    EXPECT_EQ(report.outcome, Outcome::not_run);
    EXPECT_EQ(report.verdict, Verdict::ok);
    EXPECT_EQ(report.launches, 0);
    EXPECT_THAT(report.reason, HasSubstr(reason));
  };
  expect_not_run(emulated(with_entry("asm volatile(\"\");")), "of entry holds PTX");
  expect_not_run(emulated(with_entry("no_such_intrinsic(1);")), "no_such_intrinsic");
  const std::string path = "kernels/ptx/mma.cuh";
  expect_not_run(emulated(with({{{path, std::string(compile::device_file(path)) + "\n"}}})),
                 "it edits kernels/ptx/mma.cuh, in whose place the emulator has a source of its own");
  Variant of_cpu = parse_variant("fwd_cpu", parse_workload("b1h1l8d16:fp32"), cpu_facts());
  expect_not_run(emulate(of_cpu, parse_workload("b1h1l8d16:fp32"), cpu_facts(), *builder_, {}),
                 "fwd_cpu runs on a processor itself");
  jit::Builder without({.cache_folder = builder_->cache().folder(), .host_compiler = "no-such-compiler", .jobs = 1});
  expect_not_run(emulate(variant_of(kAmpere), parse_workload(kWorkload), device(), without, {}),
                 "the C++ compiler \"no-such-compiler\" is not on the PATH");
}

TEST_F(Emulate, SmallWorkloadsKeepWhatTheVariantIsFor) {
  const std::string text = "b8h32hkv4l2048d128:bf16:window=512/0";
  const Workload workload = parse_workload(text);
  const DeviceFacts small = emulated_device(device());
  EXPECT_LT(small.processors, 8);
  const std::vector<SmallCase> cases = small_cases(variant_of("fwd_sm90_persistent", text), workload, small);
  ASSERT_GE(cases.size(), 3U);
  for (const SmallCase& one : cases) {
    EXPECT_EQ(one.workload.dim, workload.dim);
    EXPECT_EQ(one.workload.dtype, workload.dtype);
    EXPECT_TRUE(one.workload.has_left_bound());
    EXPECT_LE(one.workload.len_q * one.workload.heads * one.workload.batch, 1024);
    EXPECT_LE(one.workload.window.left, one.workload.len_k);
  }
}

// A program for fixed sizes is emulated with those of a small workload, and its config for any sizes after it.
TEST_F(Emulate, SpecializedProgramsKeepTheirSpecialization) {
  const std::string text = "b1h8l512d64:fp16";
  const Variant variant = variant_of("fwd_sm90_split:specialize=shape", text);
  const std::vector<SmallCase> cases = small_cases(variant, parse_workload(text), emulated_device(device()));
  ASSERT_GE(cases.size(), 2U);
  EXPECT_NE(cases.front().variant.specialization.specialize, Specialize::none);
  EXPECT_EQ(cases.front().variant.problem.sizes.len_q, cases.front().workload.len_q);
  EXPECT_EQ(cases.back().variant.specialization.specialize, Specialize::none);
}

// The other families, one small program each.
class EmulateFamilies : public Emulate, public ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(EmulateFamilies, Pass) {
  const auto& [family, workload] = GetParam();
  const Report report = emulated(variant_of(family, workload), {}, workload);
  EXPECT_EQ(report.outcome, Outcome::passed) << report.check << ": " << report.reason;
}
INSTANTIATE_TEST_SUITE_P(All, EmulateFamilies,
                         ::testing::Values(std::pair("fwd_sm80_decode", "b1h4hkv1l1k200d64:fp16"),
                                           std::pair("fwd_sm90_split", "b1h1l70k120d64:fp16"),
                                           std::pair("fwd_sm90_persistent", "b1h1l70k120d64:bf16:causal_top_left"),
                                           std::pair("fwd_sm90_decode", "b1h4hkv1l1k200d64:fp16"),
                                           std::pair("fwd_sm90_fp8", "b1h1l70k120d64:fp16:quantised=qkv/e4m3/head")));

}  // namespace
}  // namespace heed::emulator
