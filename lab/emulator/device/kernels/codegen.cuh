// Stand-ins for kernels/codegen.cuh.
#pragma once

#include "emulator/device/device.hpp"

namespace heed {

template <int kCount>
void keep_live(float (&)[kCount]) {}
template <class T>
void opaque(T*&) {}
inline void opaque(unsigned&) {}
inline void opaque(float&) {}
inline unsigned opaque_zero() {
  return 0;
}

}  // namespace heed
