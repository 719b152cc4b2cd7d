// heed_options.precision on a GPU, with a stand-in for the driver: which launches a run is, and with what.
#include <algorithm>
#include <deque>

#include "quantise/quantise.hpp"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using quantise::Stage;
using testing_support::expect_refused;
using testing_support::gpu_problem;
using testing_support::kImage;
using testing_support::launched;
using testing_support::Memory;
using testing_support::of_driver;
using testing_support::TemporaryFolder;

class PrecisionGpuPlans : public ::testing::Test {
 protected:
  void write(bool with_pass, const char* shape = "b1h8l512d64:fp16:quantised=qk/int8/head", bool with_lost = false) {
    dispatch::ProgramFileWriter writer("0123");
    testing_support::add_default(writer, find_family("fwd_sm80"), parse_workload(shape));
    if (with_pass) testing_support::add_pass(writer, quantise::kQuantiseProgram);
    if (with_lost) testing_support::add_pass(writer, quantise::kLostProgram);
    const std::string& path = paths_.emplace_back(folder_.file(fmt::format("{}{}.programs", with_pass, with_lost)));
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path.c_str();
    options_.book = "";
    options_.precision = "int8_smooth";
  }

  TemporaryFolder folder_;
  std::deque<std::string> paths_;
  heed_options options_{};
};

TEST_F(PrecisionGpuPlans, ARunIsThePassTheKernelAndTheLogSumExps) {
  write(true);
  const heed_problem p = gpu_problem("b2h4hkv2l128k192d64:fp16", HEED_WANTS_LSE);
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_STREQ(info.precision, "int8_smooth");
  EXPECT_STREQ(info.family, "fwd_sm80");
  EXPECT_EQ(info.can_be_dependent, 0U);
  Memory memory;
  std::vector<unsigned char> room(info.workspace_bytes + 256, 0xee);
  unsigned char* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
  ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
  const int before = launched();
  const int waits = of_driver<int()>("stub_allocated_or_waited")();
  const int first = of_driver<int()>("stub_passed")();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched() - before, 6);
  EXPECT_EQ(of_driver<int()>("stub_allocated_or_waited")(), waits);
  const auto* const passes = of_driver<const quantise::Pass*()>("stub_passes")();
  int at = first;
  for (const Stage stage : {Stage::sums, Stage::means, Stage::largest, Stage::elements, Stage::lse})
    EXPECT_EQ(passes[at++ % 16].stage, static_cast<int>(stage));
  const quantise::Pass& pass = passes[first % 16];
  const FeatureParams seen = memory.seen();
  EXPECT_EQ(seen.q, pass.q.to);
  EXPECT_EQ(seen.k, pass.k.to);
  EXPECT_EQ(seen.v, memory.t.v);
  EXPECT_EQ(pass.q.from, memory.t.q);
  EXPECT_EQ(pass.v.to, nullptr);
  EXPECT_EQ(seen.q_scales.at, pass.q.factors);
  EXPECT_EQ(seen.k_scales.rows, 64);
  EXPECT_EQ(pass.k.count, 2 * 2 * 3);
  EXPECT_EQ(pass.lse, memory.t.lse);
  EXPECT_EQ(pass.shift_count, 2 * 4 * 128);
  EXPECT_EQ(pass.q.is_wide, 1);
  for (long long i = 0; i < pass.k.count; ++i) EXPECT_EQ(pass.k.largest[i], 0U);
  // All that the pass writes lies in the workspace, apart.
  std::vector<std::pair<const void*, std::size_t>> parts = {
      {pass.q.to, 2 * 4 * 128 * 64},   {pass.k.to, 2 * 2 * 192 * 64},
      {pass.q.factors, 2 * 4 * 4 * 4}, {pass.k.factors, 48},
      {pass.q.largest, 2 * 4 * 4 * 4}, {pass.k.largest, 48},
      {pass.sums, 2 * 2 * 2 * 64 * 8}, {pass.mean, 2 * 2 * 64 * 4},
      {pass.shift, 2 * 4 * 128 * 4}};
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 0; i + 1 < parts.size(); ++i)
    EXPECT_LE(static_cast<const char*>(parts[i].first) + parts[i].second, parts[i + 1].first) << i;
  EXPECT_GE(parts.front().first, static_cast<const void*>(workspace));
  EXPECT_LE(static_cast<const char*>(parts.back().first) + parts.back().second,
            static_cast<const void*>(workspace + info.workspace_bytes));
  heed_plan_destroy(plan);
}

// Of one file's programs that of fwd_sm80 is taken where the family for Hopper has none.
TEST_F(PrecisionGpuPlans, Fp8RunsOnMmaSyncToo) {
  write(true, "b1h8l512d64:fp16:quantised=qkv/e4m3/head");
  options_.precision = "fp8_smooth";
  const heed_problem p = gpu_problem("b2h4hkv2l128k192d64:fp16");
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_STREQ(info.precision, "fp8_smooth");
  EXPECT_STREQ(info.family, "fwd_sm80");
  heed_plan_destroy(plan);
  options_.precision = "int8";
  expect_refused(p, HEED_UNSUPPORTED, "the modes that are served here: fp8, fp8_smooth", &options_);
}

TEST_F(PrecisionGpuPlans, DebugCountsLostValuesAndWaits) {
  write(true);
  options_.debug = 1;
  expect_refused(gpu_problem("b2h4hkv2l128k192d64:fp16"), HEED_UNSUPPORTED,
                 "no program that counts what quantising loses", &options_);
  write(true, "b1h8l512d64:fp16:quantised=qk/int8/head", true);
  options_.debug = 1;
  const heed_problem p = gpu_problem("b2h4hkv2l128k192d64:fp16", HEED_WANTS_LSE);
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  Memory memory;
  std::vector<unsigned char> room(info.workspace_bytes + 256, 0xee);
  unsigned char* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
  const int before = launched();
  const int waits = of_driver<int()>("stub_allocated_or_waited")();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched() - before, 7);
  EXPECT_EQ(of_driver<int()>("stub_allocated_or_waited")() - waits, 3) << "zeros in, the count out, a wait";
  const quantise::Pass& pass =
      of_driver<const quantise::Pass*()>("stub_passes")()[(of_driver<int()>("stub_passed")() - 1) % 16];
  EXPECT_EQ(pass.stage, static_cast<int>(Stage::lost));
  EXPECT_GE(reinterpret_cast<unsigned char*>(pass.lost), workspace);
  EXPECT_LE(reinterpret_cast<unsigned char*>(pass.lost + 3), workspace + info.workspace_bytes);
  EXPECT_EQ(pass.lost[2].first, quantise::kNoneLost);
  void* const captured = reinterpret_cast<void*>(0x88);  // kCapturing of the stand-in
  EXPECT_EQ(heed_plan_run(plan, &memory.t, workspace, captured), HEED_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("capture it without"));
  heed_plan_destroy(plan);
}

TEST_F(PrecisionGpuPlans, WhatIsMissingIsNamed) {
  write(false);
  expect_refused(gpu_problem("b2h4hkv2l128k192d64:fp16"), HEED_UNSUPPORTED, "no program that quantises inputs",
                 &options_);
  write(true);
  options_.precision = "int8_fp8_smooth";
  expect_refused(gpu_problem("b2h4hkv2l128k192d64:fp16"), HEED_UNSUPPORTED,
                 "the modes that are served here: int8, int8_smooth, int8_token_smooth", &options_);
}

}  // namespace
}  // namespace heed
