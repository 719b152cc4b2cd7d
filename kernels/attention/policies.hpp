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

}  // namespace heed::attention
