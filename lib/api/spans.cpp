#include "api/spans.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace heed::api {
namespace {

std::uint64_t address_of(const Span& span) {
  return reinterpret_cast<std::uintptr_t>(span.at);
}

// `b` begins behind `a`, between two parts of it. Strides beyond this distance are those of parts of both, which take
// turns; the others are within a part, and each part of `a` ends before the one of `b` begins.
bool take_turns(const Span& a, const Span& b) {
  const std::uint64_t distance = address_of(b) - address_of(a);
  std::uint64_t part_of_a = a.element;
  std::uint64_t part_of_b = b.element;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> shared;  // strides and counts
  for (std::size_t i = 0; i < a.counts.size(); ++i) {
    const bool repeats_a = a.counts[i] > 1;
    const bool repeats_b = b.counts[i] > 1;
    const bool is_far_a = repeats_a && a.strides[i] > distance;
    const bool is_far_b = repeats_b && b.strides[i] > distance;
    if (is_far_a != is_far_b) return false;
    if (is_far_a) {
      if (a.strides[i] != b.strides[i] || a.counts[i] != b.counts[i]) return false;
      shared.emplace_back(a.strides[i], static_cast<std::uint64_t>(a.counts[i]));
      continue;
    }
    if (repeats_a) part_of_a += static_cast<std::uint64_t>(a.counts[i] - 1) * a.strides[i];
    if (repeats_b) part_of_b += static_cast<std::uint64_t>(b.counts[i] - 1) * b.strides[i];
  }
  if (part_of_a > distance) return false;
  std::sort(shared.begin(), shared.end());
  std::uint64_t reach = distance + part_of_b;
  for (const auto& [stride, count] : shared) {
    if (stride < reach) return false;
    reach += (count - 1) * stride;
  }
  return true;
}

}  // namespace

Span span_of(const char* name, const void* at, const TensorSizes& sizes, const TensorLayout& layout,
             std::size_t element_bytes) {
  Span span{name, at, element_bytes, {sizes.batch, sizes.heads, sizes.rows, sizes.dim}, {}, 0};
  const long long strides[] = {layout.batch, layout.head, layout.row, layout.step};
  for (std::size_t i = 0; i < span.counts.size(); ++i)  // the stride of a single entry is never used, and may be any
    span.strides[i] = span.counts[i] > 1 ? static_cast<std::uint64_t>(strides[i]) * element_bytes : 0;
  if (std::any_of(span.counts.begin(), span.counts.end(), [](std::int64_t count) { return count <= 0; })) return span;
  span.bytes = element_bytes;
  for (std::size_t i = 0; i < span.counts.size(); ++i)
    span.bytes += static_cast<std::uint64_t>(span.counts[i] - 1) * span.strides[i];
  return span;
}

Span span_of_numbers(const char* name, const void* at, std::int64_t count, std::size_t element_bytes) {
  return span_of(name, at, {1, 1, 1, count}, {{0, 0, 0}, 1}, element_bytes);
}

bool reach_each_other(const Span& a, const Span& b) {
  const std::uint64_t x = address_of(a);
  const std::uint64_t y = address_of(b);
  return a.at != nullptr && b.at != nullptr && a.bytes > 0 && b.bytes > 0 && x < y + b.bytes && y < x + a.bytes;
}

bool overlap(const Span& a, const Span& b) {
  if (!reach_each_other(a, b)) return false;
  return address_of(a) < address_of(b) ? !take_turns(a, b) : !take_turns(b, a);
}

}  // namespace heed::api
