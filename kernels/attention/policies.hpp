/// Policies of the softmax that families share as knobs. No device code: the host reads their names from here.
#pragma once

namespace heed::attention {

/// How 2^x is computed (kernels/attention/exp2.cuh).
enum class Exp2 {
  hardware,      ///< ex2.approx.ftz.f32: 16 a clock and multiprocessor on sm_80 to sm_90
  poly_quarter,  ///< one value in four by a polynomial on the FMA pipe
  poly_half,     ///< every second value by the polynomial
};

/// When the partial output is multiplied by 2^(old row maximum - new row maximum) (kernels/attention/softmax.cuh).
enum class Rescale {
  always,
  when_grown,   ///< only if a row maximum of the warp grew
  conditional,  ///< only if one grew by more than 2^8: until then the old maximum stays the row maximum
                ///< (FlashAttention-4's rule; exact, since softmax does not depend on the value subtracted and 2^8 is
                ///< far from fp16's 65504)
  stale_tile,   ///< never, unless a tile's probabilities leave the range of 16 bits: the row maximum of the first tile
                ///< is kept without looking at maxima; such a tile is taken again, like the first one (stale_tile_fits)
};

/// Which probabilities a row's sum is of, and what adds them up.
///
/// P V takes probabilities rounded to 16 bits. Where a row's maximum is subtracted, the largest one is 1 and rounds to
/// itself. Below a stale row maximum the probability of a key that outweighs all others is rounded like any, by up to
/// 2^-11 of itself in fp16 and 2^-8 in bf16, and so is the row, unless the sum it is divided by is of rounded ones too:
/// the row is then the value of that key. The log-sum-exp is that of the sum, and is off by that much instead.
enum class Rowsum {
  fadd,          ///< as the exponentials give them: an addition in fp32 each
  fadd_rounded,  ///< as P V takes them: unpacked, and an addition each
  mma,           ///< as P V takes them, by the tensor cores: V gets columns of ones
};

}  // namespace heed::attention
