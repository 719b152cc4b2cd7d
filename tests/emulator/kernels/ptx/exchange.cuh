// Stand-ins for kernels/ptx/exchange.cuh. Blocks run one after the other: a word that is not there when it is read
// never comes.
#pragma once

#include "device.hpp"

namespace heed::ptx {

template <unsigned kWords>
void check_words(const unsigned* address, bool there) {
  if (reinterpret_cast<std::uintptr_t>(address) % (4 * kWords) != 0) throw std::logic_error("words are not aligned");
  if (!there) throw std::logic_error("a block waits for a word that nobody sends");
}

inline void ld_relaxed_gpu_v4(uint4& v, const unsigned* a, bool wanted) {
  if (!wanted) return;
  check_words<4>(a, a[0] != 0 && a[1] != 0 && a[2] != 0 && a[3] != 0);
  v = {a[0], a[1], a[2], a[3]};
}
inline void ld_relaxed_gpu_v2(uint2& v, const unsigned* a, bool wanted) {
  if (!wanted) return;
  check_words<2>(a, a[0] != 0 && a[1] != 0);
  v = {a[0], a[1]};
}
inline void st_relaxed_gpu_v4(unsigned* a, const uint4& v) {
  check_words<4>(a, true);
  a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
}
inline void st_relaxed_gpu_v2(unsigned* a, const uint2& v) {
  check_words<2>(a, true);
  a[0] = v.x, a[1] = v.y;
}
inline unsigned atom_inc_relaxed_gpu(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
inline void prefetch_l2(const void*) {}

}  // namespace heed::ptx
