/// Which element of a tile each register of each lane holds, for mma.m16n8k16, and for mma.m16n8k8 of tf32.
///
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float
///
///   accumulator D (16 x 8), fp32, register i        operand A (16 x 16), two elements a register r
///       columns 0..7                                    columns 0..7    8..15
///     +----------------+                              +-----------+-----------+
///   0 | T0 T0 T1 T1 .. |  i = 0, 1                  0 |   r = 0   |   r = 2   |
///   . | T4 T4 T5 T5 .. |                            . |           |           |
///   8 | T0 T0 T1 T1 .. |  i = 2, 3                  8 |   r = 1   |   r = 3   |
///   . |                |                            . |           |           |
///     +----------------+                              +-----------+-----------+
///
/// Within an 8 x 8 quarter lane T holds row T / 4, columns 2 (T % 4) and 2 (T % 4) + 1: the same map for D and A, so
/// that two neighbouring 16 x 8 accumulators, rounded to 16 bits, are the A operand of the next product without any
/// exchange.
#pragma once

#include "kernels/contract.hpp"

namespace heed::tile {

struct Coordinate {
  int row;
  int column;
  constexpr bool operator==(const Coordinate&) const = default;
};

/// Element of accumulator register i (0 to 3) of a lane.
HEED_HOST_DEVICE constexpr Coordinate accumulator_element(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
}

/// Element `half` (0 or 1) of A register r (0 to 3) of a lane.
HEED_HOST_DEVICE constexpr Coordinate a_element(int lane, int r, int half) {
  return {lane / 4 + 8 * (r % 2), 2 * (lane % 4) + half + 8 * (r / 2)};
}

/// Element `half` of B register r (0 or 1): row is k, column is n.
HEED_HOST_DEVICE constexpr Coordinate b_element(int lane, int r, int half) {
  return {2 * (lane % 4) + half + 8 * r, lane / 4};
}

/// Element of A register r (0 to 3) of a lane in tf32, 16 x 8. ldmatrix brings it as it brings A of 16 bits, with the
/// same addresses in bytes: a chunk of 16 bytes is four columns.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-1688
HEED_HOST_DEVICE constexpr Coordinate a_element_tf32(int lane, int r) {
  return {lane / 4 + 8 * (r % 2), lane % 4 + 4 * (r / 2)};
}

/// Element of B register r (0 or 1) in tf32, 8 x 8: row is k, column is n.
HEED_HOST_DEVICE constexpr Coordinate b_element_tf32(int lane, int r) {
  return {lane % 4 + 4 * r, lane / 4};
}

// In P V of fp32 neither keys nor columns are counted as they lie: a product does not depend on the order of its keys,
// and of its columns only the place of the result does.
//
//   keys      row k of B is key 2 k, row 4 + k key 2 k + 1: accumulators of S, columns 2 t and 2 t + 1 of lane t, are
//             the lane's elements k = t and k = t + 4 of A without any exchange
//   columns   column n of tile j of four is column 4 n + j of 32: a lane reads its four in 16 bytes

/// Which of 16 keys by 8 or of 8 keys the B registers r = 0, 1 of a lane hold.
HEED_HOST_DEVICE constexpr int value_key_fp32(int lane, int r) {
  return 2 * (lane % 4) + r;
}
/// Accumulator register of S that is A register r of P.
HEED_HOST_DEVICE constexpr int probability_register_fp32(int r) {
  return r % 2 * 2 + r / 2;
}
/// Column of O of accumulator registers i = 0, 1 (and 2, 3 of the row 8 further) of tile n.
HEED_HOST_DEVICE constexpr int out_column_fp32(int lane, int n, int i) {
  return n / 4 * 32 + 8 * (lane % 4) + 4 * i + n % 4;
}

/// The same of registers i = 0, 1 of tile n where V is of 8 bits: ldmatrix transposes pairs of columns, of 16 of which
/// tile n has the even ones and tile n + 1 the odd ones (kernels/tile/widened.cuh). Tiles n and n + 1 of a lane are
/// four neighbouring columns.
HEED_HOST_DEVICE constexpr int out_column_of_pairs(int lane, int n, int i) {
  return n / 2 * 16 + 4 * (lane % 4) + 2 * i + n % 2;
}

/// Row and first column (in elements) whose address a lane gives to ldmatrix_x4 for a 16 x 16 block of A, row-major.
HEED_HOST_DEVICE constexpr Coordinate ldmatrix_a_address(int lane) {
  return {lane % 16, 8 * (lane / 16)};
}

/// The same for B = K^T: two n-tiles of 8 keys by 16 of the head dim, K stored (key, head dim). Registers 0, 1 are the
/// first tile's B, registers 2, 3 the second's. Row is the key.
HEED_HOST_DEVICE constexpr Coordinate ldmatrix_k_address(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}

/// The same for B = V: 16 keys by two n-tiles of 8 value columns, V stored (key, column), loaded transposed.
HEED_HOST_DEVICE constexpr Coordinate ldmatrix_v_address(int lane) {
  return {lane % 8 + 8 * (lane / 8 % 2), 8 * (lane / 16)};
}

}  // namespace heed::tile
