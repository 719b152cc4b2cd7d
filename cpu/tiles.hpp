/// Intel's matrix unit (AMX): eight tile registers of 16 rows of 64 bytes, and products of bf16 pairs into fp32.
/// Instruction set reference: https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html,
/// volume 1, chapter 18. Written as assembly, because GCC has no built-in functions for it below <immintrin.h>.
///
/// A process may use the unit after it asked for it (base/matrix_unit.hpp); that is the business of whoever launches.
#pragma once

#if defined(__x86_64__) && defined(__AVX512F__)

namespace heed::cpu::tiles {

inline constexpr int kRows = 16;   ///< of a tile
inline constexpr int kDepth = 32;  ///< bf16 elements of a row of a tile: what one product sums over
inline constexpr int kTileBytes = 1024;

struct alignas(64) Layout {
  unsigned char palette = 1;
  unsigned char start_row = 0;
  unsigned char reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// Eight full tiles, from construction to destruction.
class Session {
 public:
  Session() {
    const Layout layout;
    asm volatile("ldtilecfg %0" : : "m"(layout) : "memory");
  }
  ~Session() { asm volatile("tilerelease" : : : "memory"); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

template <int kTile>
[[gnu::always_inline]] inline void load(const void* from, long long row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(row_bytes) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store(void* to, long long row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(row_bytes) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile) : "memory");
}
/// sum (16 x 16, fp32) += a (16 x 32) b (32 x 16; row i holds rows 2i and 2i + 1 of b, element by element)
template <int kSum, int kA, int kB>
[[gnu::always_inline]] inline void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB) : "memory");
}

}  // namespace heed::cpu::tiles

#endif
