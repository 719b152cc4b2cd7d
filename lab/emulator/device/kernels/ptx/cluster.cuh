// Stand-ins for kernels/ptx/cluster.cuh.
#pragma once

#include <cstring>

#include "emulator/device/device.hpp"

namespace heed::ptx {

inline unsigned cluster_ctarank() {
  return emulator::self().block->rank;
}
inline void barrier_cluster_arrive_relaxed() {
  emulator::arrive_at_cluster();
}
inline void barrier_cluster_arrive_release() {
  emulator::arrive_at_cluster();
}
inline void barrier_cluster_wait_acquire() {
  emulator::wait_for_cluster();
}
/// Other blocks' shared memory, outside a cluster too, is an illegal instruction on an H200.
inline void require_cluster() {
  if (emulator::cluster_size() < 2) throw std::logic_error("an instruction of clusters in a launch without");
}
inline unsigned mapa(unsigned shared, unsigned rank) {
  require_cluster();
  return (shared & ((1U << emulator::kRankShift) - 1)) | rank << emulator::kRankShift;
}
inline void st_async(unsigned address, const void* from, std::size_t bytes, unsigned barrier) {
  require_cluster();
  if (address % bytes != 0) throw std::logic_error("a remote store that is not aligned");
  std::byte* to = emulator::pointer_to(address, bytes);
  std::vector<std::byte> data(bytes);
  std::memcpy(data.data(), from, bytes);
  emulator::later([=] {
    emulator::ByteBarrier& b = emulator::byte_barrier(barrier);
    std::memcpy(to, data.data(), bytes);
    b.bytes -= static_cast<long long>(bytes);
    b.settle();
  });
}
inline void st_async_v4(unsigned address, const unsigned (&x)[4], unsigned barrier) {
  st_async(address, x, 16, barrier);
}
inline void st_async_v2_if(bool wanted, unsigned address, float x, float y, unsigned barrier) {
  const float both[2] = {x, y};
  if (wanted) st_async(address, both, 8, barrier);
}
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
template <int kCount>
void setmaxnreg_dec() {}
template <int kCount>
void setmaxnreg_inc() {}
inline bool elect_one() {
  return emulator::lane() == 0;
}
inline int warp_uniform(int x) {
  const int first = emulator::shuffle(x, 0);
  if (x != first) throw std::logic_error("lanes of a warp differ in a value that should be uniform");
  return x;
}
inline bool barrier_red_or(int id, int threads, bool value) {
  return emulator::barrier("barrier.red.or", id, static_cast<unsigned>(threads), value);
}

}  // namespace heed::ptx
