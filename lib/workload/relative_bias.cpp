#include "workload/relative_bias.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace heed {
namespace {

constexpr std::int64_t kMostBuckets = 1024;
constexpr std::int64_t kMostDistance = 1 << 16;  // log2 of it is 16, which kRelativeLogError counts on
// What log2(distance) * rate + shift may be off by, as a share of the rate: log2 itself, and a product and a sum in
// fp32 with a logarithm of at most 16.
constexpr double kRounding = kRelativeLogError + 2 * 16 * 0x1p-24;

std::int64_t exact_of(const RelativeBias& bias) {
  return side_of(bias) / 2;
}

// The least distance of a bucket from `exact` on. Buckets grow with distances.
std::int64_t least_distance(const RelativeBias& bias, std::int64_t bucket) {
  std::int64_t least = exact_of(bias), most = bias.max_distance;
  while (least < most) {
    const std::int64_t middle = (least + most) / 2;
    (far_bucket(bias, middle) >= bucket ? most : least) = far_bucket(bias, middle) >= bucket ? middle : middle + 1;
  }
  return least;
}

// rate and shift so that floor(log2(distance) * rate + shift) is right for all distances between exact and the last
// bucket, with room for rounding; none where no shift has the room.
std::optional<std::pair<double, double>> line_of(const RelativeBias& bias) {
  const std::int64_t exact = exact_of(bias), buckets = side_of(bias) - exact;
  const double rate =
      static_cast<double>(buckets) / std::log2(static_cast<double>(bias.max_distance) / static_cast<double>(exact));
  const auto at = [&](std::int64_t distance) { return std::log2(static_cast<double>(distance)) * rate; };
  // Each bucket's first distance must reach its number, and the distance before it must not.
  double least = -at(exact), most = INFINITY;
  for (std::int64_t bucket = exact + 1; bucket < exact + buckets; ++bucket) {
    const std::int64_t first = least_distance(bias, bucket);
    least = std::max(least, static_cast<double>(bucket - exact) - at(first));
    most = std::min(most, static_cast<double>(bucket - exact) - at(first - 1));
  }
  if (most == INFINITY) most = least + 1;
  if (most - least < 2 * kRounding * rate) return std::nullopt;
  return std::pair(rate, (least + most) / 2);
}

}  // namespace

std::int64_t side_of(const RelativeBias& bias) {
  return bias.bidirectional ? bias.buckets / 2 : bias.buckets;
}

std::int64_t far_bucket(const RelativeBias& bias, std::int64_t distance) {
  const std::int64_t exact = exact_of(bias);
  const auto whole = static_cast<float>(exact);
  const float share = std::log(static_cast<float>(distance) / whole) /
                      static_cast<float>(std::log(static_cast<double>(bias.max_distance) / static_cast<double>(exact)));
  const float above = share * static_cast<float>(side_of(bias) - exact);
  return std::min(exact + static_cast<std::int64_t>(above), side_of(bias) - 1);
}

std::string wrong_buckets(const RelativeBias& bias) {
  const std::int64_t least = bias.bidirectional ? 4 : 2;
  if (bias.buckets < least || bias.buckets > kMostBuckets || (bias.bidirectional && bias.buckets % 2 != 0))
    return fmt::format("a relative-position bias of {} buckets; it has {} to {}{}", bias.buckets, least, kMostBuckets,
                       bias.bidirectional ? ", an even number where it is bidirectional" : "");
  if (bias.max_distance <= exact_of(bias) || bias.max_distance > kMostDistance)
    return fmt::format("a relative-position bias up to a distance of {}; with {} buckets it is {} to {}",
                       bias.max_distance, bias.buckets, exact_of(bias) + 1, kMostDistance);
  if (!line_of(bias))
    return fmt::format(
        "a relative-position bias of {} buckets up to a distance of {}, of which some end so close to a "
        "distance that its logarithm in fp32 does not tell on which side it is; take other numbers, "
        "for example 32 and 128",
        bias.buckets, bias.max_distance);
  return {};
}

RelativeBuckets buckets_of(const RelativeBias& bias) {
  const auto line = line_of(bias);
  if (!line) throw Error(ErrorCode::internal, wrong_buckets(bias));
  const std::int64_t side = side_of(bias);
  return {.all = static_cast<int>(bias.buckets),
          .side = static_cast<int>(side),
          .exact = static_cast<int>(exact_of(bias)),
          .far = static_cast<int>(least_distance(bias, side - 1)),
          .rate = static_cast<float>(line->first),
          .shift = static_cast<float>(line->second)};
}

}  // namespace heed
