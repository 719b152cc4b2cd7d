// Plans on a GPU with a stand-in for the driver: what is launched, which maps are encoded and when, workspaces.
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::encoded;
using testing_support::expect_status;
using testing_support::launched;
using testing_support::Made;
using testing_support::Memory;
using testing_support::stub_problem;

TEST(GpuPlans, LaunchWhatTheProblemSays) {
  heed_problem p = stub_problem();
  p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  p.scale = 0.25;
  p.flags = HEED_WANTS_LSE;
  p.k_strides = {2 * 192 * 64, 64, 2 * 64, 1};
  const Made made(p);
  Memory memory;
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK) << heed_last_error();
  const ForwardParams seen = memory.seen();
  EXPECT_EQ(seen.k, memory.t.k);
  EXPECT_EQ(seen.lse, memory.t.lse);
  EXPECT_EQ(seen.batch, 2);
  EXPECT_EQ(seen.group_size, 2);
  EXPECT_EQ(seen.len_k, 192);
  EXPECT_EQ(seen.right_offset, 64);
  EXPECT_EQ(seen.scale, 0.25F);
  EXPECT_EQ(seen.q_strides.head, 128 * 64);
  EXPECT_EQ(seen.k_strides.row, 2 * 64);
  EXPECT_EQ(memory.map_of_k(), (std::vector<std::uint64_t>{reinterpret_cast<std::uint64_t>(memory.t.k), 64, 192, 2, 2,
                                                           2 * 2 * 64, 2 * 64, 2 * 2 * 192 * 64}));
}

TEST(GpuPlans, KeysThatNoRowSeesAreCutOff) {
  heed_problem p = stub_problem();
  p.len_q = 16;
  p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  p.window_left = 15;
  const Made made(p);
  Memory memory;
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(memory.seen().len_k, 31);
  EXPECT_EQ(memory.seen().k, static_cast<const char*>(memory.t.k) + 161 * 64 * 2);
}

TEST(GpuPlans, MapsAreEncodedWhenAddressesChange) {
  const Made made(stub_problem());
  Memory memory;
  Memory other;
  const int before = encoded();
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  const int each = encoded() - before;
  EXPECT_GE(each, 3);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + each) << "encoded again";
  ASSERT_EQ(heed_plan_run(made.plan, &other.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + 2 * each);
  const Made second(stub_problem());
  ASSERT_EQ(heed_plan_run(second.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + 3 * each) << "another plan has maps of its own";
}

TEST(GpuPlans, DependentLaunchesAreAskedFor) {
  const Made made(stub_problem(), "fwd_sm90_persistent:pdl_trigger=last_load,cluster=1");
  Memory memory;
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  EXPECT_EQ(info.can_be_dependent, 1U);
  EXPECT_STREQ(info.origin, "given");
  const auto attributes = testing_support::of_driver<unsigned()>("stub_attributes");
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(attributes(), 0U);
  ASSERT_EQ(heed_plan_run_many(made.plan, &memory.t, 1, memory.workspace, nullptr, HEED_RUN_DEPENDENT, nullptr),
            HEED_OK);
  EXPECT_EQ(attributes(), 1U);
  const Made plain(stub_problem(), "fwd_sm80");
  expect_status(heed_plan_run_many(plain.plan, &memory.t, 1, memory.workspace, nullptr, HEED_RUN_DEPENDENT, nullptr),
                HEED_INVALID_ARGUMENT, "cannot be launched as a dependent");
}

TEST(GpuPlans, WorkspacesAreClearedAndAsked) {
  heed_problem p = stub_problem();
  p.len_q = 1;
  p.len_k = 1024;
  const Made made(p, "fwd_sm90_decode");
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  ASSERT_GT(info.workspace_zeroed, 0U);
  ASSERT_LE(info.workspace_zeroed, info.workspace_bytes);
  std::vector<unsigned char> bytes(info.workspace_bytes + 256, 0xaa);
  void* const workspace = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
  Memory memory;
  expect_status(heed_plan_run(made.plan, &memory.t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the workspace is null");
  expect_status(heed_plan_run(made.plan, &memory.t, static_cast<char*>(workspace) + 8, nullptr), HEED_INVALID_ARGUMENT,
                "a multiple of 256");
  ASSERT_EQ(heed_plan_prepare(made.plan, workspace, nullptr), HEED_OK);
  for (std::size_t i = 0; i < info.workspace_zeroed; ++i) ASSERT_EQ(static_cast<unsigned char*>(workspace)[i], 0);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 1);
  EXPECT_EQ(memory.seen().semaphores, workspace);
}

TEST(GpuPlans, RowsWithoutKeysAreWrittenWithoutAKernel) {
  heed_problem p = stub_problem();
  p.len_k = 0;
  p.flags = HEED_WANTS_LSE;
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, nullptr, &plan), HEED_OK) << heed_last_error();
  Memory memory;
  std::memset(memory.t.o, 0xff, 2 * 4 * 128 * 64 * 2);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before);
  for (int i = 0; i < 2 * 4 * 128 * 64 * 2; ++i) ASSERT_EQ(static_cast<const char*>(memory.t.o)[i], 0);
  for (int i = 0; i < 2 * 4 * 128; ++i) ASSERT_EQ(memory.t.lse[i], -INFINITY);
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
