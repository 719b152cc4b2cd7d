#include "emulator/device/products.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "emulator/device/simt.hpp"
#include "kernels/tile/fragment.hpp"

namespace heed::emulator {
namespace {

constexpr int kLanes = 32;
constexpr int kRowsOfWarp = 16;
constexpr int kWarps = 4;

// Columns side by side are sums side by side: the inner loop has no sum of its own, and compilers make vectors of it.
void add_products(float* __restrict d, const float* __restrict a, const float* __restrict b, int rows, int columns,
                  int depth) {
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < depth; ++k) {
      const float x = a[row * depth + k];
      for (int column = 0; column < columns; ++column) d[row * columns + column] += x * b[k * columns + column];
    }
}

}  // namespace

void multiply_fragments(bool bf16, void* const* lanes) {
  constexpr int kDepth = 16;
  constexpr int kColumns = 8;
  float a[kRowsOfWarp * kDepth];
  float b[kDepth * kColumns];
  float sums[kRowsOfWarp * kColumns] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto* o = static_cast<const FragmentOperands*>(lanes[lane]);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) {
        const tile::Coordinate at = tile::a_element(lane, r, half);
        a[at.row * kDepth + at.column] = load_16(bf16, reinterpret_cast<const std::byte*>(&o->a[r]) + 2 * half);
      }
      for (int r = 0; r < 2; ++r) {
        const tile::Coordinate at = tile::b_element(lane, r, half);
        b[at.row * kColumns + at.column] = load_16(bf16, reinterpret_cast<const std::byte*>(&o->b[r]) + 2 * half);
      }
    }
  }
  add_products(sums, a, b, kRowsOfWarp, kColumns, kDepth);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 4; ++i) {
      const tile::Coordinate at = tile::accumulator_element(lane, i);
      static_cast<const FragmentOperands*>(lanes[lane])->d[i] += sums[at.row * kColumns + at.column];
    }
}

void multiply_warpgroup(const Accumulators* threads, const float* a, const float* b, int columns, int depth,
                        bool accumulate) {
  std::vector<float> sums(static_cast<std::size_t>(kWarps * kRowsOfWarp * columns));
  const auto place = [&](int thread, int i) {
    const tile::Coordinate at = tile::accumulator_element(thread % kLanes, i % 4);
    return static_cast<std::size_t>((thread / kLanes * kRowsOfWarp + at.row) * columns + i / 4 * 8 + at.column);
  };
  const int registers = columns / 2;
  if (accumulate)
    for (int t = 0; t < kWarps * kLanes; ++t)
      for (int i = 0; i < registers; ++i) sums[place(t, i)] = threads[t].result[i];
  add_products(sums.data(), a, b, kWarps * kRowsOfWarp, columns, depth);
  for (int t = 0; t < kWarps * kLanes; ++t) {
    for (int i = 0; i < registers; ++i) threads[t].result[i] = sums[place(t, i)];
    std::fill_n(threads[t].d, registers, std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace heed::emulator
