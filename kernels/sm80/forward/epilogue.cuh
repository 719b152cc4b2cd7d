/// The end of a block of fwd_sm80: rows are divided by their sums and written, where there are several groups after
/// their partial outputs have met in shared memory and become one in fp32.
#pragma once

#include "kernels/attention/output.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/forward/gemms.cuh"
#include "kernels/sm80/forward/gemms_8_bit.cuh"
#include "kernels/sm80/forward/gemms_fp32.cuh"

namespace heed::sm80 {

/// What elements of so many bytes are stored as.
template <int kBytes>
struct StoredAs {
  using Type = unsigned short;
};
template <>
struct StoredAs<4> {
  using Type = float;
};

template <const Config& kConfig, const Problem& kProblem>
struct CollectiveEpilogue {
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Block = typename Operands::Block;
  using Output = typename Operands::Output;
  using Pv = PvGemm<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBytes = Block::kBytes;
  static constexpr int kWidth = Block::kWidth;
  static constexpr int kFragments = Operands::kFragments;
  static constexpr int kOutTiles = Operands::kOutTiles;
  static constexpr int kAccTiles = Operands::kAccTiles;
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr auto kLayout = kConfig.smem_layout;
  static constexpr int kThreads = threads(kConfig);
  static constexpr int kChunks = kWidth / 8;               // 16-byte chunks a row
  static constexpr int kPieces = kDim / 8;                 // of a row, where groups' parts are added up
  static constexpr bool kPairs = widens_values(kProblem);  // columns of O lie as tile::out_column_of_pairs says

  using Stored = typename StoredAs<kBytes>::Type;

  // ---- state
  char* shared;

  __device__ __forceinline__ static Stored* out_row(const Block& block, int row) {
    return static_cast<Stored*>(block.params.o) + block.batch * block.params.o_strides.batch +
           block.head * block.params.o_strides.head + row * block.params.o_strides.row;
  }

  __device__ __forceinline__ static void store_lse(const Block& block, int row, float row_max, float sum) {
    if constexpr (has_features(kProblem.features)) {
      if (block.params.lse != nullptr && row < block.params.len_q)
        block.params.lse[attention::lse_offset(block.params, block.batch, block.head, row)] =
            attention::log_sum_exp(sum != 0.0F, row_max, sum);  // NaN stays NaN
    } else {
      if (block.params.lse != nullptr && row < block.params.len_q)
        block.params
            .lse[(static_cast<long long>(block.batch) * block.params.heads + block.head) * block.params.len_q + row] =
            attention::log_sum_exp(sum > 0.0F, row_max, sum);
    }
  }

  /// What the outputs of a row that has seen all of its keys are multiplied with. The head's sink, if any, is added to
  /// the row's maximum and sum.
  __device__ __forceinline__ static float finish_row(const Block& block, float& row_max, float& sum) {
    float factor = 1.0F;
    if constexpr (kProblem.features.dropout) factor = attention::dropout_factor(block.params, sum);
    if constexpr (kProblem.features.sinks) factor *= attention::add_sink(block.params, block.head, row_max, sum);
    if constexpr (kProblem.features.dropout || kProblem.features.sinks)
      return factor * attention::exact_inverse_or_zero(sum);
    else
      return attention::exact_inverse_or_zero(sum);
  }

  /// Norms and gates row h of a fragment, which a quad holds.
  __device__ __forceinline__ static void finish_output(const Block& block, float (&out)[kAccTiles][4], int h,
                                                       float inverse, int row) {
    attention::finish_output<kProblem, 4, 2 * kOutTiles>(
        block.params, {block.batch, block.head, row, row < block.params.len_q}, inverse,
        [&](int i) -> float& { return out[i / 2][2 * h + i % 2]; },
        [&](int i) {
          return kBytes == 4 ? tile::out_column_fp32(block.lane, i / 2, i % 2)
                 : kPairs    ? tile::out_column_of_pairs(block.lane, i / 2, i % 2)
                             : 8 * (i / 2) + 2 * (block.lane % 4) + i % 2;
        });
  }

  /// Puts a finished row of a fragment in fp32 where it leaves from: shared memory or O.
  __device__ __forceinline__ void put_chunks(const Block& block, const float (&out)[kAccTiles][4], int h, float inverse,
                                             int row_in_block, int row) const {
    if constexpr (kConfig.epilogue == Epilogue::shared) {
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 4)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<float4*>(
              shared + kPlan.q +
              tile::chunk_offset(kLayout, kWidth, row_in_block, tile::out_column_fp32(block.lane, n, i) / 4)) =
              Pv::four_columns(out, n, h, i, inverse);
    } else {
      if (row < block.params.len_q) Pv::put_row(out_row(block, row), out, h, inverse, block.lane);
    }
  }

  /// The sums of whole rows, in each lane.
  __device__ __forceinline__ static void finish_sums(attention::RowState<kFragments>& rows, const Output& out) {
    if constexpr (Operands::kOnes) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) rows.row_sum[m][h] = out[m][kOutTiles][2 * h];
    } else {
      rows.reduce();
    }
  }

  /// The same of a row in 16 bits whose tiles have even and odd columns: 8 bytes at a time.
  __device__ __forceinline__ void put_pairs(const Block& block, const float (&out)[kAccTiles][4], int h, float inverse,
                                            int row_in_block, int row) const {
#pragma unroll
    for (int n = 0; n < kOutTiles; n += 2) {
      const float4 x = attention::four_columns_of_pairs(out, n, h);
      const uint2 packed = {ptx::cvt_rn_x2<kProblem.element>(x.x * inverse, x.y * inverse),
                            ptx::cvt_rn_x2<kProblem.element>(x.z * inverse, x.w * inverse)};
      const int column = tile::out_column_of_pairs(block.lane, n, 0);
      if constexpr (kConfig.epilogue == Epilogue::shared) {
        const int offset = tile::chunk_offset(kLayout, kWidth, row_in_block, column / 8) + 2 * (column % 8);
        *reinterpret_cast<uint2*>(shared + kPlan.q + offset) = packed;
      } else {
        if (row < block.params.len_q) *reinterpret_cast<uint2*>(out_row(block, row) + column) = packed;
      }
    }
  }

  /// One group: divides by the row sums and writes. Rows are staged where the warp's own rows of Q were, which no other
  /// warp reads.
  __device__ __forceinline__ void store(const Block& block, Output& out, attention::RowState<kFragments>& rows,
                                        int warp_row) const {
    __syncwarp();  // every lane has read its part of Q
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row_in_warp = 16 * m + block.lane / 4 + 8 * h;
        const int row = warp_row + row_in_warp;
        float inverse = finish_row(block, rows.row_max[m][h], rows.row_sum[m][h]);
        const float sum = rows.row_sum[m][h];
        if constexpr (changes_output(kProblem.features)) {
          finish_output(block, out[m], h, inverse, row);
          inverse = 1.0F;
        }
        if (block.lane % 4 == 0) store_lse(block, row, rows.row_max[m][h], sum);
        if constexpr (kBytes == 4) {
          put_chunks(block, out[m], h, inverse, block.warp * kConfig.warp_rows + row_in_warp, row);
        } else if constexpr (kPairs) {
          put_pairs(block, out[m], h, inverse, block.warp * kConfig.warp_rows + row_in_warp, row);
        } else {
#pragma unroll
          for (int n = 0; n < kOutTiles; ++n) {
            const unsigned packed =
                ptx::cvt_rn_x2<kProblem.element>(out[m][n][2 * h] * inverse, out[m][n][2 * h + 1] * inverse);
            if constexpr (kConfig.epilogue == Epilogue::shared) {
              const int offset = tile::chunk_offset(kLayout, kWidth, block.warp * kConfig.warp_rows + row_in_warp, n) +
                                 4 * (block.lane % 4);
              *reinterpret_cast<unsigned*>(shared + kPlan.q + offset) = packed;
            } else {
              if (row < block.params.len_q)
                *reinterpret_cast<unsigned*>(out_row(block, row) + 8 * n + 2 * (block.lane % 4)) = packed;
            }
          }
        }
      }
    }
    if constexpr (kConfig.epilogue == Epilogue::shared) {
      __syncwarp();  // a warp writes the rows it staged itself
#pragma unroll
      for (int i = 0; i < kConfig.warp_rows * kChunks / 32; ++i) {
        const int index = block.lane + 32 * i;
        const int row_in_warp = index / kChunks;
        const int chunk = index % kChunks;
        if (warp_row + row_in_warp < block.params.len_q)
          *reinterpret_cast<uint4*>(out_row(block, warp_row + row_in_warp) + 16 / kBytes * chunk) =
              *reinterpret_cast<const uint4*>(
                  shared + kPlan.q +
                  tile::chunk_offset(kLayout, kWidth, block.warp * kConfig.warp_rows + row_in_warp, chunk));
      }
    }
  }

  /// Several groups: every group puts its partial output into shared memory, then all threads share the rows.
  __device__ __forceinline__ void merge_and_store(const Block& block, Output& out,
                                                  attention::RowState<kFragments>& rows) const {
    auto* partial = reinterpret_cast<float*>(shared + kPlan.partial_out);  // (kGroups, kBlockM, partial_pitch)
    auto* state = reinterpret_cast<float2*>(shared + kPlan.row_state);     // (kGroups, kBlockM): row maximum, sum
    __syncthreads();                                                       // no group reads K, V or Q any more
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = block.warp * kConfig.warp_rows + 16 * m + block.lane / 4 + 8 * h;
        if (block.lane % 4 == 0)
          state[block.group * kBlockM + row] = make_float2(rows.row_max[m][h], rows.row_sum[m][h]);
        if constexpr (kBytes == 4) {
          Pv::put_row(partial + (block.group * kBlockM + row) * kPlan.partial_pitch, out[m], h, 1.0F, block.lane);
        } else if constexpr (kPairs) {
          float* to = partial + (block.group * kBlockM + row) * kPlan.partial_pitch;
#pragma unroll
          for (int n = 0; n < kOutTiles; n += 2)
            *reinterpret_cast<float4*>(to + tile::out_column_of_pairs(block.lane, n, 0)) =
                attention::four_columns_of_pairs(out[m], n, h);
        } else {
          float* to = partial + (block.group * kBlockM + row) * kPlan.partial_pitch + 2 * (block.lane % 4);
          attention::put_row(to, reinterpret_cast<const float(&)[kOutTiles][4]>(out[m]), h);
        }
      }
    __syncthreads();
    for (int index = threadIdx.x; index < kBlockM * kPieces; index += kThreads) {
      const int row = index / kPieces;
      const int piece = index % kPieces;
      float row_max = -attention::kInfinity;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) row_max = fmaxf(row_max, state[g * kBlockM + row].x);
      const float finite = attention::finite_row_max(row_max);
      float sum = 0.0F;
      float merged[8] = {};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float2 part = state[g * kBlockM + row];
        const float weight = ptx::ex2_approx_ftz(part.x - finite);
        sum = fmaf(weight, part.y, sum);
        const auto* from =
            reinterpret_cast<const float4*>(partial + (g * kBlockM + row) * kPlan.partial_pitch + 8 * piece);
        const float4 low = from[0];
        const float4 high = from[1];
        attention::add_weighted(merged, weight, low);
        attention::add_weighted(merged + 4, weight, high);
      }
      float inverse = finish_row(block, row_max, sum);
      if constexpr (changes_output(kProblem.features)) {
        attention::finish_output<kProblem, kPieces, 8>(
            block.params, {block.batch, block.head, block.first_row + row, block.first_row + row < block.params.len_q},
            inverse, [&](int i) -> float& { return merged[i]; }, [&](int i) { return 8 * piece + i; });
        inverse = 1.0F;
      }
      if (piece == 0) store_lse(block, block.first_row + row, row_max, sum);
      if constexpr (kBytes == 4) {
#pragma unroll
        for (int i = 0; i < 8; i += 4)
          if (block.first_row + row < block.params.len_q)
            *reinterpret_cast<float4*>(out_row(block, block.first_row + row) + 8 * piece + i) = make_float4(
                merged[i] * inverse, merged[i + 1] * inverse, merged[i + 2] * inverse, merged[i + 3] * inverse);
      } else {
        if (block.first_row + row < block.params.len_q)
          *reinterpret_cast<uint4*>(out_row(block, block.first_row + row) + 8 * piece) =
              attention::words_of_row<kProblem.element>(merged, inverse);
      }
    }
  }
};

}  // namespace heed::sm80
