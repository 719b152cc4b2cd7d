// Stand-ins for kernels/ptx/mbarrier.cuh.
#pragma once

#include "device.hpp"

namespace heed::ptx {

inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  emulator::byte_barrier(barrier, true) = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  emulator::ByteBarrier& b = emulator::byte_barrier(barrier);
  b.bytes += bytes;
  b.arrive();
}
inline void mbarrier_arrive(unsigned barrier) {
  emulator::byte_barrier(barrier).arrive();
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  const emulator::ByteBarrier* b = &emulator::byte_barrier(barrier);
  emulator::wait_until("mbarrier wait", [b, parity] { return (b->phase & 1U) != parity; });
}

inline void mbarrier_arrive_if(bool wanted, unsigned barrier) {
  if (wanted) mbarrier_arrive(barrier);
}
inline unsigned mbarrier_test(unsigned barrier, unsigned parity) {
  return (emulator::byte_barrier(barrier).phase & 1U) != parity;
}
inline void mbarrier_wait_unless(unsigned ended, unsigned barrier, unsigned parity) {
  if (ended == 0) mbarrier_wait(barrier, parity);
}

}  // namespace heed::ptx
