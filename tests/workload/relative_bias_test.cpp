// Buckets of relative-position biases: what kernels compute of logarithms against T5's, for every distance.
#include "workload/relative_bias.hpp"

#include <cmath>

#include "testing.hpp"

namespace heed {
namespace {

// As Transformers' T5Attention._relative_position_bucket, beside far_bucket.
std::int64_t bucket_of(const RelativeBias& bias, std::int64_t ahead) {
  const std::int64_t side = side_of(bias), exact = side / 2;
  const std::int64_t distance = bias.bidirectional ? std::abs(ahead) : std::max<std::int64_t>(-ahead, 0);
  const std::int64_t bucket = distance < exact ? distance : far_bucket(bias, distance);
  return bias.bidirectional && ahead > 0 ? side + bucket : bucket;
}

TEST(RelativeBuckets, AreThoseOfT5) {
  // Of transformers 5: _relative_position_bucket(-distance, True, 32, 128), the least distance of each bucket.
  const RelativeBias t5;
  constexpr int kFirst[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  for (std::int64_t bucket = 0; bucket < 16; ++bucket) {
    EXPECT_EQ(bucket_of(t5, -kFirst[bucket]), bucket);
    if (bucket == 0) continue;
    EXPECT_EQ(bucket_of(t5, 1 - kFirst[bucket]), bucket - 1);
    EXPECT_EQ(bucket_of(t5, kFirst[bucket]), 16 + bucket);
  }
  const RelativeBuckets b = buckets_of(t5);
  EXPECT_EQ(b.all, 32);
  EXPECT_EQ(b.side, 16);
  EXPECT_EQ(b.exact, 8);
  EXPECT_EQ(b.far, 91);
}

TEST(RelativeBuckets, OfAKernelAreTheSameThoughItsLogarithmIsOff) {
  int taken = 0;
  for (const bool bidirectional : {true, false})
    for (const std::int64_t buckets : {4, 6, 8, 16, 24, 32, 40, 64, 100, 128, 320})
      for (const std::int64_t distance : {20, 32, 64, 100, 128, 200, 256, 500, 1000, 4096, 65536}) {
        const RelativeBias bias{.buckets = buckets, .max_distance = distance, .bidirectional = bidirectional};
        if (!wrong_buckets(bias).empty()) continue;
        ++taken;
        const RelativeBuckets b = buckets_of(bias);
        for (const float error : {-kRelativeLogError, 0.0F, kRelativeLogError})
          for (std::int64_t ahead = -distance - 3; ahead <= distance + 3; ++ahead)
            ASSERT_EQ(relative_bucket(b, static_cast<int>(ahead), [&](float x) { return std::log2(x) + error; }),
                      bucket_of(bias, ahead))
                << ahead << " of " << buckets << " to " << distance << " with an error of " << error;
      }
  EXPECT_GT(taken, 150);
}

TEST(RelativeBuckets, KeysOfOneBucketAreTold) {
  for (const bool bidirectional : {true, false}) {
    const RelativeBuckets b = buckets_of({.bidirectional = bidirectional});
    const auto of = [&](int ahead) { return relative_bucket(b, ahead, [](float x) { return std::log2(x); }); };
    for (int first = -200; first < 200; ++first)
      for (int last = first; last < first + 60; ++last) {
        const int all = relative_bucket_of_all(b, first, last);
        if (all < 0) continue;
        for (int ahead = first; ahead <= last; ++ahead) ASSERT_EQ(of(ahead), all) << ahead;
      }
    EXPECT_EQ(b.far, bidirectional ? 91 : 113);
    EXPECT_EQ(relative_bucket_of_all(b, -200, -b.far), b.side - 1);
    EXPECT_EQ(relative_bucket_of_all(b, -200, 1 - b.far), -1);
    EXPECT_EQ(relative_bucket_of_all(b, b.far, b.far + 9), bidirectional ? 31 : 0);
    EXPECT_EQ(relative_bucket_of_all(b, b.far - 1, b.far + 9), bidirectional ? -1 : 0);
  }
}

TEST(RelativeBuckets, NumbersThatCannotBeAreNamed) {
  const auto wrong = [](std::int64_t buckets, std::int64_t distance, bool bidirectional) {
    return wrong_buckets({.buckets = buckets, .max_distance = distance, .bidirectional = bidirectional});
  };
  EXPECT_EQ(wrong(32, 128, true), "");
  EXPECT_THAT(wrong(2, 128, true), ::testing::HasSubstr("of 2 buckets; it has 4 to 1024, an even number"));
  EXPECT_THAT(wrong(33, 128, true), ::testing::HasSubstr("of 33 buckets"));
  EXPECT_THAT(wrong(1, 128, false), ::testing::HasSubstr("of 1 buckets; it has 2 to 1024"));
  EXPECT_THAT(wrong(1025, 4096, false), ::testing::HasSubstr("of 1025 buckets"));
  EXPECT_THAT(wrong(32, 8, true), ::testing::HasSubstr("up to a distance of 8; with 32 buckets it is 9 to 65536"));
  EXPECT_THAT(wrong(32, 70000, true), ::testing::HasSubstr("up to a distance of 70000"));
}

}  // namespace
}  // namespace heed
