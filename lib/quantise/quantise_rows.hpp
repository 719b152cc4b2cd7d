/// Tensors of fp16, bf16 or fp32 made quantised ones: what the pass is told, and what it computes, on every device.
///
///     mean[c]   = sum of K[j, c] over the keys that some row sees / their number        smoothing
///     x'        = (x - mean) S H / sqrt(dim)    of Q without the mean                    rotation
///     factor    = largest |x'| of those that share it / largest element
///     element   = x' / factor, rounded to nearest even
///
/// S are signs and H is the Hadamard matrix of the head dim, the same for Q and K. Sums of a channel are double, 128
/// keys at a time in their order, then these sums in theirs; all else is fp32, one rounding an operation: so that all
/// devices give the same bits.
///
/// NaN and infinity are no numbers of a scale. In e4m3 and e5m2 each becomes NaN (they have none or saturate), so that
/// it shows where the 16-bit value would have; int8 has neither, and there the factor of what shares one with it is
/// NaN. Sums of channels leave them out, and so count them as zeros of the mean. Where all that shares a factor is
/// zero, the factor is 1.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/eight_bits.hpp"

namespace heed::quantise {

inline constexpr int kMostDim = 512;
inline constexpr int kChunkRows = 128;  ///< that are summed before they are added to the others
inline constexpr int kSignWords = kMostDim / 32;

/// Which rows of Q, and of K and V, the entries of a batch have, and which keys some row of an entry sees. Those of
/// others are not read and not written.
struct Rows {
  const int* cu_seqlens_q;  ///< (batch + 1); null: entries have tensors' own rows
  const int* cu_seqlens_k;  ///< likewise
  const int* seqused_k;     ///< (batch); null: all
  const int* prefix_lengths;
  int batch;
  int len_q;  ///< the most
  int len_k;
  int total_q;  ///< rows of the one tensor, where entries share it
  int total_k;
  int mask;  ///< a MaskKind
  int left_offset;
  int right_offset;
  int aligned_to_the_end;
};

/// One of Q, K and V.
struct TensorPass {
  const void* from;
  unsigned char* to;  ///< rows of to_dim elements, dense; those from dim on are zeros
  float* factors;
  unsigned* largest;  ///< as many words as factors, 0 before the pass; null: `factors` are given
  TensorStrides from_strides;
  TensorStrides to_strides;
  TensorScales scales;  ///< where a factor lies, without an address
  long long from_step;  ///< from one element of a row to the next
  long long count;      ///< of factors that the pass finds; 0 where they are given
  int element;          ///< of `from`: fp16, bf16 or fp32
  int to_element;       ///< e4m3, e5m2 or int8
  int heads;
  int dim;
  int to_dim;
  int are_keys;    ///< else rows of Q
  int is_rotated;  ///< Q and K
  int is_wide;     ///< whether rows are whole vectors of 8 elements that lie at multiples of 16 bytes
};

/// Values of one tensor that quantising loses (is_lost).
struct Lost {
  unsigned long long count;
  unsigned long long first;  ///< the least ((entry * heads + head) * most_rows + row) * dim + column of one
};
inline constexpr unsigned long long kNoneLost = ~0ULL;  ///< `first` where `count` is 0

/// The parameter of the entry `heed_quantise`. Tensors that are not quantised have no `to`.
struct Pass {
  TensorPass q;
  TensorPass k;
  TensorPass v;
  Rows rows;
  double* sums;  ///< (batch, heads_kv, chunks, dim) of K; null: no smoothing
  float* mean;   ///< (batch, heads_kv, dim)
  float* shift;  ///< what the log-sum-exp of each row of Q lacks, laid out as it; null: nobody wants it
  float* lse;    ///< of Stage::lse
  long long shift_count;
  float scale;                 ///< of scores
  float norm;                  ///< of a rotation: 1 / sqrt(dim)
  int stage;                   ///< a Stage
  unsigned signs[kSignWords];  ///< bit i: column i changes its sign
  Lost* lost;                  ///< of Q, K and V, {0, kNoneLost} before Stage::lost; null: nobody wants it
};

/// One launch each, in this order. `sums` and `means` of passes that smooth; `lse` after attention, of those that
/// smooth where the log-sum-exp is wanted; `lost` any time after `largest`, in debug mode.
enum class Stage { sums, means, largest, elements, lse, lost };

/// The rows of an entry that are quantised, [begin, end), and the row of the tensor that its row 0 is.
struct EntryRows {
  long long first;
  int begin;
  int end;
};

HEED_HOST_DEVICE inline EntryRows rows_of(const Rows& r, bool are_keys, int entry) {
  const auto of_shared = [](const int* begins, int at, int most, int total, int& length) -> long long {
    const int begin = clamped(begins[at], 0, total);
    length = clamped(clamped(begins[at + 1], 0, total) - begin, 0, most);
    return begin;
  };
  int len_q = r.len_q, len_k = r.len_k;
  long long first_q = 0, first_k = 0;
  if (r.cu_seqlens_q != nullptr) first_q = of_shared(r.cu_seqlens_q, entry, r.len_q, r.total_q, len_q);
  if (!are_keys) return {first_q, 0, len_q};
  if (r.cu_seqlens_k != nullptr) first_k = of_shared(r.cu_seqlens_k, entry, r.len_k, r.total_k, len_k);
  if (r.seqused_k != nullptr) len_k = clamped(r.seqused_k[entry], 0, len_k);
  if (len_q == 0) return {first_k, 0, 0};
  const int moved = r.aligned_to_the_end != 0 ? (len_k - len_q) - (r.len_k - r.len_q) : 0;
  const KeySpan seen =
      key_span(static_cast<MaskKind>(r.mask), {r.left_offset + moved, r.right_offset + moved, len_k}, 0, len_q);
  int end = seen.end;
  if (r.prefix_lengths != nullptr) {
    const int prefix = clamped(r.prefix_lengths[entry], 0, len_k);
    end = end < prefix ? prefix : end;
  }
  return {first_k, seen.begin < end ? seen.begin : end, end};
}

/// Rows of Q, or of K and V, that an entry has at most.
HEED_HOST_DEVICE constexpr int most_rows(const Rows& r, bool are_keys) {
  return are_keys ? r.len_k : r.len_q;
}
HEED_HOST_DEVICE constexpr int chunks_of(int rows) {
  return (rows + kChunkRows - 1) / kChunkRows;
}

/// Where row `row` of an entry lies: by strides of the tensor, whose batch stride is 0 where entries share it.
HEED_HOST_DEVICE constexpr long long offset_of(const TensorStrides& s, long long first, int entry, int head, int row) {
  return entry * s.batch + head * s.head + (first + row) * s.row;
}

/// The index of the factor of a row, of column 0 where columns have their own.
HEED_HOST_DEVICE inline long long factor_index(const TensorScales& s, long long first, int entry, int head, int row) {
  return s.strides.row == 0 ? entry * s.strides.batch + head * s.strides.head
                            : scale_index(s, entry, head, static_cast<int>(first) + row);
}

inline constexpr unsigned kNan = 0x7fc00000U;

/// A value's magnitude as bits that order as numbers do; what is no number counts as 0, or in int8 as NaN.
HEED_HOST_DEVICE constexpr unsigned magnitude_of(float x, int to_element) {
  const unsigned bits = detail::bits_of_float(x) & 0x7fffffffU;
  if (bits < 0x7f800000U) return bits;
  return to_element == static_cast<int>(Element::int8) ? kNan : 0U;
}

HEED_HOST_DEVICE constexpr float largest_element(int to_element) {
  return to_element == static_cast<int>(Element::e4m3)   ? 448.0F
         : to_element == static_cast<int>(Element::e5m2) ? 57344.0F
                                                         : 127.0F;
}

/// The factor of values whose largest magnitude has these bits: positive, or NaN.
HEED_HOST_DEVICE inline float factor_of(unsigned largest, int to_element) {
  if (largest == 0) return 1.0F;
  constexpr float kLeast = 0x1.0p-126F;  // of normal numbers
  const float factor = detail::float_of_bits(largest) / largest_element(to_element);
  return factor < kLeast ? kLeast : factor;
}

HEED_HOST_DEVICE inline unsigned char element_of(float x, float factor, int to_element) {
  if (to_element == static_cast<int>(Element::int8)) return float_to_int8(x / factor);
  const bool is_number = (detail::bits_of_float(x) & 0x7f800000U) != 0x7f800000U;
  const float scaled = is_number ? x / factor : detail::float_of_bits(kNan);
  return to_element == static_cast<int>(Element::e4m3) ? float_to_e4m3(scaled) : float_to_e5m2(scaled);
}

/// Factor `index` of a tensor: of its largest magnitude, or as it was given.
HEED_HOST_DEVICE inline float factor_at(const TensorPass& t, long long index) {
  return t.largest == nullptr ? t.factors[index] : factor_of(t.largest[index], t.to_element);
}

/// Whether a value in units of its factor lies beyond the elements, so that the nearest one is off by more than half a
/// step: 448 and half of 32, 57344 and half of 8192.
HEED_HOST_DEVICE constexpr bool saturates(float scaled, int to_element) {
  if (to_element == static_cast<int>(Element::int8)) return scaled > 127.5F || scaled < -128.5F;
  const float most = to_element == static_cast<int>(Element::e4m3) ? 464.0F : 61440.0F;
  return scaled > most || scaled < -most;
}

HEED_HOST_DEVICE constexpr bool is_infinite(float x) {
  return (detail::bits_of_float(x) & 0x7fffffffU) == 0x7f800000U;
}

/// Whether a value is lost: it is infinite, or becomes so where the mean is taken out or its row is rotated, or its
/// element saturates, which it does not beside a factor of the largest magnitude. NaN is not: it shows as it does
/// without quantising.
/// @param prepared without the mean and rotated
HEED_HOST_DEVICE inline bool is_lost(float given, float prepared, float factor, int to_element) {
  if (given != given) return false;
  return is_infinite(given) || is_infinite(prepared) || saturates(prepared / factor, to_element);
}

/// Lost::first of one value.
HEED_HOST_DEVICE constexpr unsigned long long lost_index(const Rows& r, const TensorPass& t, int entry, int head,
                                                         int row, int column) {
  const auto of_head =
      static_cast<unsigned long long>(entry) * static_cast<unsigned>(t.heads) + static_cast<unsigned>(head);
  const auto of_row = of_head * static_cast<unsigned>(t.are_keys != 0 ? r.len_k : r.len_q) + static_cast<unsigned>(row);
  return of_row * static_cast<unsigned>(t.dim) + static_cast<unsigned>(column);
}

HEED_HOST_DEVICE constexpr bool changes_sign(const unsigned (&signs)[kSignWords], int column) {
  return (signs[column / 32] >> (column % 32) & 1U) != 0;
}

/// Where the log-sum-exp of a row of Q lies, (batch, heads, len_q), or (heads, total_q) where entries share a tensor.
HEED_HOST_DEVICE constexpr long long shift_index(const Pass& p, long long first, int entry, int head, int row) {
  return p.rows.cu_seqlens_q != nullptr ? static_cast<long long>(head) * p.rows.total_q + first + row
                                        : (static_cast<long long>(entry) * p.q.heads + head) * p.rows.len_q + row;
}

/// A log-sum-exp with what the mean of K took from it. That of a row without keys stays.
HEED_HOST_DEVICE constexpr float shifted(float lse, float shift) {
  return detail::bits_of_float(lse) == 0xff800000U ? lse : lse + shift;
}

inline constexpr int kQuantiseThreads = 256;
inline constexpr int kRowsOfWarp = 32;  ///< of a head, that a warp takes one after the other

/// Elements of a row that a lane of a warp holds, one behind the other.
HEED_HOST_DEVICE constexpr int elements_of_lane(int to_dim) {
  return to_dim <= 64 ? 2 : to_dim <= 128 ? 4 : to_dim <= 256 ? 8 : 16;
}

}  // namespace heed::quantise
