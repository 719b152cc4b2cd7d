/// How a part of a Q tile sends the rows of its partial output to another part, and adds those that it receives: the
/// forms of MergeDtype.
///
/// In bits16 a part's normalised rows rounded to the type of O are rounded once more with the weighted sum: up to twice
/// the error of one rounding where the other part has nearly all of a row's weight, as it has where scores are peaked.
/// fixed16 and bits24 leave less than a sixteenth of that rounding.
///
///   fixed16   the row's value is v 2^(e - 141) (1 + 2^-15), v of -32767 to 32767 in two bytes as v + 32768. e is the
///             biased exponent of the largest value of the row's columns that the part sends, from the four lanes of a
///             quad, so |v| < 2^15 / (1 + 2^-15). Where one of a quad's two rows has an infinity or NaN, which no step
///             holds, both travel in the type of O.
///   bits24    sign, exponent and 15 bits behind the point: the first 16 bits of two columns in a word, and the 8 after
///             them of two columns of both rows in another.
#pragma once

#include "kernels/ptx/bytes.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/maximum.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/split/rows.cuh"

namespace heed::sm90_split {

/// Of two rows: exponents in the place of an fp32 number's, or kNotFixed.
struct Exponents {
  unsigned of[2];
  __device__ __forceinline__ const unsigned& operator[](int h) const { return of[h]; }
};
inline constexpr unsigned kNotFixed = 0x7F800000U;
inline constexpr unsigned kLeastExponent = 16U << 23;  // a step is a normal number
inline constexpr unsigned kMostExponent = 245U << 23;  // 2^23 steps are finite

/// @param part accumulators of the columns, four a tile: two of either row
template <int kRegisters>
__device__ __forceinline__ Exponents exponents_of(const float* part, const float (&inverse)[2]) {
  Exponents exponents;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = fabsf(part[2 * h]);
#pragma unroll
    for (int i = 1; i < kRegisters / 2; ++i) most = ptx::max_nan(most, fabsf(part[i / 2 * 4 + 2 * h + i % 2]));
    most = ptx::max_nan(most, __shfl_xor_sync(0xffffffffU, most, 1));
    most = ptx::max_nan(most, __shfl_xor_sync(0xffffffffU, most, 2));
    exponents.of[h] = __float_as_uint(most * inverse[h]) & kNotFixed;
    if (exponents.of[h] < kLeastExponent) exponents.of[h] = kLeastExponent;
  }
  if (exponents.of[0] > kMostExponent || exponents.of[1] > kMostExponent) exponents = {{kNotFixed, kNotFixed}};
  return exponents;
}

/// Steps that 1 is: 2^(141 - e) (1 - 2^-15).
__device__ __forceinline__ float steps_a_unit(unsigned exponent) {
  return __uint_as_float((267U << 23 | 0x7FFE00U) - exponent);
}

/// Two values as steps. 2^23 + 32768 is added, so the last 16 bits of the sum are theirs.
__device__ __forceinline__ unsigned steps_x2(float x, float y, float factor) {
  constexpr float kShift = 8388608.0F + 32768.0F;
  return ptx::prmt(__float_as_uint(fmaf(x, factor, kShift)), __float_as_uint(fmaf(y, factor, kShift)), 0x5410U);
}

__device__ __forceinline__ void of_steps_x2(float (&two)[2], unsigned word, unsigned exponent) {
  constexpr unsigned k2To23 = 0x4B000000U;
  const float step = __uint_as_float(exponent - (14U << 23) + 0x100U);                // 2^(e - 141) (1 + 2^-15)
  const float shift = __uint_as_float(exponent + (9U << 23) + 0x8101U + (1U << 31));  // -(2^23 + 32768) of it, exactly
  two[0] = fmaf(__uint_as_float(ptx::prmt(word, k2To23, 0x7610U)), step, shift);
  two[1] = fmaf(__uint_as_float(ptx::prmt(word, k2To23, 0x7632U)), step, shift);
}

/// The first 16 bits of two values.
__device__ __forceinline__ unsigned first_halves(float x, float y) {
  return ptx::prmt(__float_as_uint(x), __float_as_uint(y), 0x7632U);
}
/// The 8 bits behind those of four.
__device__ __forceinline__ unsigned last_bytes(float x0, float x1, float x2, float x3) {
  return ptx::prmt(ptx::prmt(__float_as_uint(x0), __float_as_uint(x1), 0x0051U),
                   ptx::prmt(__float_as_uint(x2), __float_as_uint(x3), 0x0051U), 0x5410U);
}
/// Row h's two values of both words; the bits that were left out are those before them, half of them on average.
__device__ __forceinline__ void of_bytes(float (&two)[2], unsigned first, unsigned last, int h) {
  two[0] = __uint_as_float(ptx::prmt(last, first, 0x5400U | 0x11U * (2 * h)));
  two[1] = __uint_as_float(ptx::prmt(last, first, 0x7600U | 0x11U * (2 * h + 1)));
}

/// Holds nothing: slices are given and taken in registers.
template <const Config& kConfig, const Problem& kProblem>
struct Exchange {
  using KeptRows = sm90_split::KeptRows<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kTiles = KeptRows::kTiles;
  static constexpr int kSliceRegisters = KeptRows::kSliceRegisters;
  static constexpr bool kRuns = KeptRows::kRuns;
  static constexpr int kNumSplits = num_splits(kConfig);
  static constexpr int kOutRegisters = out_columns(kConfig, kProblem.head_dim) / 2;
  static constexpr MergeDtype kSent = kConfig.merge_dtype;
  static constexpr bool kHalf = is_pairs(kSent);
  static constexpr int kPieces = sent_pieces(kSent, 8 * kTiles);  // of 16 bytes a thread
  static constexpr int kPieceBytes = piece_bytes();
  static constexpr bool kRemote = kConfig.cluster > 1;

  /// @param factor of each row: the reciprocal of its sum, with MergeDtype::fixed16 in steps
  template <MergeDtype kAs>
  __device__ __forceinline__ static void send_pieces(const float (&acc_o)[kOutRegisters], int slice,
                                                     const float (&factor)[2], unsigned to_piece, unsigned barrier) {
    // Register 4 t + i is row i / 2 of tile t. 16-bit pieces hold two tiles, or one row of four; of 24 bits the first
    // 16 do, and every third piece has the last 8 of four tiles.
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (kAs == MergeDtype::bits24) {
          const int first = 4 * (piece / 3);
          const bool is_last_bytes = piece % 3 == 2;
          const int tile = first + (kRuns || is_last_bytes ? w : piece % 3 * 2 + w / 2);
          const int half = kRuns ? piece % 3 % 2 : w % 2;
          const float* x = acc_o + slice * kSliceRegisters + 4 * tile;
          words[w] = is_last_bytes ? last_bytes(x[0] * factor[0], x[1] * factor[0], x[2] * factor[1], x[3] * factor[1])
                                   : first_halves(x[2 * half] * factor[half], x[2 * half + 1] * factor[half]);
        } else if constexpr (kHalf) {
          const int tile = kRuns ? piece / 2 * 4 + w : piece * 2 + w / 2;
          const int half = kRuns ? piece % 2 : w % 2;
          const int from = slice * kSliceRegisters + 4 * tile + 2 * half;
          if constexpr (kAs == MergeDtype::fixed16)
            words[w] = steps_x2(acc_o[from], acc_o[from + 1], factor[half]);
          else
            words[w] = ptx::cvt_rn_x2<kProblem.element>(acc_o[from] * factor[half], acc_o[from + 1] * factor[half]);
        } else {
          words[w] = __float_as_uint(acc_o[slice * kSliceRegisters + 4 * piece + w] * factor[w / 2]);
        }
      }
      if constexpr (kRemote)
        ptx::st_async_v4(to_piece + piece * kPieceBytes, words, barrier);
      else
        ptx::st_shared_v4(to_piece + piece * kPieceBytes, words[0], words[1], words[2], words[3]);
    }
  }

  /// Adds one sender's share of the kept slice; with MergeDtype::fixed16 it may be in the type of O.
  __device__ __forceinline__ static void add(float (&kept)[kSliceRegisters], unsigned first, const float (&its)[2],
                                             const Exponents& exponents) {
    if constexpr (kSent == MergeDtype::fixed16)
      if (exponents[0] == kNotFixed) [[unlikely]] {
        add_as<MergeDtype::bits16>(kept, first, its, exponents);
        return;
      }
    add_as<kSent>(kept, first, its, exponents);
  }
  template <MergeDtype kAs>
  __device__ __forceinline__ static void add_as(float (&kept)[kSliceRegisters], unsigned first, const float (&its)[2],
                                                const Exponents& exponents) {
    if constexpr (kRuns)
      add_runs<kAs>(kept, first, its, exponents);
    else
      add_pieces<kAs>(kept, first, its, exponents);
  }

  /// Adds one sender's share, which lies as the lane's accumulators do.
  template <MergeDtype kAs>
  __device__ __forceinline__ static void add_pieces(float (&kept)[kSliceRegisters], unsigned first,
                                                    const float (&its)[2], const Exponents& exponents) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (kAs == MergeDtype::bits24 && piece % 3 == 2) continue;
      unsigned words[4];
      unsigned last[4];
      ptx::ld_shared_v4(words, first + piece * kPieceBytes);
      if constexpr (kAs == MergeDtype::bits24) ptx::ld_shared_v4(last, first + (piece / 3 * 3 + 2) * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float two[2];
        if constexpr (kAs == MergeDtype::bits24) {
          const int tile = piece % 3 * 2 + w / 2;
          of_bytes(two, words[w], last[tile], w % 2);
          float* x = kept + 16 * (piece / 3) + 4 * tile + 2 * (w % 2);
          x[0] = fmaf(two[0], its[w % 2], x[0]);
          x[1] = fmaf(two[1], its[w % 2], x[1]);
        } else if constexpr (kHalf) {
          float* x = kept + 8 * piece + 2 * w;
          if constexpr (kAs == MergeDtype::fixed16) {
            of_steps_x2(two, words[w], exponents[w % 2]);
            x[0] = fmaf(two[0], its[w % 2], x[0]);
            x[1] = fmaf(two[1], its[w % 2], x[1]);
          } else {
            x[0] = fmaf(ptx::unpack_low<kProblem.element>(words[w]), its[w % 2], x[0]);
            x[1] = fmaf(ptx::unpack_high<kProblem.element>(words[w]), its[w % 2], x[1]);
          }
        } else {
          kept[4 * piece + w] = fmaf(__uint_as_float(words[w]), its[w / 2], kept[4 * piece + w]);
        }
      }
    }
  }

  /// Adds one sender's share of runs, from the four lanes of a quad; of two parts the own one is weighed, too.
  /// @param first the first word of the lane's first run
  template <MergeDtype kAs>
  __device__ __forceinline__ static void add_runs(float (&kept)[kSliceRegisters], unsigned first, const float (&its)[2],
                                                  const Exponents& exponents) {
#pragma unroll
    for (int g = 0; g < kTiles / 4; ++g)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // of the lane that holds columns 2 j and 2 j + 1
          float two[2];
          if constexpr (kAs == MergeDtype::bits24) {
            of_bytes(two, ptx::ld_shared(first + (3 * g + h) * kPieceBytes + 16 * j),
                     ptx::ld_shared(first + (3 * g + 2) * kPieceBytes + 16 * j), h);
          } else if constexpr (kHalf) {
            const unsigned word = ptx::ld_shared(first + (2 * g + h) * kPieceBytes + 16 * j);
            if constexpr (kAs == MergeDtype::fixed16) {
              of_steps_x2(two, word, exponents[h]);
            } else {
              two[0] = ptx::unpack_low<kProblem.element>(word);
              two[1] = ptx::unpack_high<kProblem.element>(word);
            }
          } else {
            ptx::ld_shared_v2(two, first + 4 * g * kPieceBytes + 16 * j + 8 * h);
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = kept[8 * (2 * g + h) + 2 * j + i];
            // Of two parts the shares add up to 1: the difference is there before they are known.
            x = fmaf(kNumSplits == 2 ? two[i] - x : two[i], its[h], x);
          }
        }
  }
};

}  // namespace heed::sm90_split
