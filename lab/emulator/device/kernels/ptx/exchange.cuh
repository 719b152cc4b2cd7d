// Stand-ins for kernels/ptx/exchange.cuh. A load gives the words as they are, and lets others run until all are there
// if any was zero: whoever asks again finds them, and a word that nobody sends is a deadlock with a message. Words are
// stored one by one, some time later, in any order.
#pragma once

#include "emulator/device/device.hpp"

namespace heed::ptx {

template <unsigned kWords>
void check_words(const unsigned* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % (4 * kWords) != 0) throw std::logic_error("words are not aligned");
}
template <unsigned kWords>
bool are_there(const unsigned* a) {
  return std::all_of(a, a + kWords, [](unsigned word) { return word != 0; });
}

inline void ld_relaxed_gpu_v4(uint4& v, const unsigned* a, bool wanted) {
  if (!wanted) return;
  check_words<4>(a);
  v = {a[0], a[1], a[2], a[3]};
  emulator::wait_until("words of another block", [a] { return are_there<4>(a); });
}
inline void st_relaxed_gpu_v4_if(bool wanted, unsigned* a, const uint4& v) {
  if (!wanted) return;
  check_words<4>(a);
  const unsigned words[] = {v.x, v.y, v.z, v.w};
  for (const unsigned word : words) emulator::store_later(a++, word);
}
inline void st_relaxed_gpu_v2_if(bool wanted, unsigned* a, const uint2& v) {
  if (!wanted) return;
  check_words<2>(a);
  emulator::store_later(a, v.x);
  emulator::store_later(a + 1, v.y);
}
inline unsigned atom_inc_relaxed_gpu(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
inline void prefetch_l2(const void*) {}

inline void cp_async_bulk_prefetch_l2(const void* a, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(a) % 16 != 0 || bytes <= 0 || bytes % 16 != 0)
    throw std::logic_error("a prefetch that is not of whole 16 bytes");
}

}  // namespace heed::ptx
