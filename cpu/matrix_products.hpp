/// What the matrix unit's products are made of: tiles transposed, and a step of a product of sums of bf16 pieces.
#pragma once

#include "cpu/pieces.hpp"
#include "cpu/tiles.hpp"

#if defined(__x86_64__) && defined(__AVX512F__)

namespace heed::cpu {

/// 16 x 16 elements of 32 bits, rows to columns.
template <int kDistance, int... kLane>
[[gnu::always_inline]] inline void swap_blocks(IntVec& a, IntVec& b, Indices<kLane...>) {
  const IntVec low = __builtin_shufflevector(a, b, ((kLane & kDistance) == 0 ? kLane : kLane - kDistance + 16)...);
  b = __builtin_shufflevector(a, b, ((kLane & kDistance) == 0 ? kLane + kDistance : kLane + 16)...);
  a = low;
}
template <int kDistance>
[[gnu::always_inline]] inline void transpose_step(IntVec (&rows)[16]) {
  for (int i = 0; i < 16; ++i)
    if ((i & kDistance) == 0) swap_blocks<kDistance>(rows[i], rows[i + kDistance], LaneIndices{});
}
[[gnu::always_inline]] inline void transpose(IntVec (&rows)[16]) {
  transpose_step<8>(rows);
  transpose_step<4>(rows);
  transpose_step<2>(rows);
  transpose_step<1>(rows);
}

/// Where the tiles of a product's operands lie, in bytes: left(row tile, step, piece) and right(column tile, step,
/// piece).
struct Operands {
  const char* left;
  long long left_row;  ///< from row to row
  long long left_piece;
  const char* right;
  long long right_column;  ///< from one tile of 16 columns to the next
  long long right_step;
  long long right_piece;
};

/// Adds the products of one step to the sums in tiles 0 to 3 (2 x 2). Each term replaces one of its two operands: those
/// of the term before stay in tiles 4 and 5 (left), 6 and 7 (right). With kExact fp16's term of both second pieces is
/// not left out: scores of outlier channels reach thousands, of which 2^-16 would be percents of a weight.
template <int kPieces, bool kExact>
[[gnu::always_inline]] inline void multiply_step(const Operands& o, const char* left, const char* right) {
  const auto load_left = [&](int piece) {
    tiles::load<4>(left + piece * o.left_piece, o.left_row);
    tiles::load<5>(left + piece * o.left_piece + 16 * o.left_row, o.left_row);
  };
  const auto load_right = [&](int piece) {
    tiles::load<6>(right + piece * o.right_piece, 64);
    tiles::load<7>(right + piece * o.right_piece + o.right_column, 64);
  };
  const auto multiply = [] {
    tiles::multiply<0, 4, 6>();
    tiles::multiply<1, 4, 7>();
    tiles::multiply<2, 5, 6>();
    tiles::multiply<3, 5, 7>();
  };
  if constexpr (kPieces == 1) {
    load_left(0), load_right(0), multiply();
  } else if constexpr (kPieces == 2) {
    load_left(1);
    if constexpr (kExact) load_right(1), multiply();
    load_right(0), multiply();
    load_left(0), multiply();
    load_right(1), multiply();
  } else {
    load_left(2), load_right(0), multiply();
    load_left(1), multiply();
    load_left(0), multiply();
    load_right(1), multiply();
    load_left(1), multiply();
    load_left(0), load_right(2), multiply();
  }
}

template <int kDistance, int... kLane>
inline Vec larger_of_lanes(Vec x, Indices<kLane...>) {
  return max(x, __builtin_shufflevector(x, x, (kLane ^ kDistance)...));
}
/// In four exchanges of halves.
inline float largest_lane(Vec x) {
  x = larger_of_lanes<8>(x, LaneIndices{});
  x = larger_of_lanes<4>(x, LaneIndices{});
  x = larger_of_lanes<2>(x, LaneIndices{});
  return larger_of_lanes<1>(x, LaneIndices{})[0];
}

/// Tiles 0 to 3 as 32 rows of 32 numbers.
inline void store_sums(float* to, long long row_bytes) {
  char* const rows = reinterpret_cast<char*>(to);
  tiles::store<0>(rows, row_bytes), tiles::store<1>(rows + 64, row_bytes);
  tiles::store<2>(rows + 16 * row_bytes, row_bytes), tiles::store<3>(rows + 16 * row_bytes + 64, row_bytes);
}

/// Elements [column, column + 16) of a row as fp32; past `end` zeros.
template <Element kElement>
inline Vec load_part(const Stored<kElement>* row, int column, int end) {
  if (column + 16 <= end) return load_vector<kElement>(row + column);
  Vec part{};
  for (int i = 0; i < 16 && column + i < end; ++i) part[i] = load_scalar<kElement>(row + column + i);
  return part;
}

/// Rows of K and V that are fetched into the L2 one at a time.
template <typename Memory>
struct RowsAhead {
  const Memory* k = nullptr;
  const Memory* v = nullptr;
  int rows = 0;
  int fetched = 0;

  template <int kDim>
  void fetch(long long k_stride, long long v_stride) {
    if (fetched >= rows) return;
    for (int d = 0; d < kDim; d += 64 / static_cast<int>(sizeof(Memory))) {
      __builtin_prefetch(k + fetched * k_stride + d, 0, 2);
      __builtin_prefetch(v + fetched * v_stride + d, 0, 2);
    }
    ++fetched;
  }
};

}  // namespace heed::cpu

#endif
