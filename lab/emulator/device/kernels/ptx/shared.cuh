// Stand-ins for kernels/ptx/shared.cuh.
#pragma once

#include <cstring>
#include <stdexcept>
#include <vector>

#include "emulator/device/device.hpp"

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
inline void st_matrix_x4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  struct Store {
    unsigned registers[4];
    unsigned address;
  } mine{{x, y, z, w}, address};
  if (address % 16 != 0) throw std::logic_error("stmatrix to an address that is not aligned");
  emulator::meet("stmatrix", emulator::own_warp(), emulator::lane(), 32, &mine, [](std::vector<void*>& all) {
    for (unsigned i = 0; i < 32; ++i)
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const unsigned to = static_cast<Store*>(all[8 * matrix + i / 4])->address + 4 * (i % 4);
        std::memcpy(emulator::pointer_to(to, 4), &static_cast<Store*>(all[i])->registers[matrix], 4);
      }
  });
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
template <int kBytes>
void st_shared_bytes(unsigned address, unsigned x) {
  std::memcpy(emulator::pointer_to(address, kBytes), &x, kBytes);
}
inline unsigned ld_shared_u16(unsigned address) {
  unsigned x = 0;
  std::memcpy(&x, emulator::pointer_to(address, 2), 2);
  return x;
}
inline void ld_shared_v4(unsigned (&x)[4], unsigned address) {
  std::memcpy(x, emulator::pointer_to(address, 16), 16);
}
inline void ld_shared_v2(float (&x)[2], unsigned address) {
  std::memcpy(x, emulator::pointer_to(address, 8), 8);
}

}  // namespace heed::ptx
