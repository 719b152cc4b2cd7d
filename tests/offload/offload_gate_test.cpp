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
