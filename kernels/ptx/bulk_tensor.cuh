/// Bulk copies of tensor boxes between global and shared memory (the tensor memory accelerator), one instruction a
/// function (sm_90).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-bulk-tensor-copy
#pragma once

#include "kernels/contract.hpp"

namespace heed::ptx {

/// Starts a copy of one box to shared memory; its bytes count on `barrier`. Coordinates as in TensorMaps. One thread.
__device__ __forceinline__ void cp_async_bulk_tensor_4d(unsigned shared, const TensorMap& map, unsigned barrier,
                                                        int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// What tells the L2 to give up a line before others. The value is the same for all of a kernel.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-createpolicy
__device__ __forceinline__ unsigned long long createpolicy_evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// cp_async_bulk_tensor_4d with a policy for the lines of the L2 it passes through.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_hint(unsigned shared, const TensorMap& map, unsigned barrier,
                                                             int column, int row, int head, int batch,
                                                             unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Orders this thread's earlier writes to shared memory before later reads by the copy engine and the tensor cores.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace heed::ptx
