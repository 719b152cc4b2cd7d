// Attention over pools, by the C interface: results over random splits of random contexts are those over all keys.
#include <cstdlib>

#include "offload/offload_case.hpp"

namespace heed {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

// One context of random lengths in a pool of random places, given in random steps: decoding, prefills, keys alone.
void run_split(std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end))); };
  const bool is_half = below(4) == 0;
  heed_offload_config c = pool_config(64, below(24), is_half ? HEED_FP16 : HEED_FP32);
  c.layers = 1 + below(2);
  c.page_layout = below(2) == 0 ? HEED_PAGES_HND : HEED_PAGES_NHD;
  c.page_size = below(2) == 0 ? 8 : 16;
  c.sink_pages = below(3);
  c.chunk_pages = 1 + below(5);
  c.chunks = 1 + below(3);
  if (below(2) == 0) c.streamed_share = static_cast<double>(below(5)) / 4;
  c.link_latency = below(3) == 0 ? 20e-6 : 0;
  const Pool pool(c);
  ASSERT_NE(pool.pool, nullptr);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 1 + below(3); ++i) ids.push_back(pool.add());
  PoolCase one(pool, ids, seed);
  const double tolerance = is_half ? 2e-3 : 2e-5;
  for (int step = 0; step < 4; ++step) {
    one.call().mask = below(2) == 0 ? HEED_MASK_NONE : HEED_MASK_CAUSAL_BOTTOM_RIGHT;
    one.call().window_left = below(4) == 0 ? below(90) : -1;
    one.call().softcap = below(4) == 0 ? 3 : 0;
    one.has_sinks = below(4) == 0;
    const bool is_decoding = below(2) == 0;
    const std::int64_t keys = below(3) == 0 ? below(70) : 1 + below(4);
    const std::int64_t rows = is_decoding ? 1 + below(3) : 1 + below(20);
    for (int layer = 0; layer < c.layers; ++layer) {
      const heed_status status =
          one.run(layer, keys, rows, is_decoding ? &heed_offload_decode : &heed_offload_prefill);
      ASSERT_EQ(status, HEED_OK) << heed_last_error();
      one.check(tolerance);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// HEED_SPLITS=N takes N, from a seed that is printed where one fails.
TEST(OffloadGate, RandomPageSplits) {
  const char* const asked = std::getenv("HEED_SPLITS");
  const std::uint64_t splits = asked == nullptr ? 500 : std::strtoull(asked, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= splits; ++seed) {
    run_split(seed);
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
