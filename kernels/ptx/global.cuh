/// Global memory as blocks of one launch share it: loads past L1, arrival at a counter, copies with a prefetch size.
/// PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

namespace heed::ptx {

/// Four floats from the L2, past an L1 that may hold what was there before another block wrote. 16-byte aligned.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-operators
__device__ __forceinline__ float4 ld_global_cg_v4(const float* address) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

/// Two floats, 8-byte aligned.
__device__ __forceinline__ float2 ld_global_cg_v2(const float* address) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(address) : "memory");
  return v;
}

/// Writes 4 bytes. As one instruction: a compiler may split what it sees as four values.
__device__ __forceinline__ void st_global(void* address, unsigned x) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

/// Writes 16 bytes, 16-byte aligned.
__device__ __forceinline__ void st_global_v4(void* address, const unsigned (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

/// Writes 4 bytes that the L2 may give up before others.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-operators
__device__ __forceinline__ void st_global_cs(void* address, unsigned x) {
  asm volatile("st.global.cs.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

/// Writes 16 bytes that the L2 may give up before others, 16-byte aligned.
__device__ __forceinline__ void st_global_cs_v4(void* address, const unsigned (&x)[4]) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

/// Writes a float where `wanted`, as one predicated instruction.
__device__ __forceinline__ void st_global_if(bool wanted, float* address, float x) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p st.global.f32 [%1], %2;\n"
      "}\n" ::"r"(static_cast<unsigned>(wanted)),
      "l"(address), "f"(x)
      : "memory");
}

/// Writes 8 bytes, 8-byte aligned, likewise.
__device__ __forceinline__ void st_global_v2_if(bool wanted, void* address, const uint2& x) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p st.global.v2.b32 [%1], {%2, %3};\n"
      "}\n" ::"r"(static_cast<unsigned>(wanted)),
      "l"(address), "r"(x.x), "r"(x.y)
      : "memory");
}

/// Adds one to a counter, or puts it back to 0 once it has reached `last`; gives the value before. What this thread
/// wrote or saw written before (its block's writes, after a block barrier) is visible to whoever acquires the new
/// value; what was written before the value read is visible to this thread afterwards, and after a barrier to its
/// block.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
__device__ __forceinline__ unsigned atom_inc_acq_rel_gpu(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

/// cp.async of 16 bytes past L1, `bytes` of them read and the rest zeros, with a hint of how much the L2 should fetch:
/// 0 (no hint), 128 or 256 bytes.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
template <int kFetchBytes>
__device__ __forceinline__ void cp_async_cg_16_fetch(unsigned shared, unsigned long long global, int bytes) {
  static_assert(kFetchBytes == 0 || kFetchBytes == 128 || kFetchBytes == 256, "the sizes the instruction knows");
  if constexpr (kFetchBytes == 0)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  else if constexpr (kFetchBytes == 128)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
}

}  // namespace heed::ptx
