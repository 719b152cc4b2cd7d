/// The stages of rows: several rows a warp at a time, 8 elements of one a lane, and the loads of a few such steps
/// before the first of them is used, in vectors where rows are wide (TensorPass::is_wide). A warp has 2 KiB on the way
/// then and a multiprocessor of an H200, with 16 warps of 116 registers, 32 KiB; 25 KiB cover its memory's latency (4.8
/// TB/s over 132, 700 ns).
#pragma once

#include "kernels/ptx/bytes.cuh"
#include "lib/quantise/divided.cuh"
#include "lib/quantise/quantise_rows.cuh"

namespace heed::quantise {

inline constexpr int kWide = 8;  ///< elements of a row that a lane holds

/// How lanes of a warp share rows: a row has the least power of two of lanes that holds it.
struct WideLanes {
  int of_row;
  int rows;    ///< that a warp takes at a time
  int row;     ///< the lane's
  int column;  ///< the lane's first
};
__device__ __forceinline__ WideLanes wide_lanes(int to_dim, int lane) {
  int of_row = 1;
  while (of_row * kWide < to_dim) of_row *= 2;
  return {of_row, 32 / of_row, lane / of_row, lane % of_row * kWide};
}

/// 16 bytes of a row from `column` on; zeros past the head dim.
/// @param at of the row's first element, in elements
__device__ __forceinline__ uint4 load_wide(const TensorPass& t, long long at, int column) {
  uint4 words = {};
  if (column >= t.dim) return words;
  if (t.is_wide != 0) {
    const long long bytes = (at + column) * (t.element == static_cast<int>(Element::fp32) ? 4 : 2);
    return *reinterpret_cast<const uint4*>(static_cast<const char*>(t.from) + bytes);
  }
  // One element after the other, in loops: unrolled they took the registers of a block more a multiprocessor.
  const bool is_fp32 = t.element == static_cast<int>(Element::fp32);
  const int of_half = is_fp32 ? 2 : 4;
  const int width = 64 / of_half;
  unsigned long long halves[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 1
    for (int i = 0; i < of_half; ++i) {
      const int own = column + half * of_half + i;
      unsigned long long element = 0;
      if (own < t.dim) {
        const long long from = at + own * t.from_step;
        element =
            is_fp32 ? static_cast<const unsigned*>(t.from)[from] : static_cast<const unsigned short*>(t.from)[from];
      }
      halves[half] = halves[half] >> width | element << (64 - width);
    }
  }
  return {static_cast<unsigned>(halves[0]), static_cast<unsigned>(halves[0] >> 32), static_cast<unsigned>(halves[1]),
          static_cast<unsigned>(halves[1] >> 32)};
}

__device__ __forceinline__ void unpack_wide(const uint4& first, const uint4& second, int element, float (&x)[kWide]) {
  const unsigned words[kWide] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  if (element == static_cast<int>(Element::fp32)) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[i] = detail::float_of_bits(words[i]);
  } else if (element == static_cast<int>(Element::bf16)) {
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      x[i] = i % 2 == 0 ? ptx::unpack_low<Element::bf16>(words[i / 2]) : ptx::unpack_high<Element::bf16>(words[i / 2]);
  } else {
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      x[i] = i % 2 == 0 ? ptx::unpack_low<Element::fp16>(words[i / 2]) : ptx::unpack_high<Element::fp16>(words[i / 2]);
  }
}

__device__ __forceinline__ uint4 selected(bool is_first, const uint4& first, const uint4& second) {
  return {is_first ? first.x : second.x, is_first ? first.y : second.y, is_first ? first.z : second.z,
          is_first ? first.w : second.w};
}

/// body(row, is_there, number, x) for the rows of a warp in steps of lanes.rows, by all lanes; past the last row x is
/// zeros. number(row) is asked together with the loads of the row. Four vectors of 16 bytes are on the way: 4 steps, or
/// 2 of fp32. The body is there once, for a step that is chosen of those four: unrolled it made a program of 0.6 MB.
template <class Number, class Body>
__device__ __forceinline__ void for_wide_rows(const TensorPass& t, const WarpRows& w, const WideLanes& lanes,
                                              const Number& number, const Body& body) {
  const int element = t.element;
  const bool is_fp32 = element == static_cast<int>(Element::fp32);
  const int ahead = is_fp32 ? 2 : 4;
  const int rows = lanes.rows;
#pragma unroll 1
  for (int base = w.begin; base < w.end; base += ahead * rows) {
    uint4 words[4];
    unsigned numbers[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // fp32: vectors 0 and 1 of the first step, then those of the second.
      const int row = base + (is_fp32 ? i / 2 : i) * rows + lanes.row;
      words[i] = {};
      if (row < w.end)
        words[i] = load_wide(t, offset_of(t.from_strides, w.rows.first, w.entry, w.head, row),
                             lanes.column + (is_fp32 ? i % 2 * 4 : 0));
      const int of_step = base + i * rows + lanes.row;
      numbers[i] = i < ahead && of_step < w.end ? number(of_step) : 0U;
    }
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) {
      const int row = base + i * rows + lanes.row;
      if (base + i * rows >= w.end) break;
      const uint4 even = selected(i == 0, words[0], words[2]);
      const uint4 odd = selected(is_fp32 ? i == 0 : i == 1, words[1], words[3]);
      float x[kWide];
      unpack_wide(selected(is_fp32 || i % 2 == 0, even, odd), odd, element, x);
      body(row, row < w.end, i < 2 ? numbers[i == 0 ? 0 : 1] : numbers[i == 2 ? 2 : 3], x);
    }
  }
}

/// What becomes of a row before its magnitudes are taken, as `prepare`: numbers that all rows of a warp share.
struct WidePrepared {
  float mean[kWide];  ///< of the columns of K; zeros where neither K nor the shift of a row of Q asks for it
  unsigned signs;     ///< bit i: column i changes its sign
  float norm;
  int dim;  ///< of a rotation; 0: none
  bool is_smoothed;
};
__device__ __forceinline__ WidePrepared wide_prepared(const Pass& pass, const TensorPass& t, int column,
                                                      bool is_smoothed, const float* mean) {
  WidePrepared p;
#pragma unroll
  for (int i = 0; i < kWide; ++i) p.mean[i] = mean != nullptr && column + i < t.dim ? mean[column + i] : 0.0F;
  p.signs = column < t.dim ? pass.signs[column / 32] >> (column % 32) : 0U;
  p.norm = pass.norm;
  p.dim = t.is_rotated != 0 ? t.dim : 0;
  p.is_smoothed = is_smoothed;
  return p;
}

/// rotate_lane's sums in its order: element i and i + half.
__device__ __forceinline__ void prepare_wide(const WidePrepared& p, int lane, float (&x)[kWide]) {
  if (p.is_smoothed) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[i] -= p.mean[i];
  }
  if (p.dim == 0) return;
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    x[i] = detail::float_of_bits(detail::bits_of_float(x[i]) ^ ((p.signs << (31 - i)) & 0x80000000U));
#pragma unroll
  for (int half = 1; half < kWide; half *= 2) {
    if (half >= p.dim) break;
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      if ((i & half) == 0) {
        const float sum = x[i] + x[i + half];
        x[i + half] = x[i] - x[i + half];
        x[i] = sum;
      }
  }
#pragma unroll 1
  for (int lanes = 1; lanes * kWide < p.dim; lanes *= 2) {
    const float sign = (lane & lanes) == 0 ? 1.0F : -1.0F;  // exact as a factor
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(kWarp, x[i], lanes));
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) x[i] = __fmul_rn(x[i], p.norm);
}

/// Raises the largest magnitudes of what shares a factor. Lanes keep what they know of columns until a row of the warp
/// has another factor.
__device__ __forceinline__ void find_largest_wide(const Pass& pass, const TensorPass& t, const WarpRows& w,
                                                  const WideLanes& lanes, bool is_smoothed, int lane) {
  const WidePrepared prepared =
      wide_prepared(pass, t, lanes.column, is_smoothed, is_smoothed ? mean_of(pass, w.entry, w.head) : nullptr);
  const int to_element = t.to_element;
  const bool by_rows = t.scales.strides.row != 0;
  long long index = by_rows ? -1 : factor_index(t.scales, w.rows.first, w.entry, w.head, 0);
  unsigned most[kWide] = {};
  const auto flush = [&] {
    if (t.scales.channel != 0) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
#pragma unroll 1
        for (int others = lanes.of_row; others < 32; others *= 2) {
          const unsigned other = __shfl_xor_sync(kWarp, most[i], others);
          most[i] = most[i] > other ? most[i] : other;
        }
        if (lanes.row == 0 && most[i] != 0) atomicMax(t.largest + index + lanes.column + i, most[i]);
      }
      return;
    }
    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      all = all > most[i] ? all : most[i];
      most[i] = 0;
    }
    // All rows of a warp share a factor of their head; of factors of rows the lanes of a row share one.
#pragma unroll 1
    for (int others = by_rows ? lanes.of_row / 2 : 16; others > 0; others /= 2) {
      const unsigned other = __shfl_xor_sync(kWarp, all, others);
      all = all > other ? all : other;
    }
    if ((by_rows ? lanes.column : lane) == 0 && all != 0) atomicMax(t.largest + index, all);
  };
  for_wide_rows(
      t, w, lanes, [](int) { return 0U; },
      [&](int row, bool is_there, unsigned, float(&x)[kWide]) {
        prepare_wide(prepared, lane, x);
        if (by_rows) {
          const long long own = is_there ? factor_index(t.scales, w.rows.first, w.entry, w.head, row) : index;
          if (__any_sync(kWarp, own != index)) flush();
          index = own;
        }
        if (!is_there) return;  // zeros without the mean
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const unsigned magnitude = magnitude_of(x[i], to_element);
          most[i] = most[i] > magnitude ? most[i] : magnitude;
        }
      });
  flush();
}

/// Four elements, the first in the lowest byte. From sm_89 on e4m3 is converted by cvt.rn.satfinite.e4m3x2, to nearest
/// even and with saturation as float_to_e4m3. NaN, which it makes 0x7f, is 0x7f here too: one that element_of puts for
/// what is no number is positive, and so is one that a GPU computes.
__device__ __forceinline__ unsigned e4m3_of_four(float x0, float x1, float x2, float x3) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  return ptx::cvt_rn_satfinite_e4m3_x4(x0, x1, x2, x3);
#else
  return static_cast<unsigned>(float_to_e4m3(x0)) | static_cast<unsigned>(float_to_e4m3(x1)) << 8 |
         static_cast<unsigned>(float_to_e4m3(x2)) << 16 | static_cast<unsigned>(float_to_e4m3(x3)) << 24;
#endif
}

/// element_of of eight values, of what `divided` made of them.
__device__ __forceinline__ uint2 wide_elements(const float (&x)[kWide], float (&q)[kWide], int to_element) {
  unsigned words[2] = {};
  if (to_element == static_cast<int>(Element::int8)) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) words[i / 4] |= static_cast<unsigned>(float_to_int8(q[i])) << (8 * (i % 4));
  } else {
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      q[i] = (detail::bits_of_float(x[i]) & 0x7fffffffU) < 0x7f800000U ? q[i] : detail::float_of_bits(kNan);
    if (to_element == static_cast<int>(Element::e5m2)) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) words[i / 4] |= static_cast<unsigned>(float_to_e5m2(q[i])) << (8 * (i % 4));
    } else {
      words[0] = e4m3_of_four(q[0], q[1], q[2], q[3]);
      words[1] = e4m3_of_four(q[4], q[5], q[6], q[7]);
    }
  }
  return {words[0], words[1]};
}

/// Bits of a tensor's factors, or of the largest magnitudes of which they are made.
__device__ __forceinline__ const unsigned* wide_numbers(const TensorPass& t) {
  return t.largest == nullptr ? reinterpret_cast<const unsigned*>(t.factors) : t.largest;
}
__device__ __forceinline__ float wide_factor(const TensorPass& t, unsigned number) {
  return t.largest == nullptr ? detail::float_of_bits(number) : wide_factor_of(number, t.to_element);
}

/// q.mean of a row in the order of a host: kEach products at a time, these sums by halves of a warp whose lanes have
/// kEach each, so that a lane here adds up for kWide / kEach of those. Lanes past the head dim had zeros to add.
template <int kEach>
__device__ __forceinline__ float wide_sum(const float (&x)[kWide], const float (&mean)[kWide], int of_row) {
  constexpr int kSums = kWide / kEach;
  float sums[kSums];
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    sums[s] = 0.0F;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[s] = __fadd_rn(sums[s], __fmul_rn(x[s * kEach + i], mean[s * kEach + i]));
  }
#pragma unroll 1
  for (int lanes = of_row / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = __fadd_rn(sums[s], __shfl_xor_sync(kWarp, sums[s], lanes));
  }
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
#pragma unroll
    for (int s = 0; s < half; ++s) sums[s] = __fadd_rn(sums[s], sums[s + half]);
  }
  return sums[0];
}

/// Where elements of a lane's columns go; past the head dim they are zeros, whatever the factor.
struct WideTarget {
  unsigned char* at;  ///< of row 0
  long long row;
  uint2 kept;   ///< bytes that the head dim has
  int columns;  ///< of the lane, up to to_dim
  bool whole;   ///< whether 8 bytes can be written at once
};
__device__ __forceinline__ WideTarget wide_target(const TensorPass& t, const WarpRows& w, int column) {
  WideTarget target;
  target.at = t.to + offset_of(t.to_strides, w.rows.first, w.entry, w.head, 0) + column;
  target.row = t.to_strides.row;
  const int left = t.dim - column;
  const auto bytes = [](int count) { return count <= 0 ? 0U : count >= 4 ? ~0U : (1U << (8 * count)) - 1U; };
  target.kept = {bytes(left), bytes(left - 4)};
  target.columns = t.to_dim - column;
  const auto lies = static_cast<long long>(reinterpret_cast<unsigned long long>(target.at)) | target.row;
  target.whole = target.columns >= kWide && lies % kWide == 0;
  return target;
}
__device__ __forceinline__ void store_wide(const WideTarget& target, int row, uint2 words) {
  words = {words.x & target.kept.x, words.y & target.kept.y};
  unsigned char* const to = target.at + row * target.row;
  if (target.whole) {
    *reinterpret_cast<uint2*>(to) = words;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    if (i < target.columns) to[i] = static_cast<unsigned char>((i < 4 ? words.x : words.y) >> (8 * (i % 4)));
}

/// Elements of rows whose columns share factors. A reciprocal is kept while rows have the same factor.
__device__ __forceinline__ void write_wide(const Pass& pass, const TensorPass& t, const WarpRows& w,
                                           const WideLanes& lanes, bool is_smoothed, bool are_queries, int lane) {
  const bool has_shift = are_queries && pass.shift != nullptr;
  const float* const mean = is_smoothed ? mean_of(pass, w.entry, w.head)
                            : has_shift ? mean_of(pass, w.entry, w.head / (pass.q.heads / pass.k.heads))
                                        : nullptr;
  const WidePrepared prepared = wide_prepared(pass, t, lanes.column, is_smoothed, mean);
  const int to_element = t.to_element;
  const bool by_rows = t.scales.strides.row != 0;
  const unsigned* const numbers = wide_numbers(t);
  const unsigned shared = by_rows ? 0 : numbers[factor_index(t.scales, w.rows.first, w.entry, w.head, 0)];
  Divisor divisor = {};
  unsigned known = 0;
  bool is_known = false;
  const WideTarget target = wide_target(t, w, lanes.column);
  for_wide_rows(
      t, w, lanes,
      [&](int row) { return by_rows ? numbers[factor_index(t.scales, w.rows.first, w.entry, w.head, row)] : shared; },
      [&](int row, bool is_there, unsigned number, float(&x)[kWide]) {
        if (has_shift) {
          const int each = elements_of_lane(t.to_dim);
          const float sum = each == 2   ? wide_sum<2>(x, prepared.mean, lanes.of_row)
                            : each == 4 ? wide_sum<4>(x, prepared.mean, lanes.of_row)
                                        : wide_sum<8>(x, prepared.mean, lanes.of_row);
          if (is_there && lanes.column == 0)
            pass.shift[shift_index(pass, w.rows.first, w.entry, w.head, row)] = pass.scale * sum;
        }
        prepare_wide(prepared, lane, x);
        if (!is_there || lanes.column >= t.to_dim) return;
        if (!is_known || number != known) {
          is_known = true;
          known = number;
          divisor = divisor_of(wide_factor(t, number));
        }
        float q[kWide];
#pragma unroll
        for (int i = 0; i < kWide; ++i) q[i] = divided(x[i], divisor);
        store_wide(target, row, wide_elements(x, q, to_element));
      });
}

/// Of V where columns have factors of their own: it is as it was given.
__device__ __forceinline__ void write_wide_channels(const TensorPass& t, const WarpRows& w, const WideLanes& lanes) {
  const int to_element = t.to_element;
  const unsigned* const numbers =
      wide_numbers(t) + factor_index(t.scales, w.rows.first, w.entry, w.head, 0) + lanes.column;
  Divisor divisors[kWide];
#pragma unroll
  for (int i = 0; i < kWide; ++i) divisors[i] = divisor_of(wide_factor(t, lanes.column + i < t.dim ? numbers[i] : 0U));
  const WideTarget target = wide_target(t, w, lanes.column);
  for_wide_rows(
      t, w, lanes, [](int) { return 0U; },
      [&](int row, bool is_there, unsigned, float(&x)[kWide]) {
        if (!is_there || lanes.column >= t.to_dim) return;
        float q[kWide];
#pragma unroll
        for (int i = 0; i < kWide; ++i) q[i] = divided(x[i], divisors[i]);
        store_wide(target, row, wide_elements(x, q, to_element));
      });
}

}  // namespace heed::quantise
