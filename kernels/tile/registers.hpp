/// How many registers a thread may have so that blocks fit a multiprocessor. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/contract.hpp"

namespace heed::tile {

inline constexpr int kMostRegisters = 255;     ///< that an instruction can name
inline constexpr int kProducerRegisters = 24;  ///< the least setmaxnreg takes

/// Registers a thread has at launch so that `blocks` blocks fit. A multiprocessor's 65,536 registers are four quarters
/// that hold every fourth warp: 9 warps take the room of 12.
HEED_HOST_DEVICE constexpr int registers_at_launch(int threads, int blocks) {
  const int warps_a_quarter = (threads / 32 * blocks + 3) / 4;
  const int registers = 16384 / (32 * warps_a_quarter) / 8 * 8;
  return registers < kMostRegisters ? registers : kMostRegisters;
}

/// Registers of a consumer thread once a warpgroup of `threads` - `consumers` producers has given its own back
/// (setmaxnreg, which takes 240 at most).
HEED_HOST_DEVICE constexpr int registers_of_consumers(int at_launch, int threads, int consumers) {
  const int shared = (at_launch * threads - kProducerRegisters * (threads - consumers)) / consumers / 8 * 8;
  return shared < 240 ? shared : 240;
}

/// Registers a thread of `c` has at launch so that min_blocks blocks fit.
template <typename Config>
HEED_HOST_DEVICE constexpr int launch_registers(const Config& c) {
  return registers_at_launch(threads(c), c.min_blocks);
}

/// Whether registers move from the producers to the consumers: not where every thread has as many as it can name.
template <typename Config>
HEED_HOST_DEVICE constexpr bool moves_registers(const Config& c) {
  return c.producer == decltype(c.producer)::warpgroup && launch_registers(c) < kMostRegisters;
}

/// Registers a consumer thread of `c` may use: its share of what the producers give back, if they do.
template <typename Config>
HEED_HOST_DEVICE constexpr int registers_allowed(const Config& c) {
  return moves_registers(c) ? registers_of_consumers(launch_registers(c), threads(c), consumer_threads(c))
                            : launch_registers(c);
}

/// Registers that one product names: ptxas counts accumulators of the wider operand, and 30 more, against those a
/// thread has at launch (C7602).
HEED_HOST_DEVICE constexpr int registers_named(int columns) {
  return columns / 2 + 30;
}

}  // namespace heed::tile
