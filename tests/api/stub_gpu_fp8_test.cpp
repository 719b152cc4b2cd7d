// Problems with features in fwd_sm90_fp8, with a stand-in for the driver: ragged batches, pages, sinks and a softcap of
// inputs that are given in e4m3, and ragged batches that Heed quantises.
#include "quantise/quantise.hpp"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::expect_refused;
using testing_support::gpu_problem;
using testing_support::kImage;
using testing_support::Memory;
using testing_support::TemporaryFolder;

// A file with the family's default for a workload, and the pass that quantises.
class Fp8GpuPlans : public ::testing::Test {
 protected:
  void write(const std::string& shape) {
    dispatch::ProgramFileWriter writer("0123");
    testing_support::add_default(writer, find_family("fwd_sm90_fp8"), parse_workload(shape));
    testing_support::add_pass(writer, quantise::kQuantiseProgram);
    write_file_atomically(path_, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path_.c_str();
    options_.book = "";
  }

  // What the kernel gets of a plan's run.
  FeatureParams seen_of(const heed_problem& p) {
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
    if (plan == nullptr) return {};
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    EXPECT_STREQ(info.family, "fwd_sm90_fp8") << info.reason;
    EXPECT_GT(info.workspace_bytes, 0U) << "V transposed";
    room_.assign(info.workspace_bytes + 256, 0);
    unsigned char* const workspace = room_.data() + (256 - reinterpret_cast<std::uintptr_t>(room_.data()) % 256) % 256;
    EXPECT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_run(plan, &memory_.t, workspace, nullptr), HEED_OK) << heed_last_error();
    heed_plan_destroy(plan);
    return memory_.seen();
  }
  const std::int32_t* numbers(std::size_t from) { return &arrays_.at(from); }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("heed.programs");
  heed_options options_{};
  Memory memory_;
  std::vector<std::int32_t> arrays_ = std::vector<std::int32_t>(256);
  std::vector<float> factors_ = std::vector<float>(64, 1.0F);
  std::vector<unsigned char> room_;
};

TEST_F(Fp8GpuPlans, GivenPagesOf8Bits) {
  const std::string shape =
      "b2h4hkv2l128k192d64:fp16:causal_bottom_right:softcap=30:sinks:ragged:key_lengths:page=16:"
      "quantised=qkv/e4m3/tensor";
  write(shape);
  heed_problem p = gpu_problem(shape);
  p.total_q = 150;
  p.pages = 50;
  memory_.t.cu_seqlens_q = numbers(0);
  memory_.t.seqused_k = numbers(8);
  memory_.t.page_table = numbers(16);
  memory_.t.sinks = factors_.data();
  memory_.t.q_scale = memory_.t.k_scale = memory_.t.v_scale = factors_.data() + 8;
  const FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.cu_seqlens_q, numbers(0));
  EXPECT_EQ(seen.seqused_k, numbers(8));
  EXPECT_EQ(seen.page_table, numbers(16));
  EXPECT_EQ(seen.page_size, 16);
  EXPECT_EQ(seen.softcap, 30);
  EXPECT_EQ(seen.sinks, factors_.data());
  EXPECT_EQ(seen.k_scales.at, factors_.data() + 8);
  EXPECT_EQ(seen.k_scales.strides.row, 0);
  // (head dim, rows of a page, heads, pages)
  const std::vector<std::uint64_t> map = memory_.map_of_k();
  EXPECT_EQ(std::vector<std::uint64_t>(map.begin(), map.begin() + 5),
            (std::vector<std::uint64_t>{reinterpret_cast<std::uint64_t>(memory_.t.k), 64, 16, 2, 50}));
}

TEST_F(Fp8GpuPlans, RaggedInputsThatHeedQuantises) {
  write("b2h4hkv2l128k192d64:fp16:causal_bottom_right:ragged:quantised=qkv/e4m3/head");
  options_.precision = "fp8_smooth";
  heed_problem p = gpu_problem("b2h4hkv2l128k192d64:fp16:causal_bottom_right:ragged");
  p.total_q = 150;
  p.total_k = 210;
  arrays_ = {0, 100, 150, 0, 90, 210};
  memory_.t.cu_seqlens_q = numbers(0);
  memory_.t.cu_seqlens_k = numbers(3);
  const FeatureParams seen = seen_of(p);
  EXPECT_EQ(seen.cu_seqlens_k, numbers(3));
  EXPECT_EQ(seen.total_k, 210);
  EXPECT_NE(seen.k, memory_.t.k);
  EXPECT_EQ(seen.k_scales.strides.row, 0);
  // Blocks of rows would be of two entries.
  options_.precision = "fp8_block_smooth_rotated";
  expect_refused(p, HEED_UNSUPPORTED, "ragged", &options_);
}

}  // namespace
}  // namespace heed
