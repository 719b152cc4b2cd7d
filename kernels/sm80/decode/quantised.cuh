/// fwd_sm80_decode with K and V in 8 bits: half of the bytes, which is what decoding waits for. Tiles lie in shared
/// memory as they lie in global memory, and become operands as kernels/attention/quantised_keys.cuh says. Warps of a
/// group convert a tile each for themselves.
///
/// What conversion costs, estimated and not measured: an A100 reads 13 bytes a clock and multiprocessor (2 TB/s over
/// 108 at 1.41 GHz), and int8 takes 1.25 instructions a byte of 64 a clock, e4m3 by integers (sm_80) 3.5: a quarter of
/// the clocks, and 70%. An L4 reads 2.9 bytes a clock (0.3 TB/s over 58 at 1.8 GHz).
#pragma once

#include "kernels/attention/quantised_keys.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm80/decode/block.cuh"
#include "kernels/tile/fragment.hpp"
#include "kernels/tile/widened.cuh"

namespace heed::sm80_decode {

template <const Config& kConfig, const Problem& kProblem>
struct QuantisedGemms {
  using Block = sm80_decode::Block<kConfig, kProblem>;

  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = Block::kFragments;
  static constexpr int kOutTiles = Block::kOutTiles;
  static constexpr int kKeyTiles = kConfig.block_n / 8;  // n-tiles of S
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr Element kOperand = Block::kOperand;
  static constexpr auto kLayout = kConfig.smem_layout;

  using Scores = float[kFragments][kKeyTiles][4];
  using AllQuery = unsigned[kFragments][kDim / 16][4];
  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kDim / 16 : 1][4];

  /// What scores are multiplied by.
  struct Factors {
    float of_rows[kFragments][2];                         ///< lane / 4 + 8 h of each fragment
    float of_keys[Block::kQuantised ? kKeyTiles : 1][2];  ///< 8 n + 2 (lane % 4) + i of a tile
  };

  /// Address a lane gives to ldmatrix for a 16 x 16 block of pairs of bytes at (row, 8 * chunk) of a tile of K or V.
  __device__ __forceinline__ static unsigned key_address(unsigned tile, int row, int chunk,
                                                         tile::Coordinate lane_offset) {
    return tile + key_chunk_offset(kLayout, kDim / 2, row + lane_offset.row, chunk + lane_offset.column / 8);
  }

  /// Address of 16-byte chunk `chunk` of a warp's row of Q.
  __device__ __forceinline__ static unsigned query_address(const Block& block, int row, int chunk) {
    return block.shared_base + kPlan.q + tile::chunk_offset(kLayout, kDim, block.warp * kConfig.warp_rows + row, chunk);
  }

  /// Q in registers, or, as the A operand that ldmatrix brings, in shared memory again. For whole blocks.
  __device__ __forceinline__ static void take_queries(const Block& block, Query& query, Factors& factors) {
    if constexpr (kConfig.q_in_registers) {
      load_queries(block, query, factors);
    } else {
      AllQuery all;
      load_queries(block, all, factors);
      __syncthreads();  // all groups have read it
      if (block.group == 0)
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
          for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              ptx::st_shared(
                  query_address(block, 16 * m + block.lane / 4 + 8 * (i % 2), 2 * k + i / 2) + 4 * (block.lane % 4),
                  all[m][k][i]);
      __syncthreads();
    }
  }

  /// Q from shared memory, in fp16 and in the order of K's columns, and the factors of all keys where they share one.
  __device__ __forceinline__ static void load_queries(const Block& block, AllQuery& query, Factors& factors) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * m + block.lane / 4 + 8 * h;
        attention::QueryScale scale;
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int column = attention::query_column(block.lane, c);
            unsigned& pair = query[m][k][2 * c + h];
            pair = ptx::ld_shared(query_address(block, row, 2 * k + column / 8) + column % 8 * 2);
            scale.see(pair);
          }
        factors.of_rows[m][h] = 1.0F;
        if constexpr (attention::scales_queries(kProblem)) {
          const unsigned exponent = scale.exponent();
          factors.of_rows[m][h] = attention::QueryScale::inverse(exponent);
#pragma unroll
          for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
            for (int c = 0; c < 2; ++c)
              query[m][k][2 * c + h] =
                  attention::QueryScale::scaled(query[m][k][2 * c + h], attention::QueryScale::factor(exponent));
        }
      }
    const attention::KeyFactors<kProblem> of(block.params, block.batch, block.rows.kv_head);
    const float all = of.differ ? 0.0F : of.of(0);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) factors.of_keys[n][i] = all;
  }

  /// Of a tile that the group has, where keys have their own.
  __device__ __forceinline__ static void load_factors(const Block& block, Factors& factors, int first_key) {
    const attention::KeyFactors<kProblem> of(block.params, block.batch, block.rows.kv_head);
    if (!of.differ) return;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) factors.of_keys[n][i] = of.of(first_key + 8 * n + 2 * (block.lane % 4) + i);
  }

  __device__ __forceinline__ static void multiply_keys(const Block& block, Scores& scores, const Query& query,
                                                       unsigned keys) {
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2) {
      unsigned a[2][kFragments][4];
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int m = 0; m < kFragments; ++m) load_query(block, a[s][m], query, m, k + s);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned bytes[4];
        ptx::ldmatrix_x4(bytes, key_address(keys, 8 * n, k, tile::ldmatrix_k_address(block.lane)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned b[2];
          tile::widen<k_element(kProblem)>(b[0], b[1], bytes[i]);
#pragma unroll
          for (int m = 0; m < kFragments; ++m)
            ptx::mma_m16n8k16<kOperand>(scores[m][n + i / 2], a[i % 2][m], b[0], b[1]);
        }
      }
    }
  }
  __device__ __forceinline__ static void load_query(const Block& block, unsigned (&a)[4], const Query& query, int m,
                                                    int k) {
    if constexpr (kConfig.q_in_registers) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = query[m][k][i];
    } else {
      const tile::Coordinate at = tile::ldmatrix_a_address(block.lane);
      ptx::ldmatrix_x4(a, query_address(block, 16 * m + at.row, 2 * k + at.column / 8));
    }
  }

  __device__ __forceinline__ static void scale_scores(Scores& scores, const Factors& factors) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            scores[m][n][2 * h + i] *= attention::scales_queries(kProblem)
                                           ? factors.of_keys[n][i] * factors.of_rows[m][h]
                                           : factors.of_keys[n][i];
  }

  /// Of step k of 16 keys. Tiles n and n + 1 of the output get the even and the odd columns of 16 (put_partials).
  __device__ __forceinline__ static void multiply_values(const Block& block, float (&out)[kFragments][kOutTiles][4],
                                                         const unsigned (&p)[kFragments][4], unsigned values, int k) {
#pragma unroll
    for (int n = 0; n < kOutTiles; n += 4) {
      unsigned bytes[4];
      ptx::ldmatrix_x4_trans(bytes, key_address(values, 16 * k, n / 2, tile::ldmatrix_v_address(block.lane)));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        unsigned even[2];
        unsigned odd[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) tile::widen_alternate<v_element(kProblem)>(even[i], odd[i], bytes[2 * c + i]);
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          ptx::mma_m16n8k16<kOperand>(out[m][n + 2 * c], p[m], even[0], even[1]);
          ptx::mma_m16n8k16<kOperand>(out[m][n + 2 * c + 1], p[m], odd[0], odd[1]);
        }
      }
    }
  }
};

}  // namespace heed::sm80_decode
