// Stand-ins for kernels/ptx/global.cuh. Blocks run one after the other, so that an arrival is an addition.
#pragma once

#include "kernels/ptx/memory.cuh"

namespace heed::ptx {

inline float4 ld_global_cg_v4(const float* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) throw std::logic_error("a 16-byte load is not aligned");
  return {address[0], address[1], address[2], address[3]};
}
inline float2 ld_global_cg_v2(const float* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 8 != 0) throw std::logic_error("an 8-byte load is not aligned");
  return {address[0], address[1]};
}
inline void st_global(void* address, unsigned x) {
  if (reinterpret_cast<std::uintptr_t>(address) % 4 != 0) throw std::logic_error("a 4-byte store is not aligned");
  std::memcpy(address, &x, sizeof x);
}
inline void st_global_v4(void* address, const unsigned (&x)[4]) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) throw std::logic_error("a 16-byte store is not aligned");
  std::memcpy(address, x, sizeof x);
}
inline void st_global_cs(void* address, unsigned x) {
  st_global(address, x);
}
inline void st_global_cs_v4(void* address, const unsigned (&x)[4]) {
  st_global_v4(address, x);
}
inline void st_global_if(bool wanted, float* address, float x) {
  if (wanted) *address = x;
}
inline void st_global_v2_if(bool wanted, void* address, const uint2& x) {
  if (wanted) std::memcpy(address, &x, 8);
}
inline unsigned atom_inc_acq_rel_gpu(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
template <int kFetchBytes>
void cp_async_cg_16_fetch(unsigned shared, unsigned long long global, int bytes) {
  cp_async_cg_16(shared, reinterpret_cast<const void*>(global), bytes);
}

}  // namespace heed::ptx
