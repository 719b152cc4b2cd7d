// Stand-ins for kernels/ptx/memory.cuh.
#pragma once

#include <cstring>

#include "emulator/device/device.hpp"

namespace heed::ptx {

inline unsigned shared_address(const void* pointer) {
  return emulator::address_of(pointer);
}

inline void cp_async_cg_16(unsigned shared, const void* global, int bytes) {
  if (shared % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0)
    throw std::logic_error("cp.async of 16 bytes that is not aligned");
  std::byte* to = emulator::pointer_to(shared, 16);
  if (bytes > 0) emulator::check_readable(global, static_cast<std::size_t>(bytes));  // else nothing is read
  const auto copy = [=] {
    std::memset(to, 0, 16);
    std::memcpy(to, global, static_cast<std::size_t>(bytes));
  };
  if (emulator::copies_are_early())
    copy();
  else
    emulator::self().open_copies.emplace_back(copy);
}
inline void cp_async_commit_group() {
  emulator::Thread& t = emulator::self();
  t.committed_copies.push_back(std::move(t.open_copies));
  t.open_copies.clear();
}
template <int kPending>
void cp_async_wait_group() {
  auto& groups = emulator::self().committed_copies;
  while (groups.size() > kPending) {
    for (const auto& copy : groups.front()) copy();
    groups.pop_front();
  }
}

inline void cp_async_wait_all() {
  emulator::Thread& t = emulator::self();
  cp_async_commit_group();
  cp_async_wait_group<0>();
  emulator::wait_until("cp.async.wait_all", [left = t.arriving_copies] { return *left == 0; });
}

/// Register r of lane i: elements (i / 4, 2 (i % 4)) and the next of matrix r, or transposed.
inline void ldmatrix(unsigned (&r)[4], unsigned shared, bool transposed) {
  struct Load {
    unsigned* registers;
    unsigned address;
  } mine{r, shared};
  if (shared % 16 != 0) throw std::logic_error("ldmatrix from an address that is not aligned");
  emulator::meet(transposed ? "ldmatrix.trans" : "ldmatrix", emulator::own_warp(), emulator::lane(), 32, &mine,
                 [transposed](std::vector<void*>& all) {
                   for (unsigned i = 0; i < 32; ++i)
                     for (unsigned matrix = 0; matrix < 4; ++matrix) {
                       std::uint16_t pair[2];
                       for (unsigned e = 0; e < 2; ++e) {
                         const unsigned row = transposed ? 2 * (i % 4) + e : i / 4;
                         const unsigned column = transposed ? i / 4 : 2 * (i % 4) + e;
                         const unsigned address = static_cast<Load*>(all[8 * matrix + row])->address + 2 * column;
                         std::memcpy(&pair[e], emulator::pointer_to(address, 2), 2);
                       }
                       static_cast<Load*>(all[i])->registers[matrix] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
                     }
                 });
}
inline void ldmatrix_x4(unsigned (&r)[4], unsigned shared) {
  ldmatrix(r, shared, false);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned shared) {
  ldmatrix(r, shared, true);
}
inline void bar_sync(int id, int threads) {
  emulator::barrier("bar.sync", id, static_cast<unsigned>(threads), false);
}
inline void bar_arrive(int id, int threads) {
  emulator::arrive(id, static_cast<unsigned>(threads));
}

}  // namespace heed::ptx
