// Stand-ins for kernels/ptx/shared.cuh.
#pragma once

#include <cstring>

#include "device.hpp"

namespace heed::ptx {

inline void st_shared_v4(unsigned address, unsigned x) {
  const unsigned four[4] = {x, x, x, x};
  std::memcpy(emulator::pointer_to(address, 16), four, 16);
}
inline void st_shared_v4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  const unsigned four[4] = {x, y, z, w};
  std::memcpy(emulator::pointer_to(address, 16), four, 16);
}
inline void st_shared(unsigned address, unsigned x) {
  std::memcpy(emulator::pointer_to(address, 4), &x, 4);
}
inline void st_shared_v2(unsigned address, float x, float y) {
  const float two[2] = {x, y};
  std::memcpy(emulator::pointer_to(address, 8), two, 8);
}
inline unsigned ld_shared(unsigned address) {
  unsigned x;
  std::memcpy(&x, emulator::pointer_to(address, 4), 4);
  return x;
}
inline void ld_shared_v4(unsigned (&x)[4], unsigned address) {
  std::memcpy(x, emulator::pointer_to(address, 16), 16);
}
inline void ld_shared_v2(float (&x)[2], unsigned address) {
  std::memcpy(x, emulator::pointer_to(address, 8), 8);
}

}  // namespace heed::ptx
