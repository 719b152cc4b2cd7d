/// The products of fwd_sm80: mma.sync on tiles in shared memory, which a warp reads with ldmatrix. QkGemm computes the
/// scores of a tile and PvGemm adds a tile's values to the output; operands of 16 bits are here.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/forward/block.cuh"
#include "kernels/tile/fragment.hpp"
#include "kernels/tile/widened.cuh"

namespace heed::sm80 {

/// Where operands lie in shared memory, and fragments that are the same for all element types.
template <const Config& kConfig, const Problem& kProblem>
struct Operands {
  using Block = sm80::Block<kConfig, kProblem>;

  static constexpr int kWidth = Block::kWidth;
  static constexpr auto kLayout = kConfig.smem_layout;
  static constexpr int kFragments = Block::kFragments;
  static constexpr int kOutTiles = Block::kOutTiles;
  static constexpr int kKeyTiles = kConfig.block_n / 8;  // n-tiles of S
  static constexpr int kPitch = tile::row_pitch(kLayout, kWidth);
  static constexpr bool kOnes = kConfig.rowsum == attention::Rowsum::mma;  // V has a tile of columns of ones
  static constexpr int kAccTiles = kOutTiles + (kOnes ? 1 : 0);            // n-tiles of P V: of O, and of row sums

  using Scores = float[kFragments][kKeyTiles][4];  // (warp rows, keys), accumulator fragments
  using Output = float[kFragments][kAccTiles][4];  // (warp rows, head dim and columns of ones), the same

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

  /// What a lane gives block_address for its warp's rows of Q.
  __device__ __forceinline__ static unsigned query_address(const Block& block) {
    return block.shared_base + Block::kPlan.q + block.warp * kConfig.warp_rows * kPitch +
           lane_offset(tile::ldmatrix_a_address(block.lane));
  }

  /// sums += Q K^T of one tile, by kSteps products of 32 bytes of the head dim.
  /// @param multiply (d, a, b0, b1): the instruction
  template <int kSteps, class Sum, class Query, class Multiply>
  __device__ __forceinline__ static void add_products(const Block& block, Sum (&sums)[kFragments][kKeyTiles][4],
                                                      const Query& query, unsigned keys, Multiply multiply) {
    const unsigned k_lane = keys + lane_offset(tile::ldmatrix_k_address(block.lane));
    const unsigned q_lane = query_address(block);
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
  mma_tf32,       ///< three of tf32 for one of fp32 (gemms_fp32.cuh)
  mma_8_bit_key,  ///< Q K^T of int8 or e4m3, P V of 16 bits (gemms_8_bit.cuh)
};
HEED_HOST_DEVICE constexpr Unit unit_of(const Problem& problem) {
  return problem.element == Element::fp32 ? Unit::mma_tf32
         : is_quantised(problem)          ? Unit::mma_8_bit_key
                                          : Unit::mma_16_bit;
}

/// S = Q K^T. Of 16-bit elements, by mma.m16n8k16.
template <const Config& kConfig, const Problem& kProblem, Unit kUnit = unit_of(kProblem)>
struct QkGemm {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Scores = typename Operands::Scores;

  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kSteps = kProblem.head_dim / 16;  // of the head dim

  static_assert(kProblem.head_dim % 16 == 0, "mma.m16n8k16 takes 16 of the head dim at a time");

  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kSteps : 1][4];

  /// scores = Q K^T of one tile.
  __device__ __forceinline__ static void multiply(const Block& block, Scores& scores, const Query& query,
                                                  unsigned keys) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(scores[m]);
    Operands::template add_products<kSteps>(block, scores, query, keys,
                                            [](float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) {
                                              ptx::mma_m16n8k16<kProblem.element>(d, a, b0, b1);
                                            });
  }
};

/// O += P V, of 16-bit elements, by mma.m16n8k16. V may be of 8 bits, where Q and K are too.
template <const Config& kConfig, const Problem& kProblem, Unit kUnit = unit_of(kProblem)>
struct PvGemm {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Scores = typename Operands::Scores;
  using Output = typename Operands::Output;

  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kOutTiles = Operands::kOutTiles;
  static constexpr int kValueChunks = kProblem.head_dim * Block::kValueBytes / 16;  // 16-byte chunks of a row of V
  static constexpr int kBlocks = kBlockN / 16 * (kValueChunks / 2);                 // that it is taken by
  static constexpr bool kWidens = widens_values(kProblem);
  static constexpr Element kOperand = value_operand(kProblem);

  static_assert(kBlockN % 16 == 0, "mma.m16n8k16 takes 16 keys at a time");

  using Probabilities = unsigned[kFragments][kBlockN / 16][4];  // the scores as A operands

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
  __device__ __forceinline__ static void multiply_block(Output& out, const Probabilities& p, unsigned v_lane,
                                                        int block) {
    const int k = block / (kValueChunks / 2);
    const int n = block % (kValueChunks / 2) * 2;
    unsigned b[4];
    ptx::ldmatrix_x4_trans(b, Operands::block_address(v_lane, 16 * k, n));
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
    if constexpr (Operands::kOnes) {
      constexpr unsigned kTwoOnes = ElementTraits<kOperand>::two_ones;
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
        if (n == 0) ptx::mma_m16n8k16<kOperand>(out[m][kOutTiles], p[m][k], kTwoOnes, kTwoOnes);
    }
  }
  /// What a lane gives multiply_block of the tile of V in a stage.
  __device__ __forceinline__ static unsigned lane_address(const Block& block, int stage) {
    return block.stage_address(stage) + Block::kPlan.stage_bytes / 2 +
           Operands::lane_offset(tile::ldmatrix_v_address(block.lane));
  }
  /// out += P V of one tile.
  __device__ __forceinline__ static void multiply(const Block& block, Output& out, const Probabilities& p, int stage) {
    const unsigned v_lane = lane_address(block, stage);
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) multiply_block(out, p, v_lane, part);
  }

  /// Output times the factors of V, in front of what finishes rows. Where no key is seen nobody has checked them.
  __device__ __forceinline__ static void scale_output(const Block& block, Output& out) {
    if constexpr (kWidens) {
      if (block.group_tiles == 0) return;
      const TensorScales& s = block.params.v_scales;
      const float* of_column = s.at + scale_index(s, block.batch, block.head / block.params.group_size, 0);
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float factor = of_column[s.channel * tile::out_column_of_pairs(block.lane, n, i)];
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
            out[m][n][i] *= factor;
            out[m][n][2 + i] *= factor;
          }
        }
    }
  }
};

}  // namespace heed::sm80
