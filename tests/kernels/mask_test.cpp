// Which keys rows see: spans, counts and what is cut off, against the definition, over all small sizes.
#include "kernels/attention/mask.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "testing.hpp"

namespace heed {
namespace {

// The definition, key by key.
constexpr bool visible(MaskKind mask, const MaskBounds& m, int row, int key) {
  if (key < 0 || key >= m.len_k) return false;
  if (mask != MaskKind::none && key > row + m.right_offset) return false;
  return mask != MaskKind::window || key >= row + m.left_offset;
}

constexpr bool span_is_right(MaskKind mask, const MaskBounds& m, int row_begin, int row_end, const KeySpan& s) {
  if (!(0 <= s.begin && s.begin <= s.full_begin && s.full_begin <= s.full_end && s.full_end <= s.end &&
        s.end <= m.len_k))
    return false;
  bool any_full = false;
  for (int key = 0; key < m.len_k; ++key) {
    bool some = false;
    bool every = true;
    for (int row = row_begin; row < row_end; ++row) {
      const bool sees_it = visible(mask, m, row, key);
      if (sees(mask, m, row, key) != sees_it) return false;
      some = some || sees_it;
      every = every && sees_it;
    }
    if (some && (key < s.begin || key >= s.end)) return false;
    if (every != (key >= s.full_begin && key < s.full_end)) return false;
    any_full = any_full || every;
  }
  // Nothing is loaded that no row sees.
  if (s.begin < s.end) {
    bool first = false;
    bool last = false;
    for (int row = row_begin; row < row_end; ++row) {
      first = first || visible(mask, m, row, s.begin);
      last = last || visible(mask, m, row, s.end - 1);
    }
    if (!first || !last) return false;
  }
  return any_full || s.full_begin == s.full_end;
}

template <MaskKind kMask>
constexpr KeySpan widened(const MaskBounds& m, int row_begin, int row_end) {
  const auto s = key_span<kMask>(m, row_begin, row_end);
  return {s.begin, s.full_begin, s.full_end, s.end};
}

constexpr bool is_right(MaskKind mask, const MaskBounds& m, int len_q) {
  double scores = 0;
  for (int row = 0; row < len_q; ++row)
    for (int key = 0; key < m.len_k; ++key) scores += visible(mask, m, row, key) ? 1 : 0;
  if (scores != visible_scores(mask, m, len_q)) return false;
  const MaskBounds rest = trimmed(mask, m);
  const int front = m.len_k - rest.len_k;
  if (mask != MaskKind::window && front != 0) return false;
  if (trimmed(mask, rest) != rest) return false;
  for (int row_begin = 0; row_begin < len_q; ++row_begin)
    for (int row_end = row_begin + 1; row_end <= len_q; ++row_end) {
      const KeySpan span = key_span(mask, m, row_begin, row_end);
      if (!span_is_right(mask, m, row_begin, row_end, span)) return false;
      const KeySpan known = mask == MaskKind::none     ? widened<MaskKind::none>(m, row_begin, row_end)
                            : mask == MaskKind::causal ? widened<MaskKind::causal>(m, row_begin, row_end)
                                                       : widened<MaskKind::window>(m, row_begin, row_end);
      if (known != span) return false;
      const KeySpan after = key_span(mask, rest, row_begin, row_end);
      if (span.begin < span.end &&
          after != KeySpan{span.begin - front, span.full_begin - front, span.full_end - front, span.end - front})
        return false;
    }
  // The first key that is left is seen by some row.
  bool first_is_seen = rest.len_k == 0 || front == 0;
  for (int row = 0; row < len_q; ++row) first_is_seen = first_is_seen || visible(mask, m, row, front);
  return first_is_seen;
}

constexpr bool all_are_right(int most_q, int most_k) {
  for (const MaskKind mask : {MaskKind::none, MaskKind::causal, MaskKind::window})
    for (int len_q = 1; len_q <= most_q; ++len_q)
      for (int len_k = 1; len_k <= most_k; ++len_k)
        for (int left = -len_q - 1; left <= len_k + 1; ++left)
          for (int right = left; right <= len_k + 1; ++right)
            if (!is_right(mask, {left, right, len_k}, len_q)) return false;
  return true;
}

static_assert(all_are_right(3, 3), "visibility is known at compile time");
static_assert(KeySpanOf<false>::begin == 0 && sizeof(KeySpanOf<false>) == 2 * sizeof(int),
              "a mask without a left bound has no begin");

TEST(Mask, SpansCountsAndTrimmingFollowTheDefinition) {
  EXPECT_TRUE(all_are_right(6, 7));
}

TEST(Mask, AWrongSpanIsSeen) {
  const MaskBounds m{-2, 1, 8};
  const KeySpan right = key_span(MaskKind::window, m, 3, 6);
  EXPECT_EQ(right, (KeySpan{1, 3, 5, 7}));
  EXPECT_TRUE(span_is_right(MaskKind::window, m, 3, 6, right));
  for (int KeySpan::*bound : {&KeySpan::begin, &KeySpan::full_begin, &KeySpan::full_end, &KeySpan::end})
    for (const int by : {-1, 1}) {
      KeySpan wrong = right;
      wrong.*bound += by;
      EXPECT_FALSE(span_is_right(MaskKind::window, m, 3, 6, wrong));
    }
}

TEST(Mask, CountsOfLongSequencesAreExact) {
  constexpr int kLong = std::numeric_limits<int>::max() / 2;
  const MaskBounds causal{0, 0, kLong};
  EXPECT_EQ(visible_scores(MaskKind::causal, causal, kLong), 0.5 * kLong * (kLong + 1.0));
  const MaskBounds window{-1023, 0, kLong};
  EXPECT_EQ(visible_scores(MaskKind::window, window, kLong), 1024.0 * kLong - 1023.0 * 1024 / 2);
  EXPECT_EQ(key_span(MaskKind::window, window, kLong - 128, kLong),
            (KeySpan{kLong - 128 - 1023, kLong - 1 - 1023, kLong - 127, kLong}));
}

TEST(Mask, ATrimmedLaunchBeginsWithTheFirstKeyThatIsSeen) {
  std::vector<unsigned short> k(1000);
  std::vector<unsigned short> v(1000);
  ForwardParams p{};
  p.k = k.data();
  p.v = v.data();
  p.k_strides = {0, 0, 8};
  p.v_strides = {0, 0, 16};
  p.len_q = 4;
  p.len_k = 60;
  p.right_offset = 56;
  p.left_offset = 46;
  for (const MaskKind mask : {MaskKind::none, MaskKind::causal}) {
    const ForwardParams same = trimmed(p, mask, 2);
    EXPECT_EQ(same.k, p.k);
    EXPECT_EQ(same.len_k, 60);
    EXPECT_EQ(same.right_offset, 56);
  }
  const ForwardParams cut = trimmed(p, MaskKind::window, 2);
  EXPECT_EQ(cut.k, k.data() + 46 * 8);
  EXPECT_EQ(cut.v, v.data() + 46 * 16);
  EXPECT_EQ(cut.len_k, 14);
  EXPECT_EQ(cut.left_offset, 0);
  EXPECT_EQ(cut.right_offset, 10);
  EXPECT_EQ(cut.q, p.q);
  EXPECT_EQ(trimmed(cut, MaskKind::window, 2).k, cut.k);
  FixedSizes sizes{.len_q = 4, .len_k = 60, .right_offset = 56, .left_offset = 46};
  sizes = trimmed(sizes, MaskKind::window);
  EXPECT_EQ(mask_bounds(sizes), mask_bounds(cut));
}

}  // namespace
}  // namespace heed
