/// Barriers in shared memory that count arrivals and bytes, one instruction a function (sm_90; what counts no bytes
/// sm_80).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
#pragma once

namespace heed::ptx {

/// A phase ends when `arrivals` threads have arrived and all expected bytes are there. 8 bytes, aligned.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes the barriers this thread initialised visible to the copy engine and to the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives, and lets the phase wait for `bytes` more.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Before sm_90 a thread cannot sleep at a barrier: it asks again and again.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HEED_MBARRIER_WAIT "mbarrier.try_wait"
#else
#define HEED_MBARRIER_WAIT "mbarrier.test_wait"
#endif

/// Waits until the phase of this parity has ended: 0 for the first, 1 for the second, ...
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n" HEED_MBARRIER_WAIT
      ".parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Arrives once all of this thread's cp.async so far have written: one of the arrivals that the barrier was initialised
/// with.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Arrives if `wanted`: a condition, not a branch, which would keep its place among the exponentials.
__device__ __forceinline__ void mbarrier_arrive_if(bool wanted, unsigned barrier) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %0, 0;\n"
      "@wanted mbarrier.arrive.shared::cta.b64 _, [%1];\n"
      "}\n" ::"r"(static_cast<int>(wanted)),
      "r"(barrier)
      : "memory");
}

/// Whether the phase of this parity has ended: not 0 if so. What was written before its arrivals is visible then.
__device__ __forceinline__ unsigned mbarrier_test(unsigned barrier, unsigned parity) {
  unsigned ended;
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ended;\n"
      "}\n"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended;
}

/// Waits as above, unless mbarrier_test of the same phase has said that it has ended.
__device__ __forceinline__ void mbarrier_wait_unless(unsigned ended, unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "setp.ne.u32 done, %2, 0;\n"
      "@done bra over;\n"
      "again:\n" HEED_MBARRIER_WAIT
      ".parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "over:\n"
      "}\n" ::"r"(barrier),
      "r"(parity), "r"(ended)
      : "memory");
}

#undef HEED_MBARRIER_WAIT

}  // namespace heed::ptx
