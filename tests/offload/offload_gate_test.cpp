// Attention over pools, by the C interface: results over random splits of random contexts are those over all keys.
#include "offload/offload_case.hpp"

namespace heed {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

// HEED_SPLITS=N takes N; a seed is printed where one fails.
TEST(OffloadGate, RandomPageSplits) {
  for (std::uint64_t seed = 1; seed <= testing_support::splits_asked_for(); ++seed) {
    const bool is_half = seed % 4 == 0;
    testing_support::run_random_split(seed, pool_config(64, 0, is_half ? HEED_FP16 : HEED_FP32), nullptr,
                                      is_half ? 2e-3 : 2e-5);
    if (::testing::Test::HasFailure()) return;
  }
}

// A head dim without programs runs on padded copies, which lie in the workspace where keys that are split over threads
// have their counters.
TEST(OffloadGate, PaddedCopiesBetweenSplitKeys) {
  const testing_support::TemporaryFolder folder;
  const std::string programs =
      testing_support::build_pool_programs({{"fp32", ""}}, folder.file("heed.programs"), "fwd_cpu:unit=vector", 32);
  for (const auto& [dim, dim_v] : {std::pair{12, 12}, {32, 12}, {12, 32}})
    for (const std::int64_t device_pages : {0, 40}) {
      heed_offload_config c = pool_config(320, device_pages, HEED_FP32, programs);
      c.heads = c.heads_kv = 1;
      c.dim = dim;
      c.dim_v = dim_v;
      c.threads = 2;
      const Pool pool(c);
      ASSERT_NE(pool.pool, nullptr);
      PoolCase one(pool, {pool.add(), pool.add()}, 7);
      one.call().mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
      for (const auto& [keys, rows] : {std::pair{600, 3}, {1, 1}, {520, 30}, {1, 1}, {2, 2}}) {
        ASSERT_EQ(one.run(0, keys, rows, &heed_offload_prefill), HEED_OK) << heed_last_error();
        one.check(2e-5);
        if (HasFatalFailure()) return;
      }
    }
}

// Pages of 8 bits: results are those over the numbers that pages have, element times factor, of keys that the pool
// quantised and of keys that came quantised. HEED_SPLITS=N takes N / 4.
TEST(OffloadGate, RandomPageSplitsOfEightBits) {
  for (std::uint64_t seed = 1; seed <= (testing_support::splits_asked_for() + 3) / 4; ++seed) {
    const int dtypes[] = {HEED_FP8_E4M3, HEED_INT8, HEED_FP8_E5M2};
    const std::int64_t counts[] = {1, 2};
    const int dtype = dtypes[seed % 3];
    const heed_offload_config c = testing_support::eight_bit_config(64, 0, dtype, counts[seed / 3 % 2]);
    testing_support::run_random_split(seed, c, nullptr, dtype == HEED_INT8 ? 2e-5 : 2e-3);
    if (::testing::Test::HasFailure()) return;
  }
}

// With 64 heads that share one of keys a launch has 8 rows: others of a piece are launches of their own, under masks
// that count from their own last row.
TEST(OffloadGate, RowsBeyondThoseOfALaunch) {
  for (const std::int64_t device_pages : {0, 3, 40})
    for (const std::int64_t left : {-1, 9}) {
      heed_offload_config c = testing_support::eight_bit_config(40, device_pages, HEED_INT8, 1);
      c.heads = 64;
      c.heads_kv = 1;
      const Pool pool(c);
      ASSERT_NE(pool.pool, nullptr);
      PoolCase one(pool, {pool.add()}, 7);
      one.call().window_left = left;
      for (const auto& [keys, rows] : {std::pair{5, 19}, {44, 21}, {0, 8}, {3, 9}})
        for (const int mask : {HEED_MASK_CAUSAL_BOTTOM_RIGHT, HEED_MASK_NONE}) {
          one.call().mask = mask;
          ASSERT_EQ(one.run(0, keys, rows, &heed_offload_prefill), HEED_OK) << heed_last_error();
          one.check(2e-5);
          if (HasFatalFailure()) return;
        }
      EXPECT_THAT(pool.explain(), ::testing::HasSubstr("launches of 8 rows at most"));
    }
}

// The gate can fail: a factor that is not the pool's.
TEST(OffloadGate, NoticesAFactorThatIsNotTheSame) {
  heed_offload_config c = testing_support::eight_bit_config(16, 2, HEED_FP8_E4M3, 2);
  float factors[] = {c.v_scales[0], c.v_scales[1]};
  c.v_scales = factors;
  const Pool pool(c);
  factors[1] *= 2;  // of what the test compares with
  PoolCase one(pool, {pool.add()}, 1);
  one.gives_eight_bits = true;
  ASSERT_EQ(one.run(0, 80, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  EXPECT_GT(one.worst_error(), 0.02);
}

// The gate can fail: a key that changes in host memory behind the pool's back.
TEST(OffloadGate, NoticesAKeyThatIsNotTheSame) {
  const Pool pool(pool_config(16, 2));
  PoolCase one(pool, {pool.add()}, 1);
  ASSERT_EQ(one.run(0, 80, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  one.check(2e-5);
  const void* k = nullptr;
  const void* v = nullptr;
  ASSERT_EQ(heed_offload_pages(pool.pool, 0, &k, &v), HEED_OK);
  std::int32_t table[10] = {};
  const std::int64_t id = one.call().sequences[0];
  ASSERT_EQ(heed_offload_table(pool.pool, &id, 1, table, 10), HEED_OK) << heed_last_error();
  auto* const value = static_cast<float*>(const_cast<void*>(v)) + table[3] * 2 * 8 * 16;  // of page 3
  for (int i = 0; i < 16; ++i) value[i] += 50;
  ASSERT_EQ(one.run(0, 0, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  EXPECT_GT(one.worst_error(), 0.1);
}

}  // namespace
}  // namespace heed
