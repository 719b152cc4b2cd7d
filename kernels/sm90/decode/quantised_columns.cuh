/// What warps that take every tile together (columns.cuh) do otherwise where K and V have 8 bits (quantised.cuh).
#pragma once

#include "kernels/sm90/decode/column_scores.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct QuantisedColumns {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using KnownJob = typename Block::KnownJob;
  using Scores = typename ColumnScores<kConfig, kProblem>::Scores;

  static constexpr int kBlockN = Block::kBlockN;
  static constexpr int kDim = Block::kDim;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr int kKeys = ColumnScores<kConfig, kProblem>::kKeys;
  static constexpr int kRows = ColumnScores<kConfig, kProblem>::kRows;
  static constexpr int kColumns = column_fragments(kConfig, kDim);
  static constexpr unsigned kAll = 0xffffffffU;
  static constexpr int kSteps = kBlockN / 16;  // of 16 keys of a product with V

  using TileFactors = float[kKeys][2];  // of keys T / 4 and T / 4 + 8 of a warp's fragments

  /// What scores are multiplied by where K has 8 bits; else nothing. Factors of keys are asked for a tile ahead: they
  /// alone of a tile's numbers do not come through shared memory.
  struct Factors {
    float of_rows[kQuantised ? kRows : 1][2];
    TileFactors of_keys;
    TileFactors next;
  };

  /// Before the first tile of a segment, whose first key is `first` from that of the job's first tile on.
  __device__ __forceinline__ static void begin_factors(const Block& block, Factors& factors, const KnownJob& job,
                                                       int first) {
    const KeyFactors<kProblem> of(block.params_of(job), job.batch, job.kv_head);
    if constexpr (Block::kEntries) first += job.first_key;
    const float all = of.differ ? 0.0F : of.of(0);
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) factors.next[j][h] = all;
    load_factors(block, factors.next, of, job, first);
  }
  /// Before the tile with the first key `first_key`.
  __device__ __forceinline__ static void advance_factors(const Block& block, Factors& factors, const KnownJob& job,
                                                         int first_key) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) factors.of_keys[j][h] = factors.next[j][h];
    load_factors(block, factors.next, {block.params_of(job), job.batch, job.kv_head}, job, first_key + kBlockN);
  }
  /// Of a tile, where keys have their own and the job any of them.
  __device__ __forceinline__ static void load_factors(const Block& block, TileFactors& factors,
                                                      const KeyFactors<kProblem>& of, const KnownJob& job,
                                                      int first_key) {
    if (!of.differ || first_key >= job.keys_end) return;
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        factors[j][h] = of.of(first_key + 16 * (block.group * kKeys + j) + block.lane / 4 + 8 * h);
  }
  __device__ __forceinline__ static void scale_scores(Scores& scores, const float (&row_factors)[kRows][2],
                                                      const TileFactors& key_factors) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[j][n][e] *=
              scales_queries(kProblem) ? key_factors[j][e / 2] * row_factors[n][e % 2] : key_factors[j][e / 2];
  }

  /// Q beside K in 8 bits, in fp16 and in its order of columns. What scores of rows 8 n + 2 (lane % 4) + r are
  /// multiplied by is row_factors[n][r].
  __device__ __forceinline__ static void load_queries_of_quantised(const Block& block,
                                                                   unsigned (&query)[kDim / 16][kRows][2],
                                                                   float (&row_factors)[kRows][2],
                                                                   const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + block.lane / 4;
      const bool inside = row < job.rows;
      const unsigned short* from = block.query_row(job, inside ? row : 0);
      QueryScale scale;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          query[k][n][c] = inside && 16 * k < kHeadDim
                               ? *reinterpret_cast<const unsigned*>(from + 16 * k + query_column(block.lane, c))
                               : 0U;
          scale.see(query[k][n][c]);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) row_factors[n][r] = 1.0F;
      if constexpr (scales_queries(kProblem)) {
        const unsigned exponent = scale.exponent();
#pragma unroll
        for (int r = 0; r < 2; ++r)
          row_factors[n][r] = __shfl_sync(kAll, QueryScale::inverse(exponent), 4 * (2 * (block.lane % 4) + r));
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
          for (int c = 0; c < 2; ++c) query[k][n][c] = QueryScale::scaled(query[k][n][c], QueryScale::factor(exponent));
      }
    }
  }

  /// The A operand V^T of V in 8 bits, two steps of 16 keys at a time. Even columns of a fragment are its rows 0 to 7,
  /// odd ones 8 to 15.
  __device__ __forceinline__ static void load_quantised_values(const Block& block,
                                                               unsigned (&values)[kSteps][kColumns][4], unsigned from) {
#pragma unroll
    for (int k = 0; k < kSteps; k += 2)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        unsigned bytes[4];
        ptx::ldmatrix_x4_trans(bytes, Block::block_address(from, 16 * k, block.group * kColumns + i, {block.lane, 0}));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          unsigned(&a)[4] = values[k + e / 2][i];
          tile::widen_alternate<v_element(kProblem)>(a[e % 2 * 2], a[e % 2 * 2 + 1], bytes[e]);
        }
      }
  }
};

}  // namespace heed::sm90_decode
