/// Relative-position biases of T5: a table with a bias for each head and bucket of distances between a query's own key
/// and a key. Host and device, constexpr.
///
/// Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, arXiv 1910.10683;
/// Transformers' T5Attention._relative_position_bucket, whose buckets these are. Of a side's buckets the first half has
/// a distance each, the others grow with its logarithm, and the last has all distances from `far` on:
///
///     8 of 16 buckets, 128:   0 1 2 3 4 5 6 7 | 8 .. 11 | 12 .. 15 | 16 .. 22 | .. | 91 and more
///
/// Bidirectional tables have half of the buckets for keys up to the own one and half for those after it; others have
/// all for keys up to the own one, and keys after it count as it.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

/// How distances are divided: numbers of a launch. Whoever fills them in takes care that the logarithm of no distance
/// is so close to the end of a bucket that its rounding could tell (lib/workload/relative_bias.cpp).
struct RelativeBuckets {
  int all;     ///< of a head: twice `side` where the table is bidirectional
  int side;    ///< for keys on one side of the own one
  int exact;   ///< distances below it have a bucket each: side / 2
  int far;     ///< the least distance in the last bucket
  float rate;  ///< of a distance from `exact` on, the bucket is exact + floor(log2(distance) * rate + shift)
  float shift;
  constexpr bool operator==(const RelativeBuckets&) const = default;
};

/// The bucket of a key `ahead` of a query's own key.
/// @param log2 of a float that holds a positive whole number; off by less than kRelativeLogError
template <typename Log2>
HEED_HOST_DEVICE constexpr int relative_bucket(const RelativeBuckets& b, int ahead, const Log2& log2) {
  const bool after = ahead > 0 && b.all > b.side;
  const int distance = after ? ahead : (ahead < 0 ? -ahead : 0);
  int bucket = distance;
  if (distance >= b.far)
    bucket = b.side - 1;
  else if (distance >= b.exact)
    bucket = b.exact + static_cast<int>(log2(static_cast<float>(distance)) * b.rate + b.shift);
  return after ? b.side + bucket : bucket;
}
inline constexpr float kRelativeLogError = 4e-6F;  // lg2.approx.f32: 2^-22 of at most 16

/// The one bucket of all keys from `first` to `last` ahead of the own key; -1 where they may have several.
HEED_HOST_DEVICE constexpr int relative_bucket_of_all(const RelativeBuckets& b, int first, int last) {
  if (last <= -b.far) return b.side - 1;
  if (b.all > b.side) return first >= b.far ? b.all - 1 : -1;
  return first >= 0 ? 0 : -1;
}

}  // namespace heed
