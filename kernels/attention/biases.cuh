/// Biases of scores in accumulator fragments (kernels/attention/score_rows.cuh): how a warp reads them, and what a
/// score becomes.
///
/// A lane that reads the two columns of its own, 8 t + 2 (lane % 4) + i, asks for 4 bytes of 16 bits each: 8 rows of 16
/// bytes an instruction, half a sector of each, and as many instructions as there are pairs. At b8h16l1024d64 the L1
/// then took 271 us for what takes 62 without a bias (H200). So a lane reads four neighbouring columns, and lanes 2 i
/// and 2 i + 1 exchange halves:
///
///   lane % 4             0          1          2          3
///   reads of tiles t, u  t 0..3     u 0..3     t 4..7     u 4..7      (u = t + 1; columns of a tile)
///   needs                t, u 0..1  t, u 2..3  t, u 4..5  t, u 6..7
///
/// Four columns of 16 bits are 8 bytes a lane and a whole sector of each row, at an eighth of the addresses.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/element.hpp"
#include "kernels/ptx/bytes.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// A bias, of the bits of its element type, as it is added to a score; -inf where it hides the score, which is also
/// what values at or below the most negative finite number of their type do. NaN is no such value.
template <BiasElement kElement>
__device__ __forceinline__ float bias_of(unsigned bits) {
  if constexpr (kElement == BiasElement::boolean) {
    return bits != 0 ? 0.0F : -kInfinity;
  } else if constexpr (kElement == BiasElement::fp32) {
    const float x = __uint_as_float(bits);
    return x <= BiasTraits<kElement>::lowest ? -kInfinity : x;
  } else {
    const float x = ptx::unpack_low<BiasTraits<kElement>::element>(bits);
    return x <= BiasTraits<kElement>::lowest ? -kInfinity : x;
  }
}

template <BiasElement kElement>
__device__ __forceinline__ unsigned bits_of_bias(const char* from) {
  constexpr int kBytes = BiasTraits<kElement>::bytes;
  if constexpr (kBytes == 1)
    return *reinterpret_cast<const unsigned char*>(from);
  else if constexpr (kBytes == 2)
    return *reinterpret_cast<const unsigned short*>(from);
  else
    return *reinterpret_cast<const unsigned*>(from);
}
template <BiasElement kElement>
__device__ __forceinline__ float read_bias(const char* from) {
  return bias_of<kElement>(bits_of_bias<kElement>(from));
}

/// What a score becomes, whatever a hidden one was.
__device__ __forceinline__ float biased(float score, float bias) {
  return bias == -kInfinity ? -kInfinity : fmaf(bias, kLog2e, score);
}

/// The same of two neighbouring columns, whose biases are the low and the high half of `pair`: bytes, or 16 bits each.
/// @tparam kHides false: of bf16 sums alone, which of finite scores are minus infinity where they are hidden: the
/// lowest number times log2(e) is none of fp32 (hide_biased_columns). A test of a pair and what it selects are 72
/// instructions a tile of 64 x 64 of a warp, of 569.
template <BiasElement kElement, bool kHides>
__device__ __forceinline__ void add_pair(float& first, float& second, unsigned pair) {
  if constexpr (kElement == BiasElement::boolean) {
    ptx::keep_where_any(first, pair & 0xffU, -kInfinity);
    ptx::keep_where_any(second, pair & 0xff00U, -kInfinity);
  } else if constexpr (kElement == BiasElement::bf16 && !kHides) {
    first = fmaf(ptx::unpack_low<Element::bf16>(pair), kLog2e, first);
    second = fmaf(ptx::unpack_high<Element::bf16>(pair), kLog2e, second);
  } else {
    ptx::fma_where_above<BiasTraits<kElement>::element>(
        first, second, pair, (BiasTraits<kElement>::minus_infinity - 1) * 0x10001U, kLog2e, -kInfinity);
  }
}

/// Words of one row's biases of a tile with kColumns columns, as a lane has read them: of 8 or 16 bits. Of 32 bits
/// there is none: a lane's own two columns are 8 bytes already.
template <int kColumns>
struct BiasWords {
  unsigned word[kColumns / 8];
};

/// Where in a row of a tile a lane begins to read.
template <int kBytes>
__device__ __forceinline__ int first_bias_byte(int quarter) {
  return kBytes == 4 ? 8 * quarter : (8 * (quarter % 2) + 4 * (quarter / 2)) * kBytes;
}

/// Asks for the biases of a tile's row, of kBytes bytes each, all at once.
/// @param from where the lane begins (first_bias_byte), aligned to four elements
template <int kBytes, int kColumns>
__device__ __forceinline__ void read_bias_words(BiasWords<kColumns>& words, const char* from) {
  static_assert(kBytes < 4);
#pragma unroll
  for (int g = 0; g < kColumns / 16; ++g) {
    if constexpr (kBytes == 2) {
      const uint2 both = *reinterpret_cast<const uint2*>(from + 32 * g);
      words.word[2 * g] = both.x;
      words.word[2 * g + 1] = both.y;
    } else {
      words.word[g] = *reinterpret_cast<const unsigned*>(from + 16 * g);
    }
  }
}

/// Adds them to row h of the scores. Every lane of the warp takes part.
template <BiasElement kElement, int kRegisters>
__device__ __forceinline__ void add_bias_words(float (&s)[kRegisters], int h, const BiasWords<2 * kRegisters>& words) {
  const bool odd = threadIdx.x % 2 != 0;
#pragma unroll
  for (int g = 0; g < kRegisters / 8; ++g) {
    unsigned even_tile;
    unsigned odd_tile;
    if constexpr (kElement == BiasElement::boolean) {
      const unsigned mine = words.word[g];
      const unsigned both = ptx::prmt(mine, __shfl_xor_sync(0xffffffffU, mine, 1), odd ? 0x3276U : 0x5410U);
      even_tile = both;
      odd_tile = both >> 16;
    } else {
      const unsigned low = words.word[2 * g];
      const unsigned high = words.word[2 * g + 1];
      const unsigned theirs = __shfl_xor_sync(0xffffffffU, odd ? low : high, 1);
      even_tile = odd ? theirs : low;
      odd_tile = odd ? high : theirs;
    }
    add_pair<kElement, true>(s[8 * g + 2 * h], s[8 * g + 2 * h + 1], even_tile);
    add_pair<kElement, true>(s[8 * g + 4 + 2 * h], s[8 * g + 4 + 2 * h + 1], odd_tile);
  }
}

/// Adds biases of 32 bits to row h of the scores: two columns at once, and all are read before the first is used.
/// @param from the bias of the lane's first column, aligned to two elements
template <bool kHides = true, int kRegisters>
__device__ __forceinline__ void add_bias_floats(float (&s)[kRegisters], int h, const char* from) {
  uint2 both[kRegisters / 4];
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t) both[t] = *reinterpret_cast<const uint2*>(from + 32 * t);
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t) {
    const float biases[2] = {__uint_as_float(both[t].x), __uint_as_float(both[t].y)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& x = s[4 * t + 2 * h + i];
      if constexpr (kHides)
        ptx::fma_where_above(x, biases[i], BiasTraits<BiasElement::fp32>::lowest, kLog2e, -kInfinity);
      else
        x = fmaf(biases[i], kLog2e, x);
    }
  }
}

/// Whether a bias of these bits hides a score: the most negative finite number of its type, or minus infinity, which is
/// the next.
template <BiasElement kElement>
__device__ __forceinline__ bool hides(unsigned bits) {
  static_assert(kElement == BiasElement::bf16 || kElement == BiasElement::fp32);
  return bits - (BiasTraits<kElement>::minus_infinity - 1) <= 1;
}

/// Hides what biases hide of row h of scores that they have been added to already, of keys at any distance.
/// @param row the bias of the row's first key
/// @param step bytes from one key to the next
/// @param first the key of the lane's first column
/// @param last the last key there is
template <BiasElement kElement, int kRegisters>
__device__ __forceinline__ void hide_biased_columns(float (&s)[kRegisters], int h, const char* row, long long step,
                                                    int first, int last) {
#pragma unroll
  for (int i = 0; i < kRegisters / 2; ++i) {
    float& x = s[i / 2 * 4 + 2 * h + i % 2];
    // Under a condition each: all at once they take as many registers.
    if (x != -kInfinity && hides<kElement>(bits_of_bias<kElement>(row + min(first + i / 2 * 8 + i % 2, last) * step)))
      x = -kInfinity;
  }
}

/// Adds biases to row h of scores, of keys at any distance.
/// @param row the bias of the row's first key
/// @param step bytes from one key to the next
/// @param first the key of the lane's first column
/// @param last the last key there is
template <BiasElement kElement, int kRegisters>
__device__ __forceinline__ void add_bias_columns(float (&s)[kRegisters], int h, const char* row, long long step,
                                                 int first, int last) {
  const char* const from = row + first * step;
#pragma unroll
  for (int i = 0; i < kRegisters / 2; ++i) {
    const int column = i / 2 * 8 + i % 2;
    float& x = s[i / 2 * 4 + 2 * h + i % 2];
    if (first + column <= last) x = biased(x, read_bias<kElement>(from + column * step));
  }
}

}  // namespace heed::attention
