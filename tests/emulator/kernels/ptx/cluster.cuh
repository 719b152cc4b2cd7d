// Stand-ins for kernels/ptx/cluster.cuh.
#pragma once

#include <cstring>

#include "device.hpp"

namespace heed::ptx {

inline unsigned cluster_ctarank() {
  return emulator::self().block->rank;
}
inline void barrier_cluster_arrive_relaxed() {
  emulator::arrive_at_cluster();
}
inline void barrier_cluster_wait_acquire() {
  emulator::wait_for_cluster();
}
inline unsigned mapa(unsigned shared, unsigned rank) {
  return shared | (rank + 1) << emulator::kRankShift;
}
inline void st_async(unsigned address, const void* from, std::size_t bytes, unsigned barrier) {
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
inline void st_async_v2(unsigned address, float x, float y, unsigned barrier) {
  const float both[2] = {x, y};
  st_async(address, both, 8, barrier);
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
inline bool vote_any(bool value) {
  return __any_sync(~0U, value);
}
inline bool barrier_red_or(int id, int threads, bool value) {
  return emulator::barrier("barrier.red.or", id, static_cast<unsigned>(threads), value);
}

}  // namespace heed::ptx
