/// What blocks of one launch hand to each other through the L2, in words of which each is valid by itself: relaxed
/// loads and stores at gpu scope, and a relaxed arrival; and a prefetch into the L2.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

namespace heed::ptx {

/// Four words, 16-byte aligned, if `wanted`, else `v` stays; each is read whole, in no order among them. A condition,
/// not a branch, so that several loads are under way at once.
__device__ __forceinline__ void ld_relaxed_gpu_v4(uint4& v, const unsigned* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %5, 0;\n"
      "@wanted ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(static_cast<int>(wanted))
      : "memory");
}

/// Writes them, likewise, if `wanted`.
__device__ __forceinline__ void st_relaxed_gpu_v4_if(bool wanted, unsigned* address, const uint4& v) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %0, 0;\n"
      "@wanted st.relaxed.gpu.global.v4.u32 [%1], {%2, %3, %4, %5};\n"
      "}\n" ::"r"(static_cast<int>(wanted)),
      "l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

__device__ __forceinline__ void st_relaxed_gpu_v2_if(bool wanted, unsigned* address, const uint2& v) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %0, 0;\n"
      "@wanted st.relaxed.gpu.global.v2.u32 [%1], {%2, %3};\n"
      "}\n" ::"r"(static_cast<int>(wanted)),
      "l"(address), "r"(v.x), "r"(v.y)
      : "memory");
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

/// Asks for `bytes` from an address on, both multiples of 16.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch
__device__ __forceinline__ void cp_async_bulk_prefetch_l2(const void* address, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
}

}  // namespace heed::ptx
