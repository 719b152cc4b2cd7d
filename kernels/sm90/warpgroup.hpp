/// Consumer warpgroups, as every Hopper family for many rows has them.
#pragma once

namespace heed::sm90 {

inline constexpr int kWarpgroupRows = 64;  ///< of an accumulator, and of Q: the M of wgmma
inline constexpr int kWarpgroupThreads = 128;

/// Whether consumer warpgroups take turns at the tensor cores (FlashAttention-3, 3.1).
enum class Pingpong {
  off,  ///< GEMMs are issued as soon as their operands are there
  on,   ///< and after those of the warpgroup before it, so that the softmax of one runs beside the GEMMs of the others
};

}  // namespace heed::sm90
