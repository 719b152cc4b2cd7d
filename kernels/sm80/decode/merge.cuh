/// The end of a block of fwd_sm80_decode: the partial results of its groups become one in shared memory, and those of
/// splits in the workspace.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/quantised_keys.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/decode/block.cuh"
#include "kernels/sm80/decode/partial.cuh"

namespace heed::sm80_decode {

template <const Config& kConfig, const Problem& kProblem>
struct Merge {
  using Block = sm80_decode::Block<kConfig, kProblem>;

  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = Block::kFragments;
  static constexpr int kOutTiles = Block::kOutTiles;
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kThreads = Block::kThreads;
  static constexpr int kChunks = Block::kChunks;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kQuantised = Block::kQuantised;

  // ---- partials in shared memory: (kGroups, kBlockM, partial_pitch) and (kGroups, kBlockM, 2)
  __device__ __forceinline__ static float* shared_out(const Block& block, int part, int row) {
    return reinterpret_cast<float*>(block.shared + kPlan.partial_out) + (part * kBlockM + row) * kPlan.partial_pitch;
  }
  __device__ __forceinline__ static float* shared_state(const Block& block, int part, int row) {
    return reinterpret_cast<float*>(block.shared + kPlan.row_state) + 2 * (part * kBlockM + row);
  }
  // ---- partials in the workspace
  __device__ __forceinline__ static long long row_tile_index(const Block& block) {
    return static_cast<long long>(block.batch) * gridDim.y + blockIdx.y;
  }
  __device__ __forceinline__ static float* global_out(const Block& block, int split, int row) {
    return static_cast<float*>(block.params.workspace) +
           workspace_out(workspace_row(kConfig, row_tile_index(block), gridDim.x, split, row), kDim);
  }
  __device__ __forceinline__ static float* global_state(const Block& block, int split, int row) {
    return static_cast<float*>(block.params.workspace) +
           workspace_state(kConfig, static_cast<long long>(gridDim.z) * gridDim.y, gridDim.x,
                           workspace_row(kConfig, row_tile_index(block), gridDim.x, split, row), kDim);
  }

  __device__ __forceinline__ static void put_partials(const Block& block, const float (&out)[kFragments][kOutTiles][4],
                                                      const attention::RowState<kFragments>& state) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = block.warp * kConfig.warp_rows + 16 * m + block.lane / 4 + 8 * h;
        if (row >= block.rows.rows) continue;
        if (block.lane % 4 == 0)
          *reinterpret_cast<float2*>(shared_state(block, block.group, row)) =
              make_float2(state.row_max[m][h], state.row_sum[m][h]);
        if constexpr (kQuantised) {  // even columns of 16 in one tile, odd ones in the next
          float* to = shared_out(block, block.group, row) + 4 * (block.lane % 4);
#pragma unroll
          for (int n = 0; n < kOutTiles; n += 2) {
            const float(&even)[4] = out[m][n];
            const float(&odd)[4] = out[m][n + 1];
            *reinterpret_cast<float4*>(to + 8 * n) =
                make_float4(even[2 * h], odd[2 * h], even[2 * h + 1], odd[2 * h + 1]);
          }
        } else {
          float* to = shared_out(block, block.group, row) + 2 * (block.lane % 4);
#pragma unroll
          for (int n = 0; n < kOutTiles; ++n)
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[m][n][2 * h], out[m][n][2 * h + 1]);
        }
      }
  }

  /// The groups' partials become one: the result where the keys are not split, else this block's part of it.
  __device__ __forceinline__ static void merge_groups(const Block& block) {
    for (int index = threadIdx.x; index < block.rows.rows * kChunks; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<least(kGroups, 8), false>(shared_out(block, 0, row) + 8 * chunk,
                                                    kBlockM * kPlan.partial_pitch, shared_state(block, 0, row),
                                                    2 * kBlockM, kGroups);
      if (gridDim.x == 1)
        store(block, merged, row, chunk);
      else
        merged.put(global_out(block, blockIdx.x, row) + 8 * chunk, global_state(block, blockIdx.x, row), chunk == 0);
    }
  }

  /// Counts this block in. True for the last one of its row tile, which then sees what all of them wrote; the counter
  /// is back at zero.
  __device__ __forceinline__ static bool arrives_last(const Block& block) {
    auto* is_last = reinterpret_cast<unsigned*>(block.shared + kPlan.is_last);
    __syncthreads();  // all of the block's part is written
    if (threadIdx.x == 0)
      *is_last =
          ptx::atom_inc_acq_rel_gpu(block.params.semaphores + row_tile_index(block), gridDim.x - 1) == gridDim.x - 1
              ? 1
              : 0;
    __syncthreads();
    return *is_last != 0;
  }

  __device__ __forceinline__ static void merge_splits(const Block& block) {
    const int splits = gridDim.x;
    const int parts = merge_parts(kConfig, kDim, block.rows.rows, splits);
    const int items = block.rows.rows * kChunks;
    const long long split_rows = static_cast<long long>(parts) * kBlockM;
    for (int index = threadIdx.x; index < parts * items; index += kThreads) {
      const int part = index / items;  // takes splits part, part + parts, ...
      const int row = (index - part * items) / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<8, true>(global_out(block, part, row) + 8 * chunk, split_rows * kDim,
                                   global_state(block, part, row), 2 * split_rows, tiles_of_group(splits, parts, part));
      if (parts == 1)
        store(block, merged, row, chunk);
      else
        merged.put(shared_out(block, part, row) + 8 * chunk, shared_state(block, part, row), chunk == 0);
    }
    if (parts == 1) return;
    __syncthreads();
    for (int index = threadIdx.x; index < items; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<4, false>(shared_out(block, 0, row) + 8 * chunk, kBlockM * kPlan.partial_pitch,
                                    shared_state(block, 0, row), 2 * kBlockM, parts);
      store(block, merged, row, chunk);
    }
  }

  /// Writes 8 columns of a finished row, and its log-sum-exp once a row.
  __device__ __forceinline__ static void store(const Block& block, Partial merged, int row, int chunk) {
    if constexpr (kQuantised) {
      const float* const factors = attention::value_factors(block.params, block.batch, block.rows.kv_head);
#pragma unroll
      for (int i = 0; i < 8; ++i) merged.out[i] *= factors[(8 * chunk + i) * block.params.v_scales.channel];
    }
    const PackedRow at = packed_row(block.rows.first + row, block.params.group_size);
    const int head = block.rows.kv_head * block.params.group_size + at.head;
    float row_max = merged.row_max;
    float sum = merged.sum;
    float factor = 1.0F;  // what outputs count, beside a sink
    if constexpr (kProblem.features.sinks) factor = attention::add_sink(block.params, head, row_max, sum);
    const float inverse = attention::exact_inverse_or_zero(sum);
    const uint4 packed =
        attention::words_of_row<kProblem.element>(merged.out, kProblem.features.sinks ? factor * inverse : inverse);
    auto* out = static_cast<unsigned short*>(block.params.o) + block.batch * block.params.o_strides.batch +
                head * block.params.o_strides.head + at.query * block.params.o_strides.row + 8 * chunk;
    *reinterpret_cast<uint4*>(out) = packed;
    if constexpr (has_features(kProblem.features)) {
      if (chunk == 0 && block.params.lse != nullptr)
        block.params.lse[attention::lse_offset(block.params, block.batch, head, at.query)] =
            attention::log_sum_exp(sum != 0.0F, row_max, sum);  // NaN stays NaN
    } else {
      if (chunk == 0 && block.params.lse != nullptr)
        block.params
            .lse[(static_cast<long long>(block.batch) * block.params.heads + head) * block.params.len_q + at.query] =
            attention::log_sum_exp(sum > 0.0F, row_max, sum);
    }
  }
};

}  // namespace heed::sm80_decode
