/// Bulk copies of bytes in a row, and what it takes to copy what other blocks of the launch have written (sm_90).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
#pragma once

namespace heed::ptx {

/// Starts a copy of `bytes`, a multiple of 16, to shared memory; they count on `barrier`. Addresses are multiples
/// of 16. One thread.
__device__ __forceinline__ void cp_async_bulk(unsigned shared, const void* global, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Orders this thread's earlier accesses to global memory, and those that it has heard of, before later ones by the
/// copy engine: after the writes, and again in front of the copies.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Waits until a word of global memory is `value`; what was written before it was is visible then.
__device__ __forceinline__ void wait_for_word(const unsigned* word, unsigned value) {
  unsigned read;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(read) : "l"(word) : "memory");
  } while (read != value);
}

}  // namespace heed::ptx
