// GPU plans that are more than one launch, with a stand-in for the driver: rows copied to those of a program and back,
// and batches beyond a grid.
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::gpu_problem;
using testing_support::launched;
using testing_support::Made;
using testing_support::Memory;
using testing_support::stub_problem;
using PaddedGpuPlans = testing_support::StubPrograms;

TEST_F(PaddedGpuPlans, RowsAreCopiedToThoseOfTheProgramAndBack) {
  heed_problem p = stub_problem();
  p.dim = 80;
  p.dim_v = 72;
  p.q_strides = {4 * 128 * 81, 128 * 81, 81, 1};
  p.o_strides = {4 * 128 * 72, 72, 4 * 72, 1};
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("rows of 80 and 72 elements to rows of 128"));
  EXPECT_EQ(info.can_be_dependent, 0U);
  Memory memory;
  auto* const q = static_cast<unsigned short*>(const_cast<void*>(memory.t.q));
  for (int i = 0; i < 2 * 4 * 128 * 81; ++i) q[i] = static_cast<unsigned short>(i);
  std::vector<unsigned char> room(info.workspace_bytes + 256, 0xee);
  unsigned char* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
  ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
  const int before = launched();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 3) << "the copies of Q, K and V, the kernel, the copy of O";
  // The stand-in writes the parameters to the padded output, whose first 72 elements came back.
  const auto* const o = static_cast<const unsigned char*>(memory.t.o);
  ForwardParams seen{};
  std::memcpy(&seen, o, 72 * 2);
  ASSERT_GE(static_cast<const unsigned char*>(seen.o), workspace);
  std::memcpy(&seen, seen.o, sizeof seen);
  EXPECT_FLOAT_EQ(seen.scale, static_cast<float>(1 / std::sqrt(80.0)));
  EXPECT_EQ(seen.q_strides.row, 128);
  const auto* const padded = static_cast<const unsigned short*>(seen.q);
  const auto line = static_cast<std::size_t>((1 * 4 + 3) * 128 + 17);
  for (std::size_t c = 0; c < 128; ++c)
    ASSERT_EQ(padded[line * 128 + c], c < 80 ? static_cast<unsigned short>(line * 81 + c) : 0) << c;
  heed_plan_destroy(plan);
}

// fwd_sm80 counts batch entries in a dimension of the grid.
TEST(GpuPlans, MoreBatchEntriesThanAGridCountsAreSeveralLaunches) {
  const heed_problem p = gpu_problem("b131073h1l1d64", HEED_WANTS_LSE);
  const Made made(p, "fwd_sm80");
  ASSERT_NE(made.plan, nullptr);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("131073 batch entries are 3 launches"));
  const std::size_t bytes = static_cast<std::size_t>(p.batch) * 64 * 2;
  std::vector<unsigned char> memory(5 * bytes + 256);
  unsigned char* const begin = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = begin;
  t.k = begin + bytes;
  t.v = begin + 2 * bytes;
  t.o = begin + 3 * bytes;
  t.lse = reinterpret_cast<float*>(begin + 4 * bytes);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 3);
  ForwardParams seen;
  for (const std::int64_t entry : {std::int64_t{0}, std::int64_t{65535}, std::int64_t{2 * 65535}}) {
    std::memcpy(&seen, static_cast<unsigned char*>(t.o) + entry * 128, sizeof seen);
    EXPECT_EQ(seen.batch, entry == 2 * 65535 ? 3 : 65535);
    EXPECT_EQ(seen.k, static_cast<const unsigned char*>(t.k) + entry * 128);
    EXPECT_EQ(seen.lse, t.lse + entry);
  }
}

// Heads lie in a dimension of the grid, too: each entry is launches of its own, of whole groups.
TEST(GpuPlans, MoreHeadsThanAGridCountsAreSeveralLaunches) {
  const heed_problem p = gpu_problem("b2h65538hkv32769l1d64", HEED_WANTS_LSE);
  const Made made(p, "fwd_sm80");
  ASSERT_NE(made.plan, nullptr);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("65538 heads are 2 launches; 2 batch entries are 2 launches"));
  const std::size_t bytes = static_cast<std::size_t>(p.batch * p.heads) * 64 * 2;
  std::vector<unsigned char> memory(4 * bytes + 256);
  unsigned char* const begin = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = begin;
  t.k = begin + bytes;
  t.v = begin + bytes + bytes / 2;
  t.o = begin + 2 * bytes;
  t.lse = reinterpret_cast<float*>(begin + 3 * bytes);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 4);
  ForwardParams seen;
  for (const std::int64_t entry : {0, 1})
    for (const std::int64_t head : {0, 65534}) {
      const std::int64_t row = entry * 65538 + head;
      std::memcpy(&seen, static_cast<unsigned char*>(t.o) + row * 128, sizeof seen);
      EXPECT_EQ(seen.batch, 1);
      EXPECT_EQ(seen.heads, head == 0 ? 65534 : 4);
      EXPECT_EQ(seen.heads_kv, head == 0 ? 32767 : 2);
      EXPECT_EQ(seen.q, static_cast<const unsigned char*>(t.q) + row * 128);
      EXPECT_EQ(seen.k, static_cast<const unsigned char*>(t.k) + row / 2 * 128);
      EXPECT_EQ(seen.lse, t.lse + row);
    }
}

}  // namespace
}  // namespace heed
