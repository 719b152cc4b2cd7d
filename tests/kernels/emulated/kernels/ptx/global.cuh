/// kernels/ptx/global.cuh on the host. Blocks run one after the other, so that an arrival is an addition.
#pragma once

#include "device.hpp"

namespace heed::ptx {

inline float4 ld_global_cg_v4(const float* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) emulated::block().fail("a 16-byte load is not aligned");
  return {address[0], address[1], address[2], address[3]};
}
inline float2 ld_global_cg_v2(const float* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 8 != 0) emulated::block().fail("an 8-byte load is not aligned");
  return {address[0], address[1]};
}
inline unsigned atom_inc_acq_rel_gpu(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
template <int kFetchBytes>
void cp_async_cg_16_fetch(unsigned shared, unsigned long long global, int bytes) {
  emulated::block().start_copy(shared, reinterpret_cast<const void*>(global), bytes);
}

}  // namespace heed::ptx
