// heed_options.listing on a GPU, with a stand-in for the driver: a run is a pass over the bias and the kernel.
#include <deque>

#include "listing/listing.hpp"
#include "stub_gpu.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

using testing_support::gpu_problem;
using testing_support::kImage;
using testing_support::launched;
using testing_support::Memory;
using testing_support::of_driver;
using testing_support::TemporaryFolder;

class ListedGpuPlans : public ::testing::TestWithParam<const char*> {
 protected:
  void write(bool with_pass) {
    dispatch::ProgramFileWriter writer("0123");
    const Family& family = find_family(GetParam());
    testing_support::add_default(
        writer, family, with_features(parse_workload("b1h8l512d64:fp16:causal_bottom_right"), family.features()));
    if (with_pass) testing_support::add_pass(writer, listing::kListProgram);
    const std::string& path = paths_.emplace_back(folder_.file(with_pass ? "with.programs" : "without.programs"));
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path.c_str();
    options_.book = "";
  }
  // Plans a problem, runs it once, and says what the pass and the kernel were launched with.
  void run(const std::string& text) {
    const heed_problem p = gpu_problem(text, HEED_WANTS_LSE);
    heed_plan* plan = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
    info_ = {};
    heed_plan_info_init(&info_);
    ASSERT_EQ(heed_plan_get_info(plan, &info_), HEED_OK);
    EXPECT_STREQ(info_.family, GetParam());
    reason_ = info_.reason;
    room_.assign(info_.workspace_bytes + 256, 0xee);
    workspace_ = room_.data() + (256 - reinterpret_cast<std::uintptr_t>(room_.data()) % 256) % 256;
    memory_.t.bias = static_cast<const unsigned char*>(memory_.t.q) + (6 << 20);
    ASSERT_EQ(heed_plan_prepare(plan, workspace_, nullptr), HEED_OK) << heed_last_error();
    const int before = launched();
    const int passes = of_driver<int()>("stub_listed")();
    const int waits = of_driver<int()>("stub_allocated_or_waited")();
    ASSERT_EQ(heed_plan_run(plan, &memory_.t, workspace_, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(of_driver<int()>("stub_allocated_or_waited")(), waits);
    launches_ = launched() - before;
    passes_ = of_driver<int()>("stub_listed")() - passes;
    pass_ = *of_driver<const listing::Pass*()>("stub_listing")();
    seen_ = memory_.seen();
    heed_plan_destroy(plan);
  }
  [[nodiscard]] bool lies_in_workspace(const void* from, long long numbers) const {
    const auto* const begin = static_cast<const unsigned char*>(from);
    return begin >= workspace_ && begin + numbers * 4 <= workspace_ + info_.workspace_bytes;
  }

  TemporaryFolder folder_;
  std::deque<std::string> paths_;
  heed_options options_{};
  Memory memory_;
  std::vector<unsigned char> room_;
  unsigned char* workspace_ = nullptr;
  heed_plan_info info_{};
  std::string reason_;
  int launches_ = 0;
  int passes_ = 0;
  listing::Pass pass_{};
  FeatureParams seen_{};
};

TEST_P(ListedGpuPlans, ARunIsThePassAndTheKernel) {
  write(true);
  run("b2h4hkv2l300k530d64:fp16:causal_bottom_right:bias=bool/blk");
  EXPECT_EQ(launches_, 2);
  EXPECT_EQ(passes_, 1);
  EXPECT_THAT(reason_, ::testing::HasSubstr("a pass over the bias lists the blocks"));
  EXPECT_EQ(info_.can_be_dependent, 0U);
  EXPECT_EQ(pass_.bias, memory_.t.bias);
  EXPECT_EQ(pass_.batch, 2);
  EXPECT_EQ(pass_.heads, 1);
  EXPECT_EQ(pass_.row_blocks, 5);
  EXPECT_EQ(pass_.most, 9);
  EXPECT_EQ(pass_.mask, static_cast<int>(MaskKind::causal));
  EXPECT_EQ(pass_.right_offset, 230);
  EXPECT_EQ(pass_.is_wide, 0);  // rows of 530 bytes
  EXPECT_TRUE(lies_in_workspace(pass_.counts, 2 * 5));
  EXPECT_TRUE(lies_in_workspace(pass_.indices, 2 * 5 * 9));
  EXPECT_GE(pass_.indices, pass_.counts + 2 * 5);
  EXPECT_EQ(seen_.bias, pass_.bias);
  EXPECT_EQ(seen_.block_counts, pass_.counts);
  EXPECT_EQ(seen_.block_indices, pass_.indices);
  EXPECT_EQ(seen_.block_most, 9);
  EXPECT_EQ(seen_.block_rows, 64);
  EXPECT_EQ(seen_.block_keys, 64);
  EXPECT_EQ(seen_.block_count_strides.batch, 5);
  EXPECT_EQ(seen_.block_count_strides.head, 0);
  EXPECT_EQ(seen_.block_count_strides.row, 1);
  EXPECT_EQ(seen_.block_index_strides.batch, 45);
  EXPECT_EQ(seen_.block_index_strides.row, 9);
}

TEST_P(ListedGpuPlans, RowsMayShareOneList) {
  write(true);
  run("b2h4hkv2l300k512d64:fp16:causal_bottom_right:bias=fp16/bk");
  EXPECT_EQ(passes_, 1);
  EXPECT_EQ(pass_.row_blocks, 1);
  EXPECT_EQ(pass_.len_q, 1);
  EXPECT_EQ(pass_.is_wide, 1);
  EXPECT_EQ(pass_.mask, static_cast<int>(MaskKind::none));  // whose bounds differ by row
  EXPECT_EQ(seen_.block_count_strides.row, 0);
  EXPECT_EQ(seen_.block_index_strides.row, 0);
  EXPECT_EQ(seen_.block_index_strides.batch, 8);
}

TEST_P(ListedGpuPlans, WithoutThePassTheProblemIsRunAsItIs) {
  write(false);
  run("b2h4hkv2l300k530d64:fp16:causal_bottom_right:bias=bool/blk");
  EXPECT_EQ(launches_, 1);
  EXPECT_EQ(passes_, 0);
  EXPECT_EQ(seen_.block_counts, nullptr);
  write(true);
  options_.listing = HEED_LIST_OFF;
  run("b2h4hkv2l300k530d64:fp16:causal_bottom_right:bias=bool/blk");
  EXPECT_EQ(passes_, 0);
  options_.listing = HEED_LIST_AUTO;
  run("b2h4hkv2l200k530d64:fp16:causal_bottom_right:bias=bool/blk");
  EXPECT_EQ(passes_, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ListedGpuPlans, ::testing::Values("fwd_sm80", "fwd_sm90_persistent"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace heed
