/// fwd_sm80: rows of a tensor to a tile in shared memory, in asynchronous pieces of 16 bytes.
#pragma once

#include "kernels/ptx/global.cuh"
#include "kernels/tile/shared_tile.hpp"

namespace heed::sm80 {

/// Copies of tiles of (rows, head dim) by kThreads threads that lie along rows: a thread's pieces are at one chunk of
/// rows that lie equally far apart.
/// @tparam kWidth 16-bit elements that take the room of a row
/// @tparam kBytes of an element
/// @tparam kChunks 16-byte chunks of a row: all that there is room for, or of elements of 8 bits the first half
template <tile::SharedLayout kLayout, int kWidth, int kBytes, int kThreads, int kChunks = kWidth / 8>
struct Copies {
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0, "whole rows at a time");

  /// Address in global memory of a thread's first piece of a tile whose rows start at `first`.
  /// @param base element of the tensor where its (row, column) block starts
  __device__ __forceinline__ static unsigned long long source(const void* tensor, long long base, long long row_stride,
                                                              int first, int thread) {
    const long long element =
        base + static_cast<long long>(first + thread / kChunks) * row_stride + thread % kChunks * (16 / kBytes);
    return reinterpret_cast<unsigned long long>(tensor) + kBytes * element;
  }

  /// Byte offset of the same piece in the tile.
  __device__ __forceinline__ static unsigned place(int thread) {
    return tile::chunk_offset(kLayout, kWidth, thread / kChunks, thread % kChunks);
  }

  /// Starts copying rows [first, first + kRows) to a tile; rows from `end` on become zeros.
  /// @param tile its address in shared memory
  /// @param place place(thread)
  /// @param from source(.., thread)
  template <int kRows>
  __device__ __forceinline__ static void start(unsigned tile, unsigned place, unsigned long long from,
                                               long long row_stride, int first, int end, int thread) {
    constexpr int kPieces = (kRows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int row = thread / kChunks;
    const unsigned long long step = kBytes * kRowsAtOnce * row_stride;
    const auto to = [&](int i) {
      if constexpr (kRowsAtOnce % 8 == 0 || kLayout != tile::SharedLayout::swizzled)  // the swizzle repeats
        return tile + place + i * kRowsAtOnce * tile::row_pitch(kLayout, kWidth);
      else if constexpr (kBytes == 4 && 8 % kRowsAtOnce == 0)  // other bits of the row than the thread's own
        return tile + (place ^ static_cast<unsigned>(i * kRowsAtOnce % 8 * 16)) +
               i * kRowsAtOnce * tile::row_pitch(kLayout, kWidth);
      else
        return tile + tile::chunk_offset(kLayout, kWidth, row + i * kRowsAtOnce, thread % kChunks);
    };
    if (kRows % kRowsAtOnce == 0 && first + kRows <= end) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) ptx::cp_async_cg_16_fetch<128>(to(i), from + i * step, 16);
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int at = row + i * kRowsAtOnce;
        const bool inside = first + at < end;
        // Where nothing is read the address must still be one that could be.
        if (kRows % kRowsAtOnce == 0 || at < kRows)
          ptx::cp_async_cg_16_fetch<128>(to(i), inside ? from + i * step : from, inside ? 16 : 0);
      }
    }
  }

  /// The same of rows that lie anywhere: each one's address is asked for, those of rows before `begin` and from `end`
  /// on are not.
  /// @param anywhere an address that could be read
  /// @param row_at address in global memory of a row's first element
  template <int kRows, class RowAt>
  __device__ __forceinline__ static void start_rows(unsigned tile, unsigned long long anywhere, int first, int begin,
                                                    int end, int thread, const RowAt& row_at) {
    constexpr int kPieces = (kRows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int chunk = thread % kChunks;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = thread / kChunks + i * kRowsAtOnce;
      const bool inside = first + at >= begin && first + at < end;
      if (kRows % kRowsAtOnce == 0 || at < kRows)
        ptx::cp_async_cg_16_fetch<128>(tile + tile::chunk_offset(kLayout, kWidth, at, chunk),
                                       inside ? row_at(first + at) + 16 * chunk : anywhere, inside ? 16 : 0);
    }
  }
};

}  // namespace heed::sm80
