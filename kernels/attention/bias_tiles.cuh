/// Biases of a tile of scores on their way through shared memory: each warp copies those of its 16 rows (cp.async)
/// while products are multiplied, and reads them as accumulator fragments hold scores.
///
/// Of 8 and 16 bits; fp32 is read from global memory. There a lane would read eight bytes of each of its rows at a
/// time, wait for the L2, and exchange halves with its neighbour (kernels/attention/biases.cuh): b8h16l1024d64 with a
/// bf16 bias took 171 us on an H200, of which scores without one take 61.
#pragma once

#include "kernels/attention/bias_tiles.hpp"
#include "kernels/attention/biases.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"

namespace heed::attention {

/// What a lane knows of its warp's tiles.
template <int kColumns>
struct BiasTile {
  static constexpr bool kInShared = true;
  unsigned shared;   ///< address of a tile, bias_tile_bytes
  int row;           ///< the warp's first
  const char* from;  ///< the lane's first 16 bytes of key 0
  bool aligned;      ///< 16 bytes from there can be copied at once
};
/// Of a kernel that reads biases from global memory.
struct NoBiasTile {
  static constexpr bool kInShared = false;
};

/// Of a tile's rows lane i copies 16 bytes at 16 (i % kInRow) of row i / kInRow, and of every kRowsAtOnce-th from
/// there.
template <int kBytes, int kColumns>
struct BiasCopy {
  static constexpr int kInRow = kColumns * kBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kInRow;
};

/// Asks for the biases of a tile of which all keys are there. The whole warp.
/// @param key the tile's first
/// @param row_step bytes from a row's bias to the next row's; of 0 one row is copied
/// @param rows of the launch
template <int kBytes, int kColumns>
__device__ __forceinline__ void copy_bias_tile(const BiasTile<kColumns>& tile, int key, long long row_step, int rows) {
  using Copy = BiasCopy<kBytes, kColumns>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane / Copy::kInRow;
  const unsigned to = tile.shared + row * bias_pitch(kColumns) + lane % Copy::kInRow * 16;
  const char* const from = tile.from + static_cast<long long>(key) * kBytes;
  if (row_step == 0) {
    if (row == 0) ptx::cp_async_cg_16(to, from, 16);
    return;
  }
#pragma unroll
  for (int i = 0; i < kBiasRows; i += Copy::kRowsAtOnce)
    ptx::cp_async_cg_16(to + i * bias_pitch(kColumns), from + i * row_step, tile.row + row + i < rows ? 16 : 0);
}

/// Reads and writes the biases of a tile one by one, whatever their strides: of rows and keys past the last the last
/// one's. The whole warp.
/// @param head the bias of the head's first row and key
template <int kBytes, int kColumns>
__device__ __forceinline__ void gather_bias_tile(const BiasTile<kColumns>& tile, int key, const char* head,
                                                 const ScoreFeatureParams& p) {
  constexpr int kAtOnce = 4;  // loads that are on their way together
  constexpr BiasElement kAsWide = kBytes == 1 ? BiasElement::boolean : BiasElement::bf16;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int column = lane; column < kColumns; column += 32) {
    const char* const of_key = head + max(min(key + column, p.len_k - 1), 0) * p.bias_key * kBytes;
#pragma unroll 1
    for (int row = 0; row < kBiasRows; row += kAtOnce) {
      unsigned bits[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const char* const from = of_key + max(min(tile.row + row + i, p.len_q - 1), 0) * p.bias_row * kBytes;
        bits[i] = bits_of_bias<kAsWide>(from);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        ptx::st_shared_bytes<kBytes>(tile.shared + (row + i) * bias_pitch(kColumns) + column * kBytes, bits[i]);
    }
  }
}

/// Asks for the biases of a tile, in whichever way they lie.
template <int kBytes, int kColumns>
__device__ __forceinline__ void ask_for_bias_tile(const BiasTile<kColumns>& tile, int key, const char* head,
                                                  const ScoreFeatureParams& p) {
  if (tile.aligned && key * kBytes % 16 == 0 && key + kColumns <= p.len_k)
    copy_bias_tile<kBytes>(tile, key, p.bias_row * kBytes, p.len_q);
  else
    gather_bias_tile<kBytes>(tile, key, head, p);
}

/// Adds the tile's biases to scores, once all lanes' copies have come. The whole warp.
/// @param one_row all rows have the biases of the first
/// @tparam kHides as add_pair has it
template <BiasElement kElement, bool kHides, int kRegisters>
__device__ __forceinline__ void add_bias_tile(float (&s)[kRegisters], unsigned shared, bool one_row) {
  // Of 16 copies of a row each would come from the same line of the L2: with those b8h16l1024d64 with a mask of keys
  // took 440 us on an H200, of which a mask of rows and keys takes 130.
  const int pitch = one_row ? 0 : bias_pitch(2 * kRegisters);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kElement == BiasElement::boolean) {
    const unsigned mine = shared + lane / 4 * pitch + 2 * (lane % 4);
#pragma unroll
    for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        add_pair<kElement, kHides>(s[4 * t + 2 * h], s[4 * t + 2 * h + 1],
                                   ptx::ld_shared_u16(mine + 8 * h * pitch + 8 * t));
  } else {
    const unsigned mine = shared + lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
    for (int t = 0; t < kRegisters / 4; t += 2) {
      unsigned pairs[4];  // of rows and columns 0-7 and 8-15: (tile t, h 0), (t, 1), (t + 1, 0), (t + 1, 1)
      ptx::ldmatrix_x4(pairs, mine + 16 * t);
#pragma unroll
      for (int i = 0; i < 4; ++i) add_pair<kElement, kHides>(s[4 * t + 2 * i], s[4 * t + 2 * i + 1], pairs[i]);
    }
  }
}

}  // namespace heed::attention
