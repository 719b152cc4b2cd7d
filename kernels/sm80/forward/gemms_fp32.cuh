/// The products of fwd_sm80 in fp32: three products of the tensor cores in tf32 for one.
///
/// x = big + small, big the 11 leading digits of x and small the 13 others, of which tf32 keeps 11. Of
/// x y = big big + big small + small big + small small the last is left out: it is below 2^-20 of x y, and what tf32
/// drops of small as well. CUTLASS calls this OpMultiplyAddFastF32; the method is Ootomo and Yokota's (2022, arXiv
/// 2203.03341), and so is the reason why values of a tile are summed apart: the tensor cores round sums towards zero,
/// and thousands of keys in one accumulator would lose digits one way.
///
/// Digits are cut off, not rounded: both parts then have the sign of x, so that products of large scores stay below
/// infinity or go there together, and no number rounds to infinity.
#pragma once

#include "kernels/ptx/shared.cuh"
#include "kernels/sm80/forward/gemms.cuh"

namespace heed::sm80 {

/// An operand of N registers as a sum of two in tf32.
template <int N>
struct Parts {
  unsigned big[N];
  unsigned small[N];

  /// An infinite x has NaN for small.
  __device__ __forceinline__ void set(int i, unsigned x) {
    big[i] = x & 0xffffe000U;
    small[i] = __float_as_uint(__uint_as_float(x) - __uint_as_float(big[i]));
  }
};

/// d += a b for kTiles n-tiles from n on, small products first. Consecutive ones have different accumulators: the
/// latency of one is that of several.
template <int kTiles, int kFragments, int kAll>
__device__ __forceinline__ void multiply_parts(float (&d)[kFragments][kAll][4], int n, const Parts<4> (&a)[kFragments],
                                               const Parts<2> (&b)[kTiles]) {
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
#pragma unroll
    for (int j = 0; j < kTiles; ++j) ptx::mma_m16n8k8_tf32(d[m][n + j], a[m].small, b[j].big[0], b[j].big[1]);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
#pragma unroll
    for (int j = 0; j < kTiles; ++j) ptx::mma_m16n8k8_tf32(d[m][n + j], a[m].big, b[j].small[0], b[j].small[1]);
#pragma unroll
  for (int m = 0; m < kFragments; ++m)
#pragma unroll
    for (int j = 0; j < kTiles; ++j) ptx::mma_m16n8k8_tf32(d[m][n + j], a[m].big, b[j].big[0], b[j].big[1]);
}

template <const Config& kConfig, const Problem& kProblem>
struct QkGemm<kConfig, kProblem, Unit::mma_tf32> {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Scores = typename Operands::Scores;

  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kKeyTiles = Operands::kKeyTiles;
  static constexpr int kSteps = kProblem.head_dim / 8;  // of the head dim
  static constexpr int kTilesAtOnce = kKeyTiles % 4 == 0 ? 4 : 2;

  static_assert(kConfig.block_n % 16 == 0, "keys are taken by 16");

  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kSteps : 1][4];

  /// scores = Q K^T of one tile.
  __device__ __forceinline__ static void multiply(const Block& block, Scores& scores, const Query& query,
                                                  unsigned keys) {
    const unsigned k_lane = keys + Operands::lane_offset(tile::ldmatrix_k_address(block.lane));
    const unsigned q_lane = Operands::query_address(block);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(scores[m]);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Parts<4> a[kFragments];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        unsigned x[4];
        if constexpr (kConfig.q_in_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) x[i] = query[m][k][i];
        } else {
          ptx::ldmatrix_x4(x, Operands::block_address(q_lane, 16 * m, 2 * k));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m].set(i, x[i]);
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += kTilesAtOnce) {
        Parts<2> b[kTilesAtOnce];
#pragma unroll
        for (int j = 0; j < kTilesAtOnce; j += 2) {
          unsigned x[4];
          ptx::ldmatrix_x4(x, Operands::block_address(k_lane, 8 * (n + j), 2 * k));
#pragma unroll
          for (int i = 0; i < 4; ++i) b[j + i / 2].set(i % 2, x[i]);
        }
        multiply_parts<kTilesAtOnce>(scores, n, a, b);
      }
    }
  }
};

template <const Config& kConfig, const Problem& kProblem>
struct PvGemm<kConfig, kProblem, Unit::mma_tf32> {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Scores = typename Operands::Scores;
  using Output = typename Operands::Output;
  using Probabilities = Scores;

  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kKeyTiles = Operands::kKeyTiles;
  static constexpr int kOutTiles = Operands::kOutTiles;
  static constexpr auto kLayout = Operands::kLayout;
  static constexpr int kBlocks = kProblem.head_dim / 32;  // that it is taken by

  static_assert(kProblem.head_dim % 32 == 0, "values are taken by 32 columns");

  /// Probabilities as operands.
  __device__ __forceinline__ static void to_operand(Probabilities& p, const Scores& e) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[m][n][i] = e[m][n][i];
  }
  /// The same of registers 2 * i and 2 * i + 1 of fragment m.
  __device__ __forceinline__ static void pair_to_operand(Probabilities& p, int m, int i, float low, float high) {
    p[m][i / 2][i % 2 * 2] = low;
    p[m][i / 2][i % 2 * 2 + 1] = high;
  }

  /// Of out += P V the 32 columns of a block. Lane t of four reads keys 2 t and 2 t + 1, at 16 bytes of each; the eight
  /// chunks that eight lanes read at once lie in eight groups of banks:
  ///
  ///     lane    0     1     2     3     4     5     6     7          keys 2 t, swizzled
  ///     row     0     2     4     6     0     2     4     6
  ///     chunk   0^0   0^2   0^4   0^6   1^0   1^2   1^4   1^6
  __device__ __forceinline__ static void multiply_block(Output& out, const Probabilities& p, unsigned v_lane,
                                                        int block) {
    float sums[kFragments][4][4];
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(sums[m]);
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      Parts<4> a[kFragments];
      Parts<2> b[4];
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        unsigned x[4];
        ptx::ld_shared_v4(x, address_of_values(v_lane, 8 * k, key) + 128 * block);
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j].set(key, x[j]);
      }
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m].set(i, __float_as_uint(p[m][k][tile::probability_register_fp32(i)]));
      multiply_parts<4>(sums, 0, a, b);
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][4 * block + j][i] += sums[m][j][i];
  }
  /// What a lane gives multiply_block of the tile of V in a stage.
  __device__ __forceinline__ static unsigned lane_address(const Block& block, int stage) {
    return block.stage_address(stage) + Block::kPlan.stage_bytes / 2 +
           tile::chunk_offset(kLayout, Operands::kWidth, tile::value_key_fp32(block.lane, 0), block.lane / 4);
  }
  /// out += P V of one tile.
  __device__ __forceinline__ static void multiply(const Block& block, Output& out, const Probabilities& p, int stage) {
    const unsigned v_lane = lane_address(block, stage);
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) multiply_block(out, p, v_lane, part);
  }

  /// Four neighbouring columns of a row of a fragment: those of register i of tiles n to n + 3.
  __device__ __forceinline__ static float4 four_columns(const float (&out)[kOutTiles][4], int n, int h, int i,
                                                        float factor) {
    const int r = 2 * h + i;
    return make_float4(out[n][r] * factor, out[n + 1][r] * factor, out[n + 2][r] * factor, out[n + 3][r] * factor);
  }
  /// Writes row h of a fragment. @param to the row's first column
  __device__ __forceinline__ static void put_row(float* to, const float (&out)[kOutTiles][4], int h, float factor,
                                                 int lane) {
#pragma unroll
    for (int n = 0; n < kOutTiles; n += 4)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float4*>(to + tile::out_column_fp32(lane, n, i)) = four_columns(out, n, h, i, factor);
  }

 private:
  /// Address of what a lane reads of the rows `row` to `row` + 7 of V: of the first or the second of its two keys,
  /// whose chunks differ in the last bit of the swizzle.
  __device__ __forceinline__ static unsigned address_of_values(unsigned v_lane, int row, int key) {
    const unsigned own = kLayout == tile::SharedLayout::swizzled ? v_lane ^ static_cast<unsigned>(16 * key) : v_lane;
    return own + (row + key) * Operands::kPitch;
  }
};

}  // namespace heed::sm80
