/// Thread-block clusters, distributed shared memory and dependent launches, one instruction a function (sm_90).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#cluster-of-cooperative-thread-arrays
#pragma once

namespace heed::ptx {

/// Rank of this block in its cluster; 0 without one.
__device__ __forceinline__ unsigned cluster_ctarank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Arrives without ordering memory: a release would wait for the bulk copies in flight (0.6 us at b1h8l512d64).
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// Arrives after everything this thread did to memory.
__device__ __forceinline__ void barrier_cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The address in the cluster's shared memory of what lies at `shared` in block `rank`.
__device__ __forceinline__ unsigned mapa(unsigned shared, unsigned rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

/// Stores 16 bytes to another block's shared memory; they count on its `barrier`. Only in a launch with clusters.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
__device__ __forceinline__ void st_async_v4(unsigned address, const unsigned (&x)[4], unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(barrier)
      : "memory");
}

/// The same for 8 bytes, if `wanted`: a condition, not a branch.
__device__ __forceinline__ void st_async_v2_if(bool wanted, unsigned address, float x, float y, unsigned barrier) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %0, 0;\n"
      "@wanted st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%1], {%2, %3}, [%4];\n"
      "}\n" ::"r"(static_cast<int>(wanted)),
      "r"(address), "f"(x), "f"(y), "r"(barrier)
      : "memory");
}

/// Waits until the launches this one depends on are done and their writes visible; at once in a plain launch.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// The next launch may start its blocks once every block of this one has come here; nothing in a plain launch.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Gives registers of every thread of the warpgroup back, down to kCount; a multiple of 8.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Waits for registers that others give back, up to kCount.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// One lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

/// A value that every lane of the warp has, in a register that addresses and descriptors can be computed from at the
/// warp's rate: the result of redux lies in a uniform one, that of a shuffle does not.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync
__device__ __forceinline__ int warp_uniform(int x) {
  int y;
  asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

/// Barrier `id` among `threads` threads; whether any of them came with `value`.
__device__ __forceinline__ bool barrier_red_or(int id, int threads, bool value) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.or.pred all, %2, %3, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<unsigned>(value)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

}  // namespace heed::ptx
