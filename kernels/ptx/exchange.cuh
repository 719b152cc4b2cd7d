/// What blocks of one launch hand to each other through the L2, in words of which each is valid by itself: relaxed
/// loads and stores at gpu scope, and a relaxed arrival; and a prefetch into the L2.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

namespace heed::ptx {

/// Four words, 16-byte aligned; each is read whole, in no order among them.
__device__ __forceinline__ uint4 ld_relaxed_gpu_v4(const unsigned* address) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

/// Two words, 8-byte aligned.
__device__ __forceinline__ uint2 ld_relaxed_gpu_v2(const unsigned* address) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address) : "memory");
  return v;
}

__device__ __forceinline__ void st_relaxed_gpu_v4(unsigned* address, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void st_relaxed_gpu_v2(unsigned* address, const uint2& v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}

/// Adds one to a counter, or puts it back to 0 once it has reached `last`; gives the value before. Orders nothing.
__device__ __forceinline__ unsigned atom_inc_relaxed_gpu(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

/// Asks for the 128 bytes around an address.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

}  // namespace heed::ptx
