/// Masks: the one place that knows which keys a query row sees. Host and device, constexpr.
///
/// A mask is a band. Key j of len_k is visible to query i when i + left_offset <= j <= i + right_offset, of these
/// bounds those that its MaskKind has. Rows of a tile see, of the keys in order:
///
///     begin       full_begin            full_end          end
///       |  some rows  |      every row      |  some rows   |
///
/// Begin and end are FlashAttention-3's n_block_min and n_block_max before they are rounded to tiles, full_begin and
/// full_end the borders of its loops with and without a mask.
///
/// A bound that a mask does not have is not in the types of that mask: with a left bound that is 0 as a value nearly
/// every program moves (docs/ledger.md), so kernels put all that needs one inside `if constexpr (has_left_bound(...))`.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

HEED_HOST_DEVICE constexpr bool has_right_bound(MaskKind mask) {
  return mask != MaskKind::none;
}
HEED_HOST_DEVICE constexpr bool has_left_bound(MaskKind mask) {
  return mask == MaskKind::window;
}

/// The numbers of a launch that a mask depends on. An offset whose bound the mask does not have is not read.
///
/// No sum may leave an int: row + right_offset + 1 for the last row, row + left_offset for the first and the last.
struct MaskBounds {
  int left_offset;
  int right_offset;
  int len_k;
  constexpr bool operator==(const MaskBounds&) const = default;
};

HEED_HOST_DEVICE constexpr MaskBounds mask_bounds(const ForwardParams& p) {
  return {p.left_offset, p.right_offset, p.len_k};
}
HEED_HOST_DEVICE constexpr MaskBounds mask_bounds(const FixedSizes& s) {
  return {s.left_offset, s.right_offset, s.len_k};
}

/// The right end: the keys that query rows up to `last_row` may see, and no row up to it any other, are those before
/// it.
HEED_HOST_DEVICE constexpr int visible_keys(MaskKind mask, int last_row, int right_offset, int len_k) {
  if (!has_right_bound(mask)) return len_k;
  const int end = last_row + right_offset + 1;
  return end < 0 ? 0 : (end < len_k ? end : len_k);
}

/// The left end: query rows from `first_row` on see no key before it.
HEED_HOST_DEVICE constexpr int hidden_keys(MaskKind mask, int first_row, int left_offset, int len_k) {
  if (!has_left_bound(mask)) return 0;
  const int begin = first_row + left_offset;
  return begin < 0 ? 0 : (begin < len_k ? begin : len_k);
}

/// Keys that a tile of rows sees: [begin, end) by some row, [full_begin, full_end) by every row. Where no key is seen
/// by every row, full_begin == full_end. Always 0 <= begin <= full_begin <= full_end <= end <= len_k.
template <bool kBegins>
struct KeySpanOf {
  int begin;
  int full_begin;
  int full_end;
  int end;
  constexpr bool operator==(const KeySpanOf&) const = default;
};

/// Of a mask without a left bound.
template <>
struct KeySpanOf<false> {
  static constexpr int begin = 0;
  static constexpr int full_begin = 0;
  int full_end;
  int end;
  constexpr bool operator==(const KeySpanOf&) const = default;
};

/// Of a mask that is known at run time.
using KeySpan = KeySpanOf<true>;

/// The span of rows [row_begin, row_end), of which there is at least one.
template <MaskKind kMask>
HEED_HOST_DEVICE constexpr KeySpanOf<has_left_bound(kMask)> key_span(const MaskBounds& m, int row_begin, int row_end) {
  const int end = visible_keys(kMask, row_end - 1, m.right_offset, m.len_k);
  const int seen_by_first = visible_keys(kMask, row_begin, m.right_offset, m.len_k);
  if constexpr (has_left_bound(kMask)) {
    const int begin = hidden_keys(kMask, row_begin, m.left_offset, m.len_k);
    const int hidden_from_last = hidden_keys(kMask, row_end - 1, m.left_offset, m.len_k);
    const int full_end = begin < seen_by_first ? seen_by_first : begin;
    return {begin, hidden_from_last < full_end ? hidden_from_last : full_end, full_end, end};
  } else {
    return {seen_by_first, end};
  }
}

HEED_HOST_DEVICE constexpr KeySpan key_span(MaskKind mask, const MaskBounds& m, int row_begin, int row_end) {
  if (mask == MaskKind::window) return key_span<MaskKind::window>(m, row_begin, row_end);
  const int end = visible_keys(mask, row_end - 1, m.right_offset, m.len_k);
  return {0, 0, visible_keys(mask, row_begin, m.right_offset, m.len_k), end};
}

/// Whether a query row sees a key.
HEED_HOST_DEVICE constexpr bool sees(MaskKind mask, const MaskBounds& m, int row, int key) {
  return key >= hidden_keys(mask, row, m.left_offset, m.len_k) &&
         key < visible_keys(mask, row, m.right_offset, m.len_k);
}

/// The sum of clamp(first + i, 0, most) over i in [0, rows).
HEED_HOST_DEVICE constexpr double sum_of_clamped(long long first, long long rows, long long most) {
  const auto clamp = [](long long x, long long low, long long high) { return x < low ? low : (x < high ? x : high); };
  const long long rise = clamp(-first, 0, rows);           // the first i with more than 0
  const long long flat = clamp(most - first, rise, rows);  // the first i with `most`
  const auto ramp = static_cast<double>(flat - rise);
  return ramp * static_cast<double>(first + rise) + ramp * (ramp - 1) / 2 +
         static_cast<double>(rows - flat) * static_cast<double>(most);
}

/// Pairs of a query row of [0, len_q) and a key that the row sees: what operations are counted by.
HEED_HOST_DEVICE constexpr double visible_scores(MaskKind mask, const MaskBounds& m, int len_q) {
  if (!has_right_bound(mask)) return static_cast<double>(len_q) * static_cast<double>(m.len_k);
  const double ends = sum_of_clamped(m.right_offset + 1LL, len_q, m.len_k);
  return has_left_bound(mask) ? ends - sum_of_clamped(m.left_offset, len_q, m.len_k) : ends;
}

/// Keys in front of the first one that any row of a launch sees. Without a left bound there are none.
HEED_HOST_DEVICE constexpr int unseen_in_front(MaskKind mask, const MaskBounds& m) {
  return hidden_keys(mask, 0, m.left_offset, m.len_k);
}

/// The bounds of the same mask over the keys that are left when those in front are cut off.
HEED_HOST_DEVICE constexpr MaskBounds trimmed(MaskKind mask, const MaskBounds& m) {
  const int front = unseen_in_front(mask, m);
  return front == 0 ? m : MaskBounds{m.left_offset - front, m.right_offset - front, m.len_k - front};
}

HEED_HOST_DEVICE constexpr FixedSizes trimmed(const FixedSizes& sizes, MaskKind mask) {
  FixedSizes s = sizes;
  const MaskBounds left = trimmed(mask, mask_bounds(sizes));
  s.left_offset = left.left_offset;
  s.right_offset = left.right_offset;
  s.len_k = left.len_k;
  return s;
}

/// Bytes of an element of K and of V.
struct KeyBytes {
  int k;
  int v;
  HEED_HOST_DEVICE constexpr KeyBytes(int both) : k(both), v(both) {}
  HEED_HOST_DEVICE constexpr KeyBytes(int of_k, int of_v) : k(of_k), v(of_v) {}
};

/// A launch of the same problem whose first key some row may see: K and V begin there. Whoever fills ForwardParams in
/// calls it before the launch; under a mask without a left bound, and called again, it changes nothing.
HEED_HOST_DEVICE inline ForwardParams trimmed(const ForwardParams& params, MaskKind mask, KeyBytes bytes) {
  const int front = unseen_in_front(mask, mask_bounds(params));
  if (front == 0) return params;
  ForwardParams p = params;
  const MaskBounds left = trimmed(mask, mask_bounds(params));
  p.left_offset = left.left_offset;
  p.right_offset = left.right_offset;
  p.len_k = left.len_k;
  p.k = static_cast<const char*>(params.k) + front * params.k_strides.row * bytes.k;
  p.v = static_cast<const char*>(params.v) + front * params.v_strides.row * bytes.v;
  return p;
}

}  // namespace heed
