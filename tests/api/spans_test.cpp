// Whether two tensors have a byte in common: against a list of all of their bytes.
#include "api/spans.hpp"

#include <gtest/gtest.h>

#include <set>

#include "base/random.hpp"

namespace heed::api {
namespace {

std::set<std::uint64_t> bytes_of(const Span& span) {
  std::set<std::uint64_t> all;
  const auto at = reinterpret_cast<std::uintptr_t>(span.at);
  for (std::int64_t b = 0; b < span.counts[0]; ++b)
    for (std::int64_t h = 0; h < span.counts[1]; ++h)
      for (std::int64_t r = 0; r < span.counts[2]; ++r)
        for (std::int64_t d = 0; d < span.counts[3]; ++d)
          for (std::uint64_t byte = 0; byte < span.element; ++byte)
            all.insert(at + static_cast<std::uint64_t>(b) * span.strides[0] +
                       static_cast<std::uint64_t>(h) * span.strides[1] +
                       static_cast<std::uint64_t>(r) * span.strides[2] +
                       static_cast<std::uint64_t>(d) * span.strides[3] + byte);
  return all;
}

bool have_one_in_common(const Span& a, const Span& b) {
  const std::set<std::uint64_t> of_a = bytes_of(a);
  for (const std::uint64_t byte : bytes_of(b))
    if (of_a.count(byte) > 0) return true;
  return false;
}

const void* address(std::uint64_t at) {
  return reinterpret_cast<const void*>(at);  // NOLINT(performance-no-int-to-ptr): nothing is read there
}

TEST(Spans, TensorsWithAByteInCommonAreFound) {
  Random random(3);
  const auto below = [&](std::uint64_t end) { return static_cast<std::int64_t>(random.below(end)); };
  int apart = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto draw = [&](std::uint64_t at) {
      const TensorSizes sizes{below(3), 1 + below(2), 1 + below(3), 1 + below(3)};
      return span_of("", address(at), sizes, {{below(40), below(20), below(8)}, 1 + below(2)}, 1 + below(2));
    };
    const Span a = draw(1000);
    Span b = draw(1000 + static_cast<std::uint64_t>(below(50)));
    if (below(2) == 0) b.strides = a.strides;
    if (have_one_in_common(a, b)) {
      ASSERT_TRUE(overlap(a, b)) << "round " << round;
      ASSERT_TRUE(overlap(b, a)) << "round " << round;
    } else {
      apart += overlap(a, b) ? 0 : 1;
    }
  }
  EXPECT_GT(apart, 1000);
}

TEST(Spans, KeysAndValuesMayTakeTurns) {
  // (pages, 2, page_size, heads, dim) of 16 bits.
  const TensorSizes pages{5, 2, 8, 16};
  const TensorLayout layout{{2 * 8 * 2 * 16, 16, 2 * 16}, 1};
  const Span k = span_of("k", address(4096), pages, layout, 2);
  const Span v = span_of("v", address(4096 + 8 * 2 * 16 * 2), pages, layout, 2);
  EXPECT_TRUE(reach_each_other(k, v));
  EXPECT_FALSE(overlap(k, v));
  EXPECT_FALSE(overlap(v, k));
  EXPECT_TRUE(overlap(k, span_of("v", address(4096 + 8 * 2 * 16 * 2 - 2), pages, layout, 2)));
  // Rows of K, V and a factor: (entries, heads, rows, 16 + 24 bytes + 4).
  const TensorLayout rows{{2 * 7 * 44, 7 * 44, 44}, 1};
  const Span k8 = span_of("k", address(4096), {3, 2, 7, 16}, rows, 1);
  const Span v8 = span_of("v", address(4096 + 16), {3, 2, 7, 24}, rows, 1);
  const Span factors = span_of("k_scale", address(4096 + 40), {3, 2, 7, 1}, {{2 * 7 * 11, 7 * 11, 11}, 1}, 4);
  EXPECT_FALSE(overlap(k8, v8));
  EXPECT_FALSE(overlap(v8, factors));
  EXPECT_FALSE(overlap(factors, k8));
  EXPECT_TRUE(overlap(k8, span_of("v", address(4096 + 15), {3, 2, 7, 24}, rows, 1)));
}

TEST(Spans, WhatIsNowhereOverlapsNothing) {
  const Span some = span_of_numbers("", address(64), 8, 4);
  EXPECT_FALSE(overlap(some, span_of_numbers("", nullptr, 800, 4)));
  EXPECT_FALSE(overlap(some, span_of_numbers("", address(64), 0, 4)));
  EXPECT_FALSE(overlap(some, span_of_numbers("", address(96), 1, 4)));
  EXPECT_TRUE(overlap(some, span_of_numbers("", address(92), 1, 4)));
}

}  // namespace
}  // namespace heed::api
