/// A kernel's grid (kernels/attention/tile_scheduler.hpp) as a launch plan has it.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/attention/tile_scheduler.hpp"

namespace heed {

inline std::array<std::uint32_t, 3> plan_grid(const attention::Grid3& grid) {
  return {grid.x, grid.y, grid.z};
}

}  // namespace heed
