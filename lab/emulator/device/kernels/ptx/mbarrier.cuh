// Stand-ins for kernels/ptx/mbarrier.cuh.
#pragma once

#include <stdexcept>

#include "emulator/device/device.hpp"

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
// Copies that are committed to a group land when that is waited for.
inline void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
  emulator::Thread& t = emulator::self();
  ++*t.arriving_copies;
  emulator::later([copies = std::move(t.open_copies), left = t.arriving_copies, b = &emulator::byte_barrier(barrier)] {
    for (const auto& copy : copies) copy();
    --*left;
    b->arrive();
  });
  t.open_copies.clear();
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  const emulator::ByteBarrier* b = &emulator::byte_barrier(barrier);
  emulator::wait_until("mbarrier wait", [b, parity] { return (b->phase & 1U) != parity; });
}

inline void mbarrier_arrive_if(bool wanted, unsigned barrier) {
  if (wanted) mbarrier_arrive(barrier);
}
// The answer names its barrier and phase, so that it cannot be taken for another's.
inline unsigned mbarrier_test(unsigned barrier, unsigned parity) {
  return (emulator::byte_barrier(barrier).phase & 1U) != parity ? 2 * barrier + parity + 1 : 0;
}
inline void mbarrier_wait_unless(unsigned ended, unsigned barrier, unsigned parity) {
  if (ended == 0)
    mbarrier_wait(barrier, parity);
  else if (ended != 2 * barrier + parity + 1)
    throw std::logic_error("the answer to a question about another phase of an mbarrier");
}

}  // namespace heed::ptx
