/// kernels/ptx/mma.cuh on the host, by the fragment maps of the PTX ISA (tested in fragment_test.cpp).
#pragma once

#include "device.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/fragment.hpp"
#include "workload/half.hpp"

namespace heed::ptx {

template <Element kElement>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  auto& block = emulated::block();
  auto& mine = block.mine();
  for (int i = 0; i < 4; ++i) mine.in[i] = a[i], mine.accumulator[i] = d[i];
  mine.in[4] = b0;
  mine.in[5] = b1;
  block.warp("mma", [&] {
    const auto value = [](unsigned packed, int half) {
      const auto bits = static_cast<std::uint16_t>(packed >> (16 * half));
      return kElement == Element::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
    };
    float rows[16][16];
    float columns[16][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r) {
          const tile::Coordinate at = tile::a_element(lane, r, half);
          rows[at.row][at.column] = value(block.of_lane(lane).in[r], half);
        }
        for (int r = 0; r < 2; ++r) {
          const tile::Coordinate at = tile::b_element(lane, r, half);
          columns[at.row][at.column] = value(block.of_lane(lane).in[4 + r], half);
        }
      }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const tile::Coordinate at = tile::accumulator_element(lane, i);
        float sum = block.of_lane(lane).accumulator[i];
        for (int k = 0; k < 16; ++k) sum += rows[at.row][k] * columns[k][at.column];
        block.of_lane(lane).accumulator[i] = sum;
      }
  });
  for (int i = 0; i < 4; ++i) d[i] = mine.accumulator[i];
}

}  // namespace heed::ptx
