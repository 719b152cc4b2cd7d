// Stand-ins for kernels/ptx/wgmma_e4m3.cuh.
#pragma once

#include "kernels/eight_bits.hpp"
#include "kernels/ptx/wgmma.cuh"

namespace heed::ptx {

/// Column `k` of row `row` of a K-major matrix of bytes in shared memory, in the swizzle that its descriptor names.
inline float e4m3_at(unsigned long long descriptor, int row, int k) {
  const auto layout = static_cast<unsigned>(descriptor >> 62);
  if (layout == 0) throw std::logic_error("a matrix descriptor without a swizzle");
  const unsigned row_bytes = layout == 1 ? 128 : layout == 2 ? 64 : 32;
  const unsigned start = static_cast<unsigned>(descriptor & 0x3FFF) << 4;
  const unsigned stride = static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4;
  unsigned address = start + static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8) * row_bytes +
                     static_cast<unsigned>(k);
  address ^= (address >> 7 & (row_bytes / 16 - 1)) << 4;
  address |= emulator::self().block->rank << emulator::kRankShift;  // a descriptor is of the block's own
  return e4m3_to_float(static_cast<unsigned char>(*emulator::pointer_to(address, 1)));
}

template <int kColumns>
void wgmma_e4m3(float* d, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate) {
  emulator::Thread& me = emulator::self();
  WarpgroupOperands mine{&me, d, a_registers, a, b, accumulate};
  emulator::meet("wgmma", me.block->warpgroups.at(me.index.x / 128), me.index.x % 128, 128, &mine,
                 [](std::vector<void*>& all) {
                   std::vector<float> a_values(64 * 32);
                   std::vector<float> b_values(32 * kColumns);
                   const auto* first = static_cast<const WarpgroupOperands*>(all[0]);
                   for (int k = 0; k < 32; ++k) {
                     for (int n = 0; n < kColumns; ++n)
                       b_values[static_cast<std::size_t>(k * kColumns + n)] = e4m3_at(first->b, n, k);
                     if (first->a_registers == nullptr)
                       for (int m = 0; m < 64; ++m)
                         a_values[static_cast<std::size_t>(m * 32 + k)] = e4m3_at(first->a, m, k);
                   }
                   for (int t = 0; t < 128; ++t) {
                     const auto* o = static_cast<const WarpgroupOperands*>(all[static_cast<std::size_t>(t)]);
                     if (o->a != first->a || o->b != first->b || o->accumulate != first->accumulate)
                       throw std::logic_error("threads of a warpgroup give different operands");
                     if (o->a_registers == nullptr) continue;
                     for (int r = 0; r < 4; ++r)
                       for (int i = 0; i < 4; ++i) {
                         const int row = t / 32 * 16 + t % 32 / 4 + 8 * (r % 2);
                         const int column = 4 * (t % 4) + i + 16 * (r / 2);
                         a_values[static_cast<std::size_t>(row * 32 + column)] =
                             e4m3_to_float(static_cast<unsigned char>(o->a_registers[r] >> 8 * i & 0xffU));
                       }
                   }
                   multiply_warpgroup(all, a_values.data(), b_values.data(), kColumns, 32);
                 });
}

template <int kColumns>
void wgmma_e4m3_ss(float (&d)[kColumns / 2], unsigned long long a, unsigned long long b, bool accumulate) {
  wgmma_e4m3<kColumns>(d, nullptr, a, b, accumulate);
}
template <int kColumns>
void wgmma_e4m3_rs(float (&d)[kColumns / 2], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  wgmma_e4m3<kColumns>(d, a, 0, b, accumulate);
}

}  // namespace heed::ptx
