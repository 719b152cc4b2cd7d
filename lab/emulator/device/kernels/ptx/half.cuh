// Stand-ins for kernels/ptx/half.cuh.
#pragma once

#include "emulator/device/device.hpp"

namespace heed::ptx {

inline unsigned mul_rn_f16x2(unsigned x, unsigned y) {
  const auto half = [&](int at) {
    return emulator::load_16(false, reinterpret_cast<const std::byte*>(&x) + at) *
           emulator::load_16(false, reinterpret_cast<const std::byte*>(&y) + at);
  };
  return emulator::round_16(false, half(0)) | static_cast<unsigned>(emulator::round_16(false, half(2))) << 16;
}

}  // namespace heed::ptx
