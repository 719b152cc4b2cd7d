// Stand-ins for kernels/ptx/mma.cuh.
#pragma once

#include "emulator/device/device.hpp"
#include "emulator/device/products.hpp"
#include "kernels/contract.hpp"
#include "kernels/eight_bits.hpp"
#include "kernels/tile/fragment.hpp"

namespace heed::ptx {

template <Element kElement>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::FragmentOperands mine{d, a, {b0, b1}};
  emulator::meet("mma", emulator::own_warp(), emulator::lane(), 32, &mine,
                 [](std::vector<void*>& all) { emulator::multiply_fragments(kElement == Element::bf16, all.data()); });
}

/// Of the operands the upper 19 bits count. Sums are rounded towards zero, as the tensor cores do.
inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    float* d;
    const unsigned* a;
    unsigned b[2];
  } mine{d, a, {b0, b1}};
  emulator::meet("mma", emulator::own_warp(), emulator::lane(), 32, &mine, [](std::vector<void*>& all) {
    double a_values[16][8];
    double b_values[8][8];
    const auto value = [](unsigned bits) { return static_cast<double>(std::bit_cast<float>(bits & 0xffffe000U)); };
    for (int lane = 0; lane < 32; ++lane) {
      const auto* o = static_cast<const Operands*>(all[static_cast<std::size_t>(lane)]);
      for (int r = 0; r < 4; ++r) {
        const tile::Coordinate at = tile::a_element_tf32(lane, r);
        a_values[at.row][at.column] = value(o->a[r]);
      }
      for (int r = 0; r < 2; ++r) {
        const tile::Coordinate at = tile::b_element_tf32(lane, r);
        b_values[at.row][at.column] = value(o->b[r]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* o = static_cast<Operands*>(all[static_cast<std::size_t>(lane)]);
      for (int i = 0; i < 4; ++i) {
        const tile::Coordinate at = tile::accumulator_element(lane, i);
        double sum = o->d[i];
        for (int k = 0; k < 8; ++k) sum += a_values[at.row][k] * b_values[k][at.column];
        const auto rounded = static_cast<float>(sum);
        const bool is_beyond = std::isfinite(rounded) && std::fabs(static_cast<double>(rounded)) > std::fabs(sum);
        o->d[i] = is_beyond ? std::nextafter(rounded, 0.0F) : rounded;
      }
    }
  });
}

/// Places of the four elements of a register by the PTX ISA's own formulas, not by those of 16 bits.
/// @tparam kValue of a byte
template <auto kValue, typename Sum>
void mma_m16n8k32(Sum (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    Sum* d;
    const unsigned* a;
    unsigned b[2];
  } mine{d, a, {b0, b1}};
  emulator::meet("mma", emulator::own_warp(), emulator::lane(), 32, &mine, [](std::vector<void*>& all) {
    Sum a_values[16][32];
    Sum b_values[32][8];
    const auto element = [](unsigned word, int i) { return kValue(static_cast<unsigned char>(word >> 8 * i & 0xffU)); };
    for (int lane = 0; lane < 32; ++lane) {
      const auto* o = static_cast<const Operands*>(all[static_cast<std::size_t>(lane)]);
      const int group = lane >> 2;
      const int in_group = lane % 4;
      for (int i = 0; i < 16; ++i) {
        const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
        const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
        a_values[row][column] = element(o->a[i / 4], i % 4);
      }
      for (int i = 0; i < 8; ++i)
        b_values[in_group * 4 + (i & 3) + (i < 4 ? 0 : 16)][group] = element(o->b[i / 4], i % 4);
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto* o = static_cast<Operands*>(all[static_cast<std::size_t>(lane)]);
      for (int i = 0; i < 4; ++i) {
        const int row = (lane >> 2) + (i < 2 ? 0 : 8);
        const int column = lane % 4 * 2 + (i & 1);
        for (int k = 0; k < 32; ++k) o->d[i] += a_values[row][k] * b_values[k][column];
      }
    }
  });
}
inline void mma_m16n8k32_s8(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mma_m16n8k32<[](unsigned char x) { return static_cast<int>(static_cast<signed char>(x)); }>(d, a, b0, b1);
}
/// Products of e4m3 are exact in fp32, sums are those of fp32.
inline void mma_m16n8k32_e4m3(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mma_m16n8k32<[](unsigned char x) { return e4m3_to_float(x); }>(d, a, b0, b1);
}

inline unsigned movmatrix_trans(unsigned x) {
  struct Pair {
    unsigned given;
    unsigned taken;
  } mine{x, 0};
  emulator::meet("movmatrix", emulator::own_warp(), emulator::lane(), 32, &mine, [](std::vector<void*>& all) {
    const auto element = [&](unsigned row, unsigned column) {
      return static_cast<Pair*>(all[4 * row + column / 2])->given >> 16 * (column % 2) & 0xffffU;
    };
    for (unsigned i = 0; i < 32; ++i)
      static_cast<Pair*>(all[i])->taken = element(2 * (i % 4), i / 4) | element(2 * (i % 4) + 1, i / 4) << 16;
  });
  return mine.taken;
}

}  // namespace heed::ptx
