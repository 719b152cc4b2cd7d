// Stand-ins for kernels/ptx/bytes.cuh.
#pragma once

#include "emulator/device/device.hpp"
#include "kernels/eight_bits.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::ptx {

inline unsigned cvt_rn_satfinite_e4m3_x4(float x0, float x1, float x2, float x3) {
  unsigned packed = 0;
  int i = 0;
  for (const float x : {x0, x1, x2, x3}) packed |= static_cast<unsigned>(float_to_e4m3(x)) << 8 * i++;
  return packed;
}
inline unsigned cvt_rn_f16x2_e4m3x2_low(unsigned packed) {
  return cvt_rn_x2<Element::fp16>(e4m3_to_float(static_cast<unsigned char>(packed & 0xffU)),
                                  e4m3_to_float(static_cast<unsigned char>(packed >> 8 & 0xffU)));
}
inline unsigned cvt_rn_f16x2_e4m3x2_high(unsigned packed) {
  return cvt_rn_f16x2_e4m3x2_low(packed >> 16);
}
inline unsigned prmt(unsigned x, unsigned y, unsigned selector) {
  unsigned z = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> 4 * i & 7U;
    unsigned byte = (from < 4 ? x : y) >> 8 * (from % 4) & 0xffU;
    if ((selector >> 4 * i & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xffU : 0;
    z |= byte << 8 * i;
  }
  return z;
}

}  // namespace heed::ptx
