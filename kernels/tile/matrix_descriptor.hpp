/// Descriptors of operand tiles in shared memory, as wgmma takes them, for tiles that bulk tensor copies laid out with
/// the 128-byte swizzle.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor
///
/// A box of 64 columns of 16-bit elements: a row is 128 bytes, 8 chunks of 16; chunk c of row r lies at c ^ (r % 8).
/// Eight rows are one swizzle atom of 1024 bytes. A wider tile is several boxes, one behind the other:
///
///          columns 0 .. 63        columns 64 .. 127
///     +---------------------+  +---------------------+
///     | rows 0 .. 7   1 KiB |  | rows 0 .. 7         |      boxes of r rows are 128 r bytes apart
///     | rows 8 .. 15        |  | rows 8 .. 15        |
///     +---------------------+  +---------------------+
///
///   K-major (Q, K: 16 of the columns are one step of the contraction)   next step: 32 bytes on, inside the atom's rows
///   MN-major (V: 16 of the rows are one step, the columns are N)        next step: 16 rows = 2048 bytes on
#pragma once

#include "kernels/contract.hpp"

namespace heed::tile {

inline constexpr int kBoxColumns = 64;    ///< elements
inline constexpr int kBoxRowBytes = 128;  ///< bytes
inline constexpr int kSwizzleAtomBytes = 1024;

/// Head dims are padded to whole boxes; the copies fill what is missing with zeros.
HEED_HOST_DEVICE constexpr int padded_dim(int head_dim) {
  return (head_dim + kBoxColumns - 1) / kBoxColumns * kBoxColumns;
}

/// What a descriptor holds besides the address: distances in bytes, multiples of 16 below 2^18.
/// `box_stride`: from one box of 64 columns to the next; unused by K-major operands.
HEED_HOST_DEVICE constexpr unsigned long long descriptor_layout(int box_stride) {
  constexpr unsigned long long kSwizzle128 = 1ULL << 62;
  return kSwizzle128 | (static_cast<unsigned long long>(kSwizzleAtomBytes >> 4) << 32) |
         (static_cast<unsigned long long>(box_stride >> 4) << 16);
}

/// The whole descriptor of a tile at a shared address that is a multiple of 1024.
HEED_HOST_DEVICE constexpr unsigned long long matrix_descriptor(unsigned shared_address, int box_stride) {
  return descriptor_layout(box_stride) | ((shared_address & 0x3FFFFU) >> 4);
}

/// Added to a descriptor: `bytes` further on in shared memory.
HEED_HOST_DEVICE constexpr unsigned long long descriptor_advance(int bytes) {
  return static_cast<unsigned long long>(bytes >> 4);
}

/// Added to a descriptor: boxes `bytes` closer to each other.
HEED_HOST_DEVICE constexpr unsigned long long descriptor_box_stride(int bytes) {
  return static_cast<unsigned long long>(bytes >> 4) << 16;
}

}  // namespace heed::tile
