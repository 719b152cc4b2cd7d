// Stand-ins for kernels/ptx/wgmma.cuh.
#pragma once

#include <limits>

#include "emulator/device/device.hpp"
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

/// Element of a matrix in shared memory by its descriptor. `major`: the index along the contiguous dimension.
inline float element_at(bool bf16, unsigned long long descriptor, int major_box, int major, int minor) {
  if (descriptor >> 62 != 1) throw std::logic_error("a matrix descriptor without the 128-byte swizzle");
  const unsigned start = static_cast<unsigned>(descriptor & 0x3FFF) << 4;
  const unsigned leading = static_cast<unsigned>(descriptor >> 16 & 0x3FFF) << 4;
  const unsigned stride = static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4;
  unsigned address = start + static_cast<unsigned>(major_box) * leading + static_cast<unsigned>(minor / 8) * stride +
                     static_cast<unsigned>(minor % 8) * 128 + static_cast<unsigned>(major) * 2;
  address ^= (address >> 7 & 7) << 4;
  address |= emulator::self().block->rank << emulator::kRankShift;  // a descriptor is of the block's own
  return emulator::load_16(bf16, emulator::pointer_to(address, 2));
}

template <Element kElement, int kColumns, bool kTransposedB>
void wgmma(float* d, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate) {
  emulator::Thread& me = emulator::self();
  WarpgroupOperands mine{&me, d, a_registers, a, b, accumulate};
  emulator::meet(
      "wgmma", me.block->warpgroups.at(me.index.x / 128), me.index.x % 128, 128, &mine, [](std::vector<void*>& all) {
        constexpr bool kBf16 = kElement == Element::bf16;
        std::vector<float> a_values(64 * 16);
        std::vector<float> b_values(16 * kColumns);
        const auto* first = static_cast<const WarpgroupOperands*>(all[0]);
        for (int k = 0; k < 16; ++k) {
          for (int n = 0; n < kColumns; ++n)
            b_values[static_cast<std::size_t>(k * kColumns + n)] =
                kTransposedB ? element_at(kBf16, first->b, n / 64, n % 64, k) : element_at(kBf16, first->b, 0, k, n);
          if (first->a_registers == nullptr)
            for (int m = 0; m < 64; ++m)
              a_values[static_cast<std::size_t>(m * 16 + k)] = element_at(kBf16, first->a, 0, k, m);
        }
        for (int t = 0; t < 128; ++t) {
          const auto* o = static_cast<const WarpgroupOperands*>(all[static_cast<std::size_t>(t)]);
          if (o->a != first->a || o->b != first->b || o->accumulate != first->accumulate)
            throw std::logic_error("threads of a warpgroup give different operands");
          if (o->a_registers == nullptr) continue;
          for (int r = 0; r < 4; ++r)
            for (int half = 0; half < 2; ++half) {
              const tile::Coordinate at = tile::a_element(t % 32, r, half);
              a_values[static_cast<std::size_t>((t / 32 * 16 + at.row) * 16 + at.column)] =
                  emulator::load_16(kBf16, reinterpret_cast<const std::byte*>(&o->a_registers[r]) + 2 * half);
            }
        }
        for (int t = 0; t < 128; ++t) {
          auto* o = static_cast<WarpgroupOperands*>(all[static_cast<std::size_t>(t)]);
          emulator::Products& p = o->thread->products;
          p.open.insert(o->d);
          auto found = p.results.find(o->d);
          if (found == p.results.end())
            found = p.results.emplace(o->d, std::vector<float>(o->d, o->d + kColumns / 2)).first;
          for (int i = 0; i < kColumns / 2; ++i) {
            const tile::Coordinate at = tile::accumulator_element(t % 32, i % 4);
            const int row = t / 32 * 16 + at.row;
            const int column = i / 4 * 8 + at.column;
            float sum = o->accumulate ? found->second[static_cast<std::size_t>(i)] : 0.0F;
            for (int k = 0; k < 16; ++k)
              sum += a_values[static_cast<std::size_t>(row * 16 + k)] *
                     b_values[static_cast<std::size_t>(k * kColumns + column)];
            found->second[static_cast<std::size_t>(i)] = sum;
            o->d[i] = std::numeric_limits<float>::quiet_NaN();  // until the group is waited for
          }
        }
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
