/// What CUDA C++ gives device code without an include, for the emulator (simt.hpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "emulator/device/simt.hpp"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define threadIdx (::heed::emulator::self().index)
#define blockIdx (::heed::emulator::self().block->index)
#define gridDim (::heed::emulator::grid())
#define blockDim (::heed::emulator::block_size())

namespace heed {

using std::max;
using std::min;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}

namespace emulator {

inline unsigned lane() {
  return self().index.x % 32;
}
inline Dim3 block_size() {
  return {threads_of_block(), 1, 1};
}
inline Meeting& own_warp() {
  return self().block->warps.at(self().index.x / 32);
}

/// Every lane gives a value and gets the one of lane `from`.
template <typename T>
T shuffle(T value, unsigned from) {
  struct Exchange {
    T given;
    unsigned from;
    T received;
  } mine{value, from, T()};
  meet("shfl", own_warp(), lane(), 32, &mine, [](std::vector<void*>& all) {
    for (unsigned i = 0; i < 32; ++i) {
      auto* e = static_cast<Exchange*>(all[i]);
      e->received = static_cast<Exchange*>(all[e->from % 32])->given;
    }
  });
  return mine.received;
}

/// Comes to a named barrier; whether everyone is there now.
inline bool arrive(int id, unsigned threads, bool value = false) {
  NamedBarrier& b = self().block->barriers[id];
  b.value = b.value || value;
  if (++b.arrived != threads) return false;
  b.arrived = 0;
  b.place = 0;
  b.last_value = b.value;
  b.value = false;
  ++b.generation;
  return true;
}

inline bool barrier(const char* where, int id, unsigned threads, bool value) {
  NamedBarrier& b = self().block->barriers[id];
  check_place(b, where, id == 0);
  const unsigned generation = b.generation;
  if (!arrive(id, threads, value)) wait_until(where, [&b, generation] { return b.generation != generation; });
  return b.last_value;
}

}  // namespace emulator

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::shuffle(value, emulator::lane() ^ static_cast<unsigned>(mask));
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return emulator::shuffle(value, static_cast<unsigned>(from));
}
inline bool __any_sync(unsigned, bool value) {
  struct Vote {
    bool mine;
    bool any;
  } vote{value, false};
  emulator::meet("vote", emulator::own_warp(), emulator::lane(), 32, &vote, [](std::vector<void*>& all) {
    bool any = false;
    for (unsigned i = 0; i < 32; ++i) any = any || static_cast<Vote*>(all[i])->mine;
    for (unsigned i = 0; i < 32; ++i) static_cast<Vote*>(all[i])->any = any;
  });
  return vote.any;
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned lanes) {
  const unsigned from = emulator::lane() + lanes;
  return emulator::shuffle(value, from < 32 ? from : emulator::lane());
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned lanes) {
  const unsigned own = emulator::lane();
  return emulator::shuffle(value, own >= lanes ? own - lanes : own);
}
inline bool __all_sync(unsigned mask, bool value) {
  return !__any_sync(mask, !value);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned all = 0;
  for (unsigned lane = 0; lane < 32; ++lane) all |= emulator::shuffle(value ? 1U : 0U, lane) << lane;
  return all;
}
inline void __syncwarp(unsigned = 0xffffffff) {
  int nothing = 0;
  emulator::meet("__syncwarp", emulator::own_warp(), emulator::lane(), 32, &nothing, [](std::vector<void*>&) {});
}
inline void __syncthreads() {
  emulator::barrier("__syncthreads", 0, emulator::self().block->alive, false);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// What kernels of the families do without, and edits of them may use.
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1 / x;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}

}  // namespace heed
