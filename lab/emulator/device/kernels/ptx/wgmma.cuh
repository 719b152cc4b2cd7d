// Stand-ins for kernels/ptx/wgmma.cuh.
#pragma once

#include "emulator/device/device.hpp"
#include "emulator/device/products.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/fragment.hpp"

namespace heed::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit_group() {
  emulator::Products& p = emulator::self().products;
  p.committed.push_back(std::move(p.open));
  p.open.clear();
}
inline void wgmma_wait_group(int pending) {
  emulator::Products& p = emulator::self().products;
  if (pending < 0) throw std::logic_error("a wait for a group that was never committed");
  while (p.committed.size() > static_cast<std::size_t>(pending)) {
    const std::set<float*> done = std::move(p.committed.front());
    p.committed.pop_front();
    for (float* d : done) {
      bool again = p.open.count(d) != 0;
      for (const std::set<float*>& group : p.committed) again = again || group.count(d) != 0;
      if (again) continue;
      std::copy(p.results[d].begin(), p.results[d].end(), d);
      p.results.erase(d);
    }
  }
}

struct WarpgroupOperands {
  emulator::Thread* thread;
  float* d;
  const unsigned* a_registers;  ///< or null
  unsigned long long a;
  unsigned long long b;
  bool accumulate;
};

constexpr int kChunk = 8;  // elements of 16 bytes, which the swizzle leaves together

/// A chunk of a matrix in shared memory by its descriptor, at every `stride`-th float from `to` on. `major`: the index
/// of the first element along the contiguous dimension.
inline void load_chunk(bool bf16, unsigned long long descriptor, int major_box, int major, int minor, float* to,
                       int stride) {
  if (descriptor >> 62 != 1) throw std::logic_error("a matrix descriptor without the 128-byte swizzle");
  const unsigned start = static_cast<unsigned>(descriptor & 0x3FFF) << 4;
  const unsigned leading = static_cast<unsigned>(descriptor >> 16 & 0x3FFF) << 4;
  const unsigned of_rows = static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4;
  unsigned address = start + static_cast<unsigned>(major_box) * leading + static_cast<unsigned>(minor / 8) * of_rows +
                     static_cast<unsigned>(minor % 8) * 128 + static_cast<unsigned>(major) * 2;
  address ^= (address >> 7 & 7) << 4;
  address |= emulator::self().block->rank << emulator::kRankShift;  // a descriptor is of the block's own
  emulator::load_16(bf16, emulator::pointer_to(address, 2 * kChunk), kChunk, to, stride);
}

/// The product of what 128 threads give, results of which each takes when it waits for the group.
inline void multiply_warpgroup(const std::vector<void*>& all, const float* a, const float* b, int columns, int depth) {
  emulator::Accumulators threads[128];
  for (std::size_t t = 0; t < 128; ++t) {
    const auto* o = static_cast<const WarpgroupOperands*>(all[t]);
    emulator::Products& p = o->thread->products;
    p.open.insert(o->d);
    auto found = p.results.find(o->d);
    if (found == p.results.end()) found = p.results.emplace(o->d, std::vector<float>(o->d, o->d + columns / 2)).first;
    threads[t] = {found->second.data(), o->d};
  }
  emulator::multiply_warpgroup(threads, a, b, columns, depth,
                               static_cast<const WarpgroupOperands*>(all[0])->accumulate);
}

template <Element kElement, int kColumns, bool kTransposedB>
void wgmma(float* d, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate) {
  emulator::Thread& me = emulator::self();
  WarpgroupOperands mine{&me, d, a_registers, a, b, accumulate};
  emulator::meet(
      "wgmma", me.block->warpgroups.at(me.index.x / 128), me.index.x % 128, 128, &mine, [](std::vector<void*>& all) {
        constexpr bool kBf16 = kElement == Element::bf16;
        constexpr int kDepth = 16;
        std::vector<float> a_values(64 * kDepth);
        std::vector<float> b_values(kDepth * kColumns);
        const auto* first = static_cast<const WarpgroupOperands*>(all[0]);
        if constexpr (kTransposedB) {
          for (int k = 0; k < kDepth; ++k)
            for (int n = 0; n < kColumns; n += kChunk)
              load_chunk(kBf16, first->b, n / 64, n % 64, k, &b_values[static_cast<std::size_t>(k * kColumns + n)], 1);
        } else {
          for (int n = 0; n < kColumns; ++n)
            for (int k = 0; k < kDepth; k += kChunk)
              load_chunk(kBf16, first->b, 0, k, n, &b_values[static_cast<std::size_t>(k * kColumns + n)], kColumns);
        }
        if (first->a_registers == nullptr)
          for (int m = 0; m < 64; ++m)
            for (int k = 0; k < kDepth; k += kChunk)
              load_chunk(kBf16, first->a, 0, k, m, &a_values[static_cast<std::size_t>(m * kDepth + k)], 1);
        for (int t = 0; t < 128; ++t) {
          const auto* o = static_cast<const WarpgroupOperands*>(all[static_cast<std::size_t>(t)]);
          if (o->a != first->a || o->b != first->b || o->accumulate != first->accumulate)
            throw std::logic_error("threads of a warpgroup give different operands");
          if (o->a_registers == nullptr) continue;
          for (int r = 0; r < 4; ++r) {
            // Both elements of a register are neighbours of one row.
            const tile::Coordinate at = tile::a_element(t % 32, r, 0);
            emulator::load_16(kBf16, reinterpret_cast<const std::byte*>(&o->a_registers[r]), 2,
                              &a_values[static_cast<std::size_t>((t / 32 * 16 + at.row) * kDepth + at.column)], 1);
          }
        }
        multiply_warpgroup(all, a_values.data(), b_values.data(), kColumns, kDepth);
      });
}

template <Element kElement, int kColumns>
void wgmma_ss(float (&d)[kColumns / 2], unsigned long long a, unsigned long long b, bool accumulate) {
  wgmma<kElement, kColumns, false>(d, nullptr, a, b, accumulate);
}
template <Element kElement, int kColumns>
void wgmma_rs(float (&d)[kColumns / 2], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  wgmma<kElement, kColumns, true>(d, a, 0, b, accumulate);
}

}  // namespace heed::ptx
