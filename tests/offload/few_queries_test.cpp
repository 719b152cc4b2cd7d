// The processors' part of a pool with columns in the lanes: keys divided over threads, partial sums in a workspace.
#include "offload/offload_case.hpp"

namespace heed {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

TEST(OffloadFewQueries, KeysAreDividedOverThreads) {
  const testing_support::TemporaryFolder folder;
  const std::string programs =
      testing_support::build_pool_programs({{"fp32", ""}}, folder.file("heed.programs"),
                                           "fwd_cpu:unit=vector,lanes=columns,block_m=64,split_keys=256,prefetch=32");
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    heed_offload_config c = pool_config(256, 4, HEED_FP32, programs);
    c.threads = threads;
    c.streamed_share = 0;
    const Pool pool(c);
    PoolCase one(pool, {pool.add()}, 3);
    one.call().mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
    // Parts of 256 keys of each of two key heads: none, one of them, then six.
    for (const std::int64_t keys : {20, 300, 1200, 1}) {
      ASSERT_EQ(one.run(0, keys, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
      one.check(2e-5);
    }
    results.push_back(one.o());
    ASSERT_EQ(one.run(0, 3, 3, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(2e-5);
  }
  EXPECT_EQ(results[0], results[1]) << "parts are added in their order";
}

}  // namespace
}  // namespace heed
