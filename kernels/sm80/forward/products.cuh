/// The products of fwd_sm80: mma.sync on tiles in shared memory, which a warp reads with ldmatrix.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/forward/rounds.cuh"
#include "kernels/tile/fragment.hpp"
#include "kernels/tile/widened.cuh"

namespace heed::sm80 {

/// Where operands lie in shared memory, and fragments that are the same for all element types.
template <const Config& kConfig, const Problem& kProblem>
struct Operands : Rounds<kConfig, kProblem> {
  using Base = Rounds<kConfig, kProblem>;
  using Base::kBlockN, Base::kFragments, Base::kOutTiles, Base::kPlan, Base::kWidth, Base::kLayout, Base::shared_base,
      Base::lane, Base::warp;

  // ---- compile-time facts
  static constexpr int kKeyTiles = kBlockN / 8;  // n-tiles of S
  static constexpr int kPitch = tile::row_pitch(kLayout, kWidth);
  static constexpr bool kOnes = kConfig.rowsum == attention::Rowsum::mma;  // V has a tile of columns of ones
  static constexpr int kAccTiles = kOutTiles + (kOnes ? 1 : 0);            // n-tiles of P V: of O, and of row sums

  using Scores = float[kFragments][kKeyTiles][4];  // (warp rows, keys), accumulator fragments
  using Output = float[kFragments][kAccTiles][4];  // (warp rows, head dim and columns of ones), the same

  using Base::Base;

  /// What a lane adds to a tile's address for ldmatrix of the block at (0, 0).
  __device__ __forceinline__ static unsigned lane_offset(tile::Coordinate at) {
    return tile::chunk_offset(kLayout, kWidth, at.row, at.column / 8);
  }
  /// Address for the block of 16 rows and two chunks at (row, chunk): row a multiple of 8, chunk even, so that the
  /// swizzle is one exclusive or of the lane's own address. `lane_address`: tile address, a multiple of 128, and
  /// lane_offset.
  __device__ __forceinline__ static unsigned block_address(unsigned lane_address, int row, int chunk) {
    if constexpr (kLayout == tile::SharedLayout::swizzled)
      return (lane_address ^ (chunk % 8 * 16)) + row * kPitch + chunk / 8 * 128;
    else
      return lane_address + row * kPitch + chunk * 16;
  }

  /// sums += Q K^T of one tile, by kSteps products of 32 bytes of the head dim.
  /// @param multiply (d, a, b0, b1): the instruction
  template <int kSteps, class Sum, class Query, class Multiply>
  __device__ __forceinline__ void add_products(Sum (&sums)[kFragments][kKeyTiles][4], const Query& query, unsigned keys,
                                               Multiply multiply) const {
    const unsigned k_lane = keys + lane_offset(tile::ldmatrix_k_address(lane));
    const unsigned q_lane =
        shared_base + kPlan.q + warp * kConfig.warp_rows * kPitch + lane_offset(tile::ldmatrix_a_address(lane));
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if constexpr (kConfig.q_in_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = query[m][k][i];
        } else {
          ptx::ldmatrix_x4(a[m], block_address(q_lane, 16 * m, 2 * k));
        }
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, block_address(k_lane, 8 * n, 2 * k));
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          multiply(sums[m][n], a[m], b[0], b[1]);
          multiply(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

/// What computes the products of a problem.
enum class Unit {
  mma_16_bit,     ///< and values of 8 bits, made fp16
  mma_tf32,       ///< three of tf32 for one of fp32 (products_fp32.cuh)
  mma_8_bit_key,  ///< Q K^T of int8 or e4m3, P V of 16 bits (products_8_bit.cuh)
};
HEED_HOST_DEVICE constexpr Unit unit_of(const Problem& problem) {
  return problem.element == Element::fp32 ? Unit::mma_tf32
         : is_quantised(problem)          ? Unit::mma_8_bit_key
                                          : Unit::mma_16_bit;
}

/// Of 16-bit elements, by mma.m16n8k16. V may be of 8 bits, where Q and K are too.
template <const Config& kConfig, const Problem& kProblem, Unit kUnit = unit_of(kProblem)>
struct Products : Operands<kConfig, kProblem> {
  using Base = Operands<kConfig, kProblem>;
  using Base::kBlockN, Base::kDim, Base::kFragments, Base::kOutTiles, Base::kPlan, Base::kPitch, Base::kKeyTiles,
      Base::shared_base, Base::lane, Base::warp, Base::stage_address, Base::lane_offset, Base::block_address;
  using typename Base::Scores, typename Base::Output;

  // ---- compile-time facts
  static constexpr int kSteps = kDim / 16;                                // of the head dim, in S
  static constexpr int kValueChunks = kDim * Base::kValueBytes / 16;      // 16-byte chunks of a row of V
  static constexpr int kValueBlocks = kBlockN / 16 * (kValueChunks / 2);  // that P V is taken by
  static constexpr bool kWidens = widens_values(kProblem);
  static constexpr Element kOperand = value_operand(kProblem);  // of P V

  static_assert(kDim % 16 == 0 && kBlockN % 16 == 0, "mma.m16n8k16 takes 16 of the head dim and 16 keys at a time");

  using Probabilities = unsigned[kFragments][kBlockN / 16][4];  // the scores as A operands
  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kSteps : 1][4];

  using Base::Base;

  /// scores = Q K^T of one tile.
  __device__ __forceinline__ void multiply_keys(Scores& scores, const Query& query, unsigned keys) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(scores[m]);
    this->template add_products<kSteps>(scores, query, keys,
                                        [](float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) {
                                          ptx::mma_m16n8k16<kProblem.element>(d, a, b0, b1);
                                        });
  }

  /// Probabilities as operands.
  __device__ __forceinline__ static void to_operand(Probabilities& p, const Scores& e) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int k = 0; k < kBlockN / 16; ++k)
        attention::round_to_operand<kOperand>(p[m][k], e[m][2 * k], e[m][2 * k + 1]);
  }
  /// The same of registers 2 * i and 2 * i + 1 of fragment m.
  __device__ __forceinline__ static void pair_to_operand(Probabilities& p, int m, int i, float low, float high) {
    p[m][i / 4][i % 4] = ptx::cvt_rn_x2<kOperand>(low, high);
  }

  /// Of out += P V the 16 keys and two chunks of columns of a block; blocks go along columns first. Of V in 8 bits each
  /// chunk has 16 columns, the even ones in one tile of the output and the odd ones in the next. Columns of ones, where
  /// V has them, are one product more for every 16 keys: 17 instead of 16 at head dim 64.
  __device__ __forceinline__ static void multiply_values_block(Output& out, const Probabilities& p, unsigned v_lane,
                                                               int block) {
    const int k = block / (kValueChunks / 2);
    const int n = block % (kValueChunks / 2) * 2;
    unsigned b[4];
    ptx::ldmatrix_x4_trans(b, block_address(v_lane, 16 * k, n));
    if constexpr (kWidens) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        unsigned even[2];
        unsigned odd[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) tile::widen_alternate<v_element(kProblem)>(even[i], odd[i], b[2 * c + i]);
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          ptx::mma_m16n8k16<kOperand>(out[m][2 * (n + c)], p[m][k], even[0], even[1]);
          ptx::mma_m16n8k16<kOperand>(out[m][2 * (n + c) + 1], p[m][k], odd[0], odd[1]);
        }
      }
    } else {
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        ptx::mma_m16n8k16<kOperand>(out[m][n], p[m][k], b[0], b[1]);
        ptx::mma_m16n8k16<kOperand>(out[m][n + 1], p[m][k], b[2], b[3]);
      }
    }
    if constexpr (Base::kOnes) {
      constexpr unsigned kTwoOnes = kOperand == Element::fp16 ? 0x3C003C00U : 0x3F803F80U;
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
        if (n == 0) ptx::mma_m16n8k16<kOperand>(out[m][kOutTiles], p[m][k], kTwoOnes, kTwoOnes);
    }
  }
  __device__ __forceinline__ unsigned lane_of_values(int stage) const {
    return stage_address(stage) + kPlan.stage_bytes / 2 + lane_offset(tile::ldmatrix_v_address(lane));
  }
  /// out += P V of one tile.
  __device__ __forceinline__ void multiply_values(Output& out, const Probabilities& p, int stage) const {
    const unsigned v_lane = lane_of_values(stage);
#pragma unroll
    for (int block = 0; block < kValueBlocks; ++block) multiply_values_block(out, p, v_lane, block);
  }
};

}  // namespace heed::sm80
