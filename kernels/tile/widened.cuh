/// Registers of 8-bit elements as pairs in fp16, the operands of mma.m16n8k16. Every number of e4m3, e5m2 and int8 is
/// one of fp16, so that nothing is rounded; NaN and infinity stay.
///
/// Instructions for four elements, of their own type and as even and odd ones:
///
///     e4m3   2 conversions, from sm_89 on                         3, with a permutation
///            14 without: exponents moved in place, times 2^8      14
///     e5m2   2 permutations: a byte is the upper half of fp16     2
///     int8   5: the byte plus 128 is the fraction of 1024..1279   5
///
/// Numeric conversion of FP8 in registers after Micikevicius et al., arXiv 2209.05433; int8 by an added exponent after
/// Kim et al., arXiv 2211.10017.
#pragma once

#include "kernels/contract.hpp"
#include "kernels/ptx/bytes.cuh"
#include "kernels/ptx/half.cuh"
#include "kernels/ptx/math.cuh"

namespace heed::tile {

namespace detail {

/// Which bytes of a register two results take; a byte of 0 or of an exponent lies beside each.
struct Halves {
  unsigned first;
  unsigned second;
};
inline constexpr Halves kNeighboursAbove = {0x1404, 0x3424};  ///< as upper halves: 0, 1 and 2, 3
inline constexpr Halves kAlternateAbove = {0x2404, 0x3414};   ///< 0, 2 and 1, 3
inline constexpr Halves kNeighboursBelow = {0x4140, 0x4342};  ///< as lower halves
inline constexpr Halves kAlternateBelow = {0x4240, 0x4341};

/// int8 whose bytes are each 128 too large, as fp16.
__device__ __forceinline__ unsigned fp16_of_shifted(unsigned shifted, unsigned bytes) {
  constexpr unsigned kExponents = 0x64646464U;  // 1024
  constexpr unsigned kMinus1152 = 0xe480e480U;  // 1024 + 128, of both
  return ptx::add_rn_f16x2(ptx::prmt(shifted, kExponents, bytes), kMinus1152);
}

/// e4m3 in the upper halves of fp16 as fp16. Its exponents are 8 too small there, subnormal numbers too. NaN, all ones
/// below the sign, is the one whose addition carries into the highest exponent bit.
__device__ __forceinline__ unsigned fp16_of_e4m3(unsigned above) {
  constexpr unsigned kTimes256 = 0x5c005c00U;
  const unsigned magnitude = (above >> 1) & 0x3f803f80U;
  const unsigned is_nan = (magnitude + 0x00800080U) & 0x40004000U;
  return ptx::mul_rn_f16x2((above & 0x80008000U) | magnitude | is_nan, kTimes256);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr bool kConvertsE4m3 = false;
#else
inline constexpr bool kConvertsE4m3 = true;
#endif

}  // namespace detail

/// Elements 0 and 1 of a register, and 2 and 3.
/// @tparam kConverts e4m3 by the conversion of sm_89
template <Element kElement, bool kConverts = detail::kConvertsE4m3>
__device__ __forceinline__ void widen(unsigned& first, unsigned& second, unsigned bytes) {
  if constexpr (kElement == Element::e4m3 && !kConverts) {
    first = detail::fp16_of_e4m3(ptx::prmt(bytes, 0U, detail::kNeighboursAbove.first));
    second = detail::fp16_of_e4m3(ptx::prmt(bytes, 0U, detail::kNeighboursAbove.second));
  } else if constexpr (kElement == Element::e4m3) {
    first = ptx::cvt_rn_f16x2_e4m3x2_low(bytes);
    second = ptx::cvt_rn_f16x2_e4m3x2_high(bytes);
  } else if constexpr (kElement == Element::e5m2) {
    first = ptx::prmt(bytes, 0U, detail::kNeighboursAbove.first);
    second = ptx::prmt(bytes, 0U, detail::kNeighboursAbove.second);
  } else {
    static_assert(kElement == Element::int8);
    const unsigned shifted = bytes ^ 0x80808080U;
    first = detail::fp16_of_shifted(shifted, detail::kNeighboursBelow.first);
    second = detail::fp16_of_shifted(shifted, detail::kNeighboursBelow.second);
  }
}

/// Elements 0 and 2 of a register, and 1 and 3.
template <Element kElement, bool kConverts = detail::kConvertsE4m3>
__device__ __forceinline__ void widen_alternate(unsigned& even, unsigned& odd, unsigned bytes) {
  if constexpr (kElement == Element::e4m3) {
    widen<kElement, kConverts>(even, odd, ptx::prmt(bytes, 0U, 0x3120U));
  } else if constexpr (kElement == Element::e5m2) {
    even = ptx::prmt(bytes, 0U, detail::kAlternateAbove.first);
    odd = ptx::prmt(bytes, 0U, detail::kAlternateAbove.second);
  } else {
    static_assert(kElement == Element::int8);
    const unsigned shifted = bytes ^ 0x80808080U;
    even = detail::fp16_of_shifted(shifted, detail::kAlternateBelow.first);
    odd = detail::fp16_of_shifted(shifted, detail::kAlternateBelow.second);
  }
}

}  // namespace heed::tile
