/// The layout of O.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "call.hpp"

namespace heed::torch {

/// Strides of a dense (batch, head, length, dim) tensor.
inline std::array<std::int64_t, 4> dense_strides(const std::array<std::int64_t, 4>& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

/// Strides of O: without gaps, its dimensions in the order that Q's have in memory, as torch.empty_like has it
/// (infer_dense_strides in ATen/ExpandUtils.cpp: of equal strides the smaller dimension lies inside, a stride of 0 says
/// nothing), and the head dim innermost. Dimensions of one element lie outermost, so that they ask for no other plan.
/// python/heed/layout.py does the same.
inline std::array<std::int64_t, 4> strides_like(const Shape& q, const std::array<std::int64_t, 4>& sizes) {
  std::array<std::size_t, 3> inner_first{};
  std::size_t count = 0;
  for (const std::size_t dim : {2U, 1U, 0U})
    if (sizes[dim] > 1) inner_first[count++] = dim;
  const auto lies_inside = [&](std::size_t a, std::size_t b) {  // 1 of a in b, -1 of b in a, 0 unknown
    if (q.strides[a] == 0 || q.strides[b] == 0) return 0;
    if (q.strides[a] != q.strides[b]) return q.strides[a] < q.strides[b] ? 1 : -1;
    return q.sizes[a] > q.sizes[b] ? -1 : 0;
  };
  for (std::size_t i = 1; i < count; ++i)
    for (std::size_t at = i, before = i; before-- > 0;) {
      const int order = lies_inside(inner_first[before], inner_first[at]);
      if (order > 0) break;
      if (order == 0) continue;
      std::swap(inner_first[before], inner_first[at]);
      at = before;
    }
  if (std::is_sorted(inner_first.begin(), inner_first.begin() + count, std::greater<>())) return dense_strides(sizes);
  const std::int64_t all = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  std::array<std::int64_t, 4> strides{all, all, all, 1};
  std::int64_t next = sizes[3];
  for (std::size_t i = 0; i < count; ++i) {
    strides[inner_first[i]] = next;
    next *= sizes[inner_first[i]];
  }
  return strides;
}

}  // namespace heed::torch
