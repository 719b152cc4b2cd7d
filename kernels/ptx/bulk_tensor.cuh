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

/// As cp_async_bulk_tensor_4d, to the same place in the shared memory of every block of the cluster whose rank is a bit
/// of `ranks`; the bytes count on each block's barrier at the address of `barrier` in this one.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_multicast(unsigned shared, const TensorMap& map,
                                                                  unsigned barrier, int column, int row, int head,
                                                                  int batch, unsigned short ranks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(ranks)
      : "memory");
}

/// As cp_async_bulk_tensor_4d; the L2 gives the lines up before any other. The policy is made beside its use, so that
/// whoever reads the program sees that it is no other (lab/jit/ptx.cpp); the compiler makes a constant of it.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-createpolicy
__device__ __forceinline__ void cp_async_bulk_tensor_4d_evict_first(unsigned shared, const TensorMap& map,
                                                                    unsigned barrier, int column, int row, int head,
                                                                    int batch) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], policy;\n"
      "}\n" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// Starts a copy of one box from shared memory, whose bytes were written before fence_proxy_async(). What lies outside
/// of the tensor is left out. One thread, which commits it and waits.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_store(const TensorMap& map, unsigned shared, int column,
                                                              int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

/// The same; the L2 gives the lines up before any other.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_store_evict_first(const TensorMap& map, unsigned shared,
                                                                          int column, int row, int head, int batch) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], "
      "policy;\n"
      "}\n" ::"l"(&map),
      "r"(shared), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// Commits this thread's copies from shared memory since the last time as one group.
__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until all but the last kLeft groups of this thread have read shared memory; the end of the launch waits for
/// what they write.
template <int kLeft>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

/// Waits until all but the last kLeft groups of this thread have written, too, so that what it writes next to the same
/// place comes after them (PTX ISA, cp.async.bulk.wait_group).
template <int kLeft>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Orders this thread's earlier writes to shared memory before later reads by the copy engine and the tensor cores.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace heed::ptx
