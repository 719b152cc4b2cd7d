/// The end of a block of fwd_sm80_decode: the partial results of its groups become one in shared memory, and those of
/// splits in the workspace.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/quantised_keys.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/decode/config.hpp"
#include "kernels/sm80/decode/partial.cuh"

namespace heed::sm80_decode {

template <const Config& kConfig, const Problem& kProblem>
struct Merge {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = kConfig.warp_rows / 16;  // 16-row fragments a warp
  static constexpr int kOutTiles = kDim / 8;                 // n-tiles of O
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = threads_per_group(kConfig);
  static constexpr int kThreads = threads(kConfig);
  static constexpr int kChunks = kDim / 8;  // 16-byte chunks a row
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kDim, key_bytes(kProblem));
  static constexpr bool kQuantised = is_quantised(kProblem);  // K and V have 8 bits: quantised.cuh
  static constexpr Element kOperand = kQuantised ? Element::fp16 : kProblem.element;  // of both products

  // ---- state
  attention::ParamsOfEntry<kProblem> params;
  char* shared;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int batch;
  RowTile rows;  // the block's packed rows; of an entry with fewer queries than the launch it may have none

  /// Parameters of a launch; those kept are of the block's entry.
  __device__ __forceinline__ Merge(const Params<kProblem>& launch, char* dynamic_shared)
      : params(attention::params_of_entry<kProblem>(launch, static_cast<int>(blockIdx.z))),
        shared(dynamic_shared),
        shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    group = threadIdx.x / kGroupThreads;
    warp = threadIdx.x % kGroupThreads / 32;
    batch = blockIdx.z;
    rows = row_tile(kConfig, blockIdx.y, launch.group_size, launch.len_q);
    if constexpr (kProblem.features.lengths)
      rows.rows = least(rows.rows, launch.group_size * params.len_q - rows.first);
  }

  // ---- partials in shared memory: (kGroups, kBlockM, partial_pitch) and (kGroups, kBlockM, 2)
  __device__ __forceinline__ float* shared_out(int part, int row) const {
    return reinterpret_cast<float*>(shared + kPlan.partial_out) + (part * kBlockM + row) * kPlan.partial_pitch;
  }
  __device__ __forceinline__ float* shared_state(int part, int row) const {
    return reinterpret_cast<float*>(shared + kPlan.row_state) + 2 * (part * kBlockM + row);
  }
  // ---- partials in the workspace
  __device__ __forceinline__ long long row_tile_index() const {
    return static_cast<long long>(batch) * gridDim.y + blockIdx.y;
  }
  __device__ __forceinline__ float* global_out(int split, int row) const {
    return static_cast<float*>(params.workspace) +
           workspace_out(workspace_row(kConfig, row_tile_index(), gridDim.x, split, row), kDim);
  }
  __device__ __forceinline__ float* global_state(int split, int row) const {
    return static_cast<float*>(params.workspace) +
           workspace_state(kConfig, static_cast<long long>(gridDim.z) * gridDim.y, gridDim.x,
                           workspace_row(kConfig, row_tile_index(), gridDim.x, split, row), kDim);
  }

  __device__ __forceinline__ void put_partials(const float (&out)[kFragments][kOutTiles][4],
                                               const attention::RowState<kFragments>& state) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp * kConfig.warp_rows + 16 * m + lane / 4 + 8 * h;
        if (row >= rows.rows) continue;
        if (lane % 4 == 0)
          *reinterpret_cast<float2*>(shared_state(group, row)) = make_float2(state.row_max[m][h], state.row_sum[m][h]);
        if constexpr (kQuantised) {  // even columns of 16 in one tile, odd ones in the next
          float* to = shared_out(group, row) + 4 * (lane % 4);
#pragma unroll
          for (int n = 0; n < kOutTiles; n += 2) {
            const float(&even)[4] = out[m][n];
            const float(&odd)[4] = out[m][n + 1];
            *reinterpret_cast<float4*>(to + 8 * n) =
                make_float4(even[2 * h], odd[2 * h], even[2 * h + 1], odd[2 * h + 1]);
          }
        } else {
          float* to = shared_out(group, row) + 2 * (lane % 4);
#pragma unroll
          for (int n = 0; n < kOutTiles; ++n)
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[m][n][2 * h], out[m][n][2 * h + 1]);
        }
      }
  }

  /// The groups' partials become one: the result where the keys are not split, else this block's part of it.
  __device__ __forceinline__ void merge_groups() const {
    for (int index = threadIdx.x; index < rows.rows * kChunks; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<least(kGroups, 8), false>(shared_out(0, row) + 8 * chunk, kBlockM * kPlan.partial_pitch,
                                                    shared_state(0, row), 2 * kBlockM, kGroups);
      if (gridDim.x == 1)
        store(merged, row, chunk);
      else
        merged.put(global_out(blockIdx.x, row) + 8 * chunk, global_state(blockIdx.x, row), chunk == 0);
    }
  }

  /// Counts this block in. True for the last one of its row tile, which then sees what all of them wrote; the counter
  /// is back at zero.
  __device__ __forceinline__ bool arrives_last() const {
    auto* is_last = reinterpret_cast<unsigned*>(shared + kPlan.is_last);
    __syncthreads();  // all of the block's part is written
    if (threadIdx.x == 0)
      *is_last =
          ptx::atom_inc_acq_rel_gpu(params.semaphores + row_tile_index(), gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
    __syncthreads();
    return *is_last != 0;
  }

  __device__ __forceinline__ void merge_splits() const {
    const int splits = gridDim.x;
    const int parts = merge_parts(kConfig, kDim, rows.rows, splits);
    const int items = rows.rows * kChunks;
    const long long split_rows = static_cast<long long>(parts) * kBlockM;
    for (int index = threadIdx.x; index < parts * items; index += kThreads) {
      const int part = index / items;  // takes splits part, part + parts, ...
      const int row = (index - part * items) / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<8, true>(global_out(part, row) + 8 * chunk, split_rows * kDim, global_state(part, row),
                                   2 * split_rows, tiles_of_group(splits, parts, part));
      if (parts == 1)
        store(merged, row, chunk);
      else
        merged.put(shared_out(part, row) + 8 * chunk, shared_state(part, row), chunk == 0);
    }
    if (parts == 1) return;
    __syncthreads();
    for (int index = threadIdx.x; index < items; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      Partial merged;
      merged.reset();
      merged.template add<4, false>(shared_out(0, row) + 8 * chunk, kBlockM * kPlan.partial_pitch, shared_state(0, row),
                                    2 * kBlockM, parts);
      store(merged, row, chunk);
    }
  }

  /// Writes 8 columns of a finished row, and its log-sum-exp once a row.
  __device__ __forceinline__ void store(Partial merged, int row, int chunk) const {
    if constexpr (kQuantised) {
      const float* const factors = attention::value_factors(params, batch, rows.kv_head);
#pragma unroll
      for (int i = 0; i < 8; ++i) merged.out[i] *= factors[(8 * chunk + i) * params.v_scales.channel];
    }
    const PackedRow at = packed_row(rows.first + row, params.group_size);
    const int head = rows.kv_head * params.group_size + at.head;
    float row_max = merged.row_max;
    float sum = merged.sum;
    float factor = 1.0F;  // what outputs count, beside a sink
    if constexpr (kProblem.features.sinks) factor = attention::add_sink(params, head, row_max, sum);
    const float inverse = attention::exact_inverse_or_zero(sum);
    const uint4 packed =
        attention::words_of_row<kProblem.element>(merged.out, kProblem.features.sinks ? factor * inverse : inverse);
    auto* out = static_cast<unsigned short*>(params.o) + batch * params.o_strides.batch + head * params.o_strides.head +
                at.query * params.o_strides.row + 8 * chunk;
    *reinterpret_cast<uint4*>(out) = packed;
    if constexpr (has_features(kProblem.features)) {
      if (chunk == 0 && params.lse != nullptr)
        params.lse[attention::lse_offset(params, batch, head, at.query)] =
            attention::log_sum_exp(sum != 0.0F, row_max, sum);  // NaN stays NaN
    } else {
      if (chunk == 0 && params.lse != nullptr)
        params.lse[(static_cast<long long>(batch) * params.heads + head) * params.len_q + at.query] =
            attention::log_sum_exp(sum > 0.0F, row_max, sum);
    }
  }
};

}  // namespace heed::sm80_decode
