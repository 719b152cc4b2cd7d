/// The products of fwd_sm80 with Q and K in 8 bits: scores by mma.m16n8k32 of int8 or, from sm_89 on, of e4m3; values
/// in 16 bits as ever, to which V in e4m3 is brought in registers (kernels/tile/widened.cuh).
///
/// A score is scale * q_factor[row] * k_factor[key] * (sum of products). Of int8 the sum is exact in int32, and in
/// fp32, as it is 256 * 128 * 128 = 2^22 at most; of e4m3 it is as exact as tensor cores add (kernels/ptx/mma.cuh).
/// After SageAttention (Zhang et al., arXiv 2410.02367), whose factors of K are those of blocks as well. V's factors,
/// of tensors, heads or channels, are the same for all keys and multiply the output at the end.
///
/// P and V are multiplied in fp16, not in e4m3: P keeps its digits, and V needs no transposition of bytes, for which
/// mma.m16n8k32 would want four keys of a column in a register.
///
/// Rows of 8 bits have the room of 16-bit ones in shared memory and take the first half of it: 16-byte chunks lie where
/// their swizzle has them, rows of 64 bytes too, and O is written where Q was without a barrier.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/scales.hpp"
#include "kernels/ptx/maximum.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/forward/gemms.cuh"

namespace heed::sm80 {

template <const Config& kConfig, const Problem& kProblem>
struct QkGemm<kConfig, kProblem, Unit::mma_8_bit_key> {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Scores = typename Operands::Scores;

  static_assert(kProblem.inputs.q == kProblem.inputs.k && bytes_of(kProblem.inputs.q) == 1 &&
                    kProblem.inputs.q != Element::e5m2,
                "Q and K are int8 or e4m3");
  static_assert(kProblem.inputs.v == kProblem.element || kProblem.inputs.v == Element::e4m3,
                "V has the elements of O or is e4m3");

  // ---- compile-time facts
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kKeyTiles = Operands::kKeyTiles;
  static constexpr int kSteps = kProblem.head_dim / 32;  // of the head dim
  static constexpr bool kIsInt8 = kProblem.inputs.q == Element::int8;
  // Sums of int8 begin at the bits of 1.5 * 2^23, to which integers of up to 2^22 are added as to a number of fp32
  // whose last digit is 1: sums are fp32 as they come, this much too large, and need no conversion, an instruction
  // each.
  static constexpr int kFirstSum = 0x4B400000;
  static constexpr float kTooLarge = kIsInt8 ? 12582912.0F : 0.0F;
  static constexpr float kLargestFactor = 0x1p100F;  // that kTooLarge may be multiplied with

  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kSteps : 1][4];

  // ---- state
  float query_factors[kFragments][2];  // of the lane's rows lane / 4 + 8 h of each fragment
  unsigned inverse_rows;               // 2^32 / rows that share a factor of K, rounded up

  /// Reads the factors of a warp's rows; those past the last row are 0.
  __device__ __forceinline__ void load_query_factors(const Block& block, int warp_row) {
    inverse_rows = 0xffffffffU / static_cast<unsigned>(block.params.k_scales.rows) + 1;
    const TensorScales& s = block.params.q_scales;
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + 16 * m + block.lane / 4 + 8 * h;
        query_factors[m][h] = row < block.params.len_q ? s.at[scale_index(s, block.batch, block.head, row)] : 0.0F;
      }
  }

  /// scores = Q K^T of one tile, of the elements alone, and kTooLarge.
  __device__ __forceinline__ static void multiply(const Block& block, Scores& scores, const Query& query,
                                                  unsigned keys) {
    if constexpr (kIsInt8) {
      int sums[kFragments][kKeyTiles][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][n][i] = kFirstSum;
      Operands::template add_products<kSteps>(
          block, sums, query, keys,
          [](int(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { ptx::mma_m16n8k32_s8(d, a, b0, b1); });
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[m][n][i] = __int_as_float(sums[m][n][i]);
    } else {
#pragma unroll
      for (int m = 0; m < kFragments; ++m) attention::clear(scores[m]);
      Operands::template add_products<kSteps>(
          block, scores, query, keys,
          [](float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { ptx::mma_m16n8k32_e4m3(d, a, b0, b1); });
    }
  }

  /// The factor of a tile's keys where they share one.
  struct KeyFactor {
    float factor;
    bool is_shared;
  };
  /// To be called in front of the tile's products: the load takes as long as many of them, and behind them two warps
  /// a quarter of a multiprocessor would have nothing else to do.
  /// @param first the tile's first key, of the entry
  __device__ __forceinline__ KeyFactor key_factor(const Block& block, int first) const {
    const TensorScales& s = block.params.k_scales;
    const int kv_head = block.params.group_size == 1 ? block.head : block.head / block.params.group_size;
    if (s.strides.row == 0) return {s.at[factor_index(block, s, kv_head, 0)], true};
    // Of pages blocks are of the page, and tiles may be of several.
    if constexpr (kProblem.features.pages) return {0.0F, false};
    if (s.rows < kBlockN) return {0.0F, false};
    // The quotient, or one more, as the row is below 2^31: a division takes 20 instructions, of every tile.
    const int at = first + s.first_row;
    int quotient = static_cast<int>(static_cast<unsigned long long>(at) * inverse_rows >> 32);
    int in_block = at - quotient * s.rows;
    if (in_block < 0) {
      --quotient;
      in_block += s.rows;
    }
    if (in_block + kBlockN > s.rows) return {0.0F, false};
    return {s.at[block.batch * s.strides.batch + kv_head * s.strides.head + quotient * s.strides.row], true};
  }

  /// Scores times the factors of their rows and keys. One factor of K where the tile's keys share it, else one each
  /// column. Keys past the last are read as the last, whose scores nobody takes.
  __device__ __forceinline__ void scale_scores(const Block& block, Scores& scores, const KeyFactor& of_tile,
                                               int first) const {
    if (of_tile.is_shared && scale_rows(scores, of_tile.factor)) return;
    const TensorScales& s = block.params.k_scales;
    const int kv_head = block.head / block.params.group_size;
    const int last = max(block.params.len_k - 1, 0);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = first + 8 * n + 2 * (block.lane % 4) + i;
        const float k_factor = s.at[factor_index(block, s, kv_head, key < last ? key : last)];
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            scores[m][n][2 * h + i] = (scores[m][n][2 * h + i] - kTooLarge) * query_factors[m][h] * k_factor;
      }
  }

 private:
  /// Scores times the factors of their rows and the tile's, in one instruction each. False where nothing was done,
  /// since a factor of int8 is so large that kTooLarge times it may leave fp32.
  __device__ __forceinline__ bool scale_rows(Scores& scores, float k_factor) const {
    if constexpr (kIsInt8) {
      bool fits = true;
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) fits = fits && !(query_factors[m][h] * k_factor > kLargestFactor);
      if (__any_sync(0xffffffffU, !fits)) return false;
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float f = query_factors[m][h] * k_factor;
        // Without its last two digits the product with kTooLarge, 3 * 2^22, is exact. Of e4m3 two factors whose product
        // is beyond fp32 leave a score of zero zero.
        f = kIsInt8 ? __uint_as_float(__float_as_uint(f) & ~3U) : ptx::min_nan(f, attention::kLargest);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i)
            scores[m][n][i] = kIsInt8 ? fmaf(scores[m][n][i], f, -kTooLarge * f) : scores[m][n][i] * f;
      }
    return true;
  }
  __device__ __forceinline__ static long long factor_index(const Block& block, const TensorScales& s, int kv_head,
                                                           int key) {
    if constexpr (kProblem.features.pages)
      return key_scale_index(block.params, s, block.batch, kv_head, key);
    else
      return scale_index(s, block.batch, kv_head, key);
  }
};

}  // namespace heed::sm80
