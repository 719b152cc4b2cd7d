// Stand-ins for kernels/ptx/bulk.cuh.
#pragma once

#include <cstring>

#include "emulator/device/device.hpp"

namespace heed::ptx {

inline void cp_async_bulk(unsigned shared, const void* global, unsigned bytes, unsigned barrier) {
  if (shared % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0 || bytes % 16 != 0)
    throw std::logic_error("a bulk copy of bytes that is not of whole 16 bytes");
  std::byte* to = emulator::pointer_to(shared, bytes);
  emulator::ByteBarrier* b = &emulator::byte_barrier(barrier);
  emulator::later([=] {
    std::memcpy(to, global, bytes);
    b->bytes -= bytes;
    b->settle();
  });
}
inline void fence_proxy_async_global() {}
inline void wait_for_word(const unsigned* word, unsigned value) {
  emulator::wait_until("a word of another block", [=] { return *word == value; });
}

}  // namespace heed::ptx
