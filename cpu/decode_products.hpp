/// Products of a few query rows with rows of K and V, columns of the head dim in the lanes. Each vector of K or V is
/// read once for up to four query rows.
#pragma once

#include "cpu/simd.hpp"

namespace heed::cpu {

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorRegisters = 16;
#endif
/// Sums that a register tile holds: half the registers.
inline constexpr int kTileSums = kVectorRegisters / 2;

/// Rows of K or V as vectors of fp32. Two neighbouring bf16 are one 32-bit number, whose halves are fp32 after a shift
/// or a mask: two instructions for two vectors, where widening takes four, two of them on the one port of AVX-512 that
/// shuffles. Vectors 2 i and 2 i + 1 then hold the even and the odd ones of 2 kLanes columns.
/// @tparam kColumns a multiple of kLanes
template <Element kElement, int kColumns>
struct RowReader {
  using Memory = Stored<kElement>;
  static constexpr int kVectors = kColumns / kLanes;
  static constexpr int kBytes = kColumns * static_cast<int>(sizeof(Memory));
  static constexpr bool kHalves = kElement == Element::bf16;
  typedef unsigned UnalignedWords [[gnu::vector_size(kLanes * 4), gnu::may_alias, gnu::aligned(2)]];

  /// kCount vectors from number `first` on. Where kCount is even `first` is; one alone is the last.
  template <int kCount>
  [[gnu::always_inline]] static void load(const Memory* row, int first, Vec (&to)[kCount]) {
    if constexpr (kHalves && kCount % 2 == 0) {
      for (int i = 0; i < kCount; i += 2) {
        const UnsignedVec words = *reinterpret_cast<const UnalignedWords*>(row + (first + i) * kLanes);
        to[i] = (Vec)(words << 16);
        to[i + 1] = (Vec)(words & 0xffff0000U);
      }
    } else {
      for (int i = 0; i < kCount; ++i) to[i] = load_vector<kElement>(row + (first + i) * kLanes);
    }
  }

  /// Where column `column` is among all lanes of the vectors.
  static constexpr int place_of(int column) {
    constexpr int kPaired = kVectors / 2 * 2 * kLanes;
    if (!kHalves || column >= kPaired) return column;
    const int within = column % (2 * kLanes);
    return column - within + within % 2 * kLanes + within / 2;
  }
};

/// Fetches a row of so many bytes into the L2: 8% faster than into the L1, of which few fetches may be under way.
template <int kBytes>
[[gnu::always_inline]] inline void fetch_row(const void* row) {
  for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
}

/// Rows of a tile of K or V: one every `stride` elements, or, where they lie in pages, at offsets.
template <typename Memory, bool kPages>
struct TileRows {
  static constexpr bool kScattered = kPages;
  const Memory* first;
  long long stride;
  const long long* offsets;
  [[nodiscard, gnu::always_inline]] const Memory* at(int row) const {
    if constexpr (kPages)
      return first + offsets[row];
    else
      return first + row * stride;
  }
};

/// Lanes of b where bit kHalf of their number is set, of a elsewhere, plus the lanes kHalf away: in segments of 2 kHalf
/// lanes, half of the sum of a's, then of b's.
template <int kHalf, int... kLane>
[[gnu::always_inline]] inline Vec folded(Vec a, Vec b, Indices<kLane...>) {
  const Vec own = __builtin_shufflevector(a, b, ((kLane & kHalf) != 0 ? kLanes + kLane : kLane)...);
  const Vec other = __builtin_shufflevector(a, b, ((kLane & kHalf) != 0 ? kLanes + kLane - kHalf : kLane + kHalf)...);
  return own + other;
}

/// Lane i: the sum of the lanes of vectors[i].
template <int kHalf = kLanes / 2>
[[gnu::always_inline]] inline Vec sums_of_lanes(Vec* vectors) {
  for (int i = 0; i < kHalf; ++i) vectors[i] = folded<kHalf>(vectors[i], vectors[i + kHalf], LaneIndices{});
  if constexpr (kHalf > 1)
    return sums_of_lanes<kHalf / 2>(vectors);
  else
    return vectors[0];
}

template <int kShift, int... kLane>
[[gnu::always_inline]] inline Vec rotated(Vec x, Indices<kLane...>) {
  return __builtin_shufflevector(x, x, ((kLane + kShift) % kLanes)...);
}
/// The largest lane, in all of them.
template <int kShift = kLanes / 2>
[[gnu::always_inline]] inline Vec largest_lane(Vec x) {
  x = max(x, rotated<kShift>(x, LaneIndices{}));
  if constexpr (kShift > 1)
    return largest_lane<kShift / 2>(x);
  else
    return x;
}
template <int kShift = kLanes / 2>
[[gnu::always_inline]] inline Vec sum_of_lanes(Vec x) {
  x += rotated<kShift>(x, LaneIndices{});
  if constexpr (kShift > 1)
    return sum_of_lanes<kShift / 2>(x);
  else
    return x;
}

/// scores[r][j] = q_r . k_j for kRows query rows and keys [0, count): as many keys at once as fill the register tile.
/// What stands behind `count` in a row of scores, up to a multiple of 16, is overwritten.
/// @tparam kFetch rows fetched ahead of their use
/// @param query (kRows, query_stride), its columns in the reader's order
template <typename Reader, int kRows, int kFetch, typename Rows>
inline void dot_products(const float* query, int query_stride, const Rows& keys, int count, float* scores,
                         int score_stride) {
  constexpr int kKeys = kTileSums / kRows;
  constexpr int kPart = kKeys < kLanes ? kKeys : kLanes;
  typedef float Part [[gnu::vector_size(kPart * 4), gnu::may_alias, gnu::aligned(4)]];
  for (int j = 0; j < count; j += kKeys) {
    const typename Reader::Memory* rows[kKeys];
    for (int i = 0; i < kKeys; ++i) rows[i] = keys.at(j + i < count ? j + i : count - 1);
    if constexpr (kFetch > 0 && !Rows::kScattered)
      for (int i = 0; i < kKeys; ++i) fetch_row<Reader::kBytes>(rows[i] + kFetch * keys.stride);
    Vec sums[kTileSums] = {};  // row by row
    const auto step = [&]<int kCount>(int v, Vec(&key)[kCount]) __attribute__((always_inline)) {
      for (int i = 0; i < kKeys; ++i) {
        Reader::load(rows[i], v, key);
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kCount; ++c)
            sums[r * kKeys + i] += *reinterpret_cast<const Vec*>(query + r * query_stride + (v + c) * kLanes) * key[c];
      }
    };
    int v = 0;
    for (; v + 2 <= Reader::kVectors; v += 2) {
      Vec key[2];
      step(v, key);
    }
    if constexpr (Reader::kVectors % 2 != 0) {
      Vec key[1];
      step(v, key);
    }
    for (int s = 0; s < kTileSums; s += kLanes) {
      const Vec of_lanes = sums_of_lanes(sums + s);
      for (int p = 0; p < kLanes; p += kPart)
        *reinterpret_cast<Part*>(scores + (s + p) / kKeys * score_stride + j + (s + p) % kKeys) =
            reinterpret_cast<const Part*>(&of_lanes)[p / kPart];
    }
  }
}

/// kCount vectors of columns from number `first` on of out[r] += sum over keys [begin, end) of p[r][j] v_j.
template <typename Reader, int kRows, int kCount, int kFetch, typename Rows>
[[gnu::always_inline]] inline void add_columns(float* out, int out_stride, const float* weights, int weight_stride,
                                               const Rows& values, int begin, int end, int first) {
  Vec sums[kRows][kCount];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCount; ++c)
      sums[r][c] = *reinterpret_cast<const Vec*>(out + r * out_stride + (first + c) * kLanes);
  for (int j = begin; j < end; ++j) {
    Vec value[kCount];
    const auto* const row = values.at(j);
    if constexpr (kFetch > 0 && !Rows::kScattered)
      if (first == 0) fetch_row<Reader::kBytes>(row + kFetch * values.stride);
    Reader::load(row, first, value);
    for (int r = 0; r < kRows; ++r) {
      const float weight = weights[r * weight_stride + j];
      for (int c = 0; c < kCount; ++c) sums[r][c] += weight * value[c];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCount; ++c) *reinterpret_cast<Vec*>(out + r * out_stride + (first + c) * kLanes) = sums[r][c];
}

/// out[r] += sum over keys [begin, end) of p[r][j] v_j, for kRows rows.
template <typename Reader, int kRows, int kFetch, typename Rows>
inline void add_values(float* out, int out_stride, const float* weights, int weight_stride, const Rows& values,
                       int begin, int end) {
  constexpr int kMost = kTileSums / kRows < 8 ? kTileSums / kRows : 8;
  int first = 0;
  for (; first + kMost <= Reader::kVectors; first += kMost)
    add_columns<Reader, kRows, kMost, kFetch>(out, out_stride, weights, weight_stride, values, begin, end, first);
  for (; first + 2 <= Reader::kVectors; first += 2)
    add_columns<Reader, kRows, 2, kFetch>(out, out_stride, weights, weight_stride, values, begin, end, first);
  if constexpr (Reader::kVectors % 2 != 0)
    add_columns<Reader, kRows, 1, kFetch>(out, out_stride, weights, weight_stride, values, begin, end, first);
}

/// Calls f.template operator()<kRows>(row) for rows [row, end): four together, then two, then one.
template <typename Function>
[[gnu::always_inline]] inline void by_rows(int row, int end, const Function& f) {
  for (; row + 4 <= end; row += 4) f.template operator()<4>(row);
  if (row + 2 <= end) f.template operator()<2>(row), row += 2;
  if (row < end) f.template operator()<1>(row);
}

}  // namespace heed::cpu
