/// What keeps the compiler from moving, merging or working out anew; no instruction but one. The ledger says whether a
/// program needs it (docs/ledger.md).
#pragma once

namespace heed {

/// Keeps reads of registers behind an instruction that wrote them asynchronously: after ptx::wgmma_wait_group(), or the
/// compiler may move them in front of it.
template <int kCount>
__device__ __forceinline__ void keep_live(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// A value of which the compiler does not know where it comes from: it is worked out here, once, and kept.
template <class T>
__device__ __forceinline__ void opaque(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}
__device__ __forceinline__ void opaque(unsigned& x) {
  asm volatile("" : "+r"(x));
}
__device__ __forceinline__ void opaque(float& x) {
  asm volatile("" : "+f"(x));
}

/// Zero, of which the compiler does not know that it is the same for every thread. With it as an index a parameter is
/// read by a load of the thread's own, out of lines of constants that other such loads have fetched; a uniform load
/// waits some 100 clocks for a line that no uniform load has read before.
__device__ __forceinline__ unsigned opaque_zero() {
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane / 32;
}

}  // namespace heed
