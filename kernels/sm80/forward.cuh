/// fwd_sm80: fused attention for Ampere and later, with warp-level mma.sync, ldmatrix and cp.async.
///
/// A thread block holds block_m query rows of one head. Its warps form key_splits groups; every group holds the same
/// rows and takes every key_splits-th tile of block_n keys, with its own ring of stages in shared memory:
///
///              keys ->  tile 0   tile 1   tile 2   tile 3             block_m = 64, warp_rows = 16, key_splits = 2
///   rows  0..15  warp 0 [group 0]         [group 0]                   8 warps; warp w of group g holds rows 16 w ...
///   rows 16..31  warp 1 [group 0]         [group 0]
///   rows  0..15  warp 4          [group 1]         [group 1]
///   rows 16..31  warp 5          [group 1]         [group 1]
///
/// A warp keeps S and P in registers: the accumulator fragment of S = Q K^T, rounded to 16 bits, is the A fragment of P
/// V. At the end the groups' partial outputs meet in shared memory and are merged in fp32. After FlashAttention-2 (Dao,
/// arXiv 2307.08691); the split of keys over warps of one block is Flash-Decoding's split (Dao et al. 2023) without a
/// second kernel.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/config.hpp"
#include "kernels/tile/fragment.hpp"

namespace heed::sm80 {

template <Config kConfig, Problem kProblem>
struct Forward {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = kConfig.warp_rows / 16;  // 16-row fragments a warp
  static constexpr int kKeyTiles = kBlockN / 8;              // n-tiles of S
  static constexpr int kOutTiles = kDim / 8;                 // n-tiles of O
  static constexpr int kGroups = kConfig.key_splits;
  static constexpr int kGroupThreads = threads_per_group(kConfig);
  static constexpr int kThreads = threads(kConfig);
  static constexpr int kStages = kConfig.stages;
  static constexpr int kChunks = kDim / 8;  // 16-byte chunks a row
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kDim);
  static constexpr auto kLayout = kConfig.shared_layout;
  static constexpr int kPitch = tile::row_pitch(kLayout, kDim);

  static_assert(kDim % 16 == 0 && kBlockN % 16 == 0, "mma.m16n8k16 takes 16 of the head dim and 16 keys at a time");
  static_assert(kBlockM % kConfig.warp_rows == 0, "warps must share the rows evenly");

  // ---- state
  const ForwardParams& params;
  char* shared;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int group_thread;  // within the group
  int first_row;     // of the block
  int head;
  int batch;
  int keys_end;  // keys any row of the block may see

  __device__ __forceinline__ Forward(const ForwardParams& p, char* dynamic_shared)
      : params(p), shared(dynamic_shared), shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    group = threadIdx.x / kGroupThreads;
    group_thread = threadIdx.x % kGroupThreads;
    warp = group_thread / 32;
    const int row_tiles = gridDim.x;
    const int row_tile = kConfig.tile_order == TileOrder::descending ? row_tiles - 1 - static_cast<int>(blockIdx.x)
                                                                     : static_cast<int>(blockIdx.x);
    first_row = row_tile * kBlockM;
    head = blockIdx.y;
    batch = blockIdx.z;
    keys_end = visible_keys(kProblem.causal, min(first_row + kBlockM, p.len_q) - 1, p.causal_offset, p.len_k);
  }

  __device__ __forceinline__ void group_barrier() const {
    if constexpr (kGroupThreads == 32)
      __syncwarp();
    else if constexpr (kGroups == 1)
      __syncthreads();
    else
      ptx::bar_sync(1 + group, kGroupThreads);
  }

  /// Copies rows [first, first + kRows) of a (rows, kDim) tensor into a shared tile; rows from `end` on become zeros.
  template <int kRows, int kCopyThreads>
  __device__ __forceinline__ void copy_rows(unsigned tile, const void* tensor, long long base, long long row_stride,
                                            int first, int end, int thread) const {
    const auto* elements = static_cast<const unsigned short*>(tensor) + base;
#pragma unroll
    for (int i = 0; i < (kRows * kChunks + kCopyThreads - 1) / kCopyThreads; ++i) {
      const int index = thread + i * kCopyThreads;
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      if (kRows * kChunks % kCopyThreads == 0 || index < kRows * kChunks) {
        const bool inside = first + row < end;
        // An address past the end is never formed: it would be undefined even if no byte is read from it.
        const long long offset = inside ? (first + row) * row_stride + chunk * 8 : 0;
        ptx::cp_async_cg_16(tile + tile::chunk_offset(kLayout, kDim, row, chunk), elements + offset, inside ? 16 : 0);
      }
    }
  }

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + kPlan.stages + (group * kStages + stage) * kPlan.stage_bytes;
  }

  /// Starts copying tile `tile` of K and V into a stage: one commit group, or two when K and V are waited for
  /// separately.
  __device__ __forceinline__ void load_tile(int tile, int stage) const {
    const int kv_head = head / params.group_size;
    const unsigned address = stage_address(stage);
    copy_rows<kBlockN, kGroupThreads>(address, params.k,
                                      batch * params.k_strides.batch + kv_head * params.k_strides.head,
                                      params.k_strides.row, tile * kBlockN, keys_end, group_thread);
    if constexpr (kConfig.split_wait) ptx::cp_async_commit_group();
    copy_rows<kBlockN, kGroupThreads>(address + kPlan.stage_bytes / 2, params.v,
                                      batch * params.v_strides.batch + kv_head * params.v_strides.head,
                                      params.v_strides.row, tile * kBlockN, keys_end, group_thread);
  }

  /// Address a lane gives to ldmatrix for a 16 x 16 block at (row, 8 * chunk) of a tile.
  __device__ __forceinline__ static unsigned block_address(unsigned tile, int row, int chunk,
                                                           tile::Coordinate lane_offset) {
    return tile + tile::chunk_offset(kLayout, kDim, row + lane_offset.row, chunk + lane_offset.column / 8);
  }

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(float (&scores)[kFragments][kKeyTiles][4], int first_key,
                                            int warp_row) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + 16 * m + lane / 4 + 8 * (i / 2);
        const int end = visible_keys(kProblem.causal, row, params.causal_offset, params.len_k);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
          if (first_key + 8 * n + 2 * (lane % 4) + i % 2 >= end) scores[m][n][i] = -__int_as_float(0x7f800000);
      }
  }

  __device__ __forceinline__ void run() {
    const int tiles = (keys_end + kBlockN - 1) / kBlockN;
    const int group_tiles = tiles > group ? (tiles - group + kGroups - 1) / kGroups : 0;
    const int warp_row = first_row + warp * kConfig.warp_rows;

    // ---- Q by the whole block, then the first stages of K and V; Q belongs to the first commit group
    copy_rows<kBlockM, kThreads>(shared_base + kPlan.q, params.q,
                                 batch * params.q_strides.batch + head * params.q_strides.head, params.q_strides.row,
                                 first_row, params.len_q, threadIdx.x);
    constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;  // tiles in flight before the first is used
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (s < group_tiles)
        load_tile(group + s * kGroups, s);
      else if constexpr (kConfig.split_wait)
        ptx::cp_async_commit_group();
      ptx::cp_async_commit_group();
    }

    float out[kFragments][kOutTiles][4];
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0F;
    attention::RowState<kFragments> rows;
    rows.reset();
    const float scale_log2 = params.scale * 1.44269504F;

    // ---- Q to registers: it has arrived with the first commit group of every thread
    constexpr int kGroupsAhead = (kConfig.split_wait ? 2 : 1) * kAhead;
    ptx::cp_async_wait_group<kGroupsAhead - 1>();
    __syncthreads();
    unsigned query[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kDim / 16 : 1][4];
    if constexpr (kConfig.q_in_registers) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k)
          ptx::ldmatrix_x4(query[m][k], block_address(shared_base + kPlan.q, warp * kConfig.warp_rows + 16 * m, 2 * k,
                                                      tile::ldmatrix_a_address(lane)));
    }

    // ---- the loop over this group's tiles
    int stage = 0;
    for (int t = 0; t < group_tiles; ++t) {
      const int first_key = (group + t * kGroups) * kBlockN;
      const unsigned keys = stage_address(stage);
      const unsigned values = keys + kPlan.stage_bytes / 2;

      // kAhead tiles have been asked for after the last wait's; this one must be complete (its K, when waited for
      // separately).
      ptx::cp_async_wait_group<kConfig.split_wait ? 2 * (kAhead - 1) + 1 : kAhead - 1>();
      group_barrier();  // everyone's part of the tile is there, and everyone is done with the tile before
      if constexpr (kStages > 1) {
        const int next = t + kAhead;
        int next_stage = stage + kAhead;
        if (next_stage >= kStages) next_stage -= kStages;
        if (next < group_tiles)
          load_tile(group + next * kGroups, next_stage);
        else if constexpr (kConfig.split_wait)
          ptx::cp_async_commit_group();  // empty groups keep the count of pending groups the same in every round
        ptx::cp_async_commit_group();
      }

      float scores[kFragments][kKeyTiles][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0F;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        if constexpr (!kConfig.q_in_registers) {
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
            unsigned fragment[4];
            ptx::ldmatrix_x4(fragment, block_address(shared_base + kPlan.q, warp * kConfig.warp_rows + 16 * m, 2 * k,
                                                     tile::ldmatrix_a_address(lane)));
            multiply_keys(scores, fragment, keys, m, k);
          }
        } else {
#pragma unroll
          for (int n = 0; n < kKeyTiles; n += 2) {
            unsigned b[4];
            ptx::ldmatrix_x4(b, block_address(keys, 8 * n, 2 * k, tile::ldmatrix_k_address(lane)));
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
              ptx::mma_m16n8k16<kProblem.element>(scores[m][n], query[m][k], b[0], b[1]);
              ptx::mma_m16n8k16<kProblem.element>(scores[m][n + 1], query[m][k], b[2], b[3]);
            }
          }
        }
      }

      // A tile needs the mask only where it reaches past the keys that the warp's first row sees.
      if (first_key + kBlockN > visible_keys(kProblem.causal, warp_row, params.causal_offset, params.len_k))
        hide_keys(scores, first_key, warp_row);

      attention::softmax_tile<kConfig.exp2, kConfig.rescale>(scores, out, rows, scale_log2);

      if constexpr (kConfig.split_wait) {
        constexpr int kPending = kStages > 1 ? 2 * kAhead : 0;  // all but this tile's V
        ptx::cp_async_wait_group<kPending>();
        group_barrier();
      }
#pragma unroll
      for (int k = 0; k < kBlockN / 16; ++k) {
        unsigned p[kFragments][4];
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          p[m][0] = ptx::cvt_rn_x2<kProblem.element>(scores[m][2 * k][0], scores[m][2 * k][1]);
          p[m][1] = ptx::cvt_rn_x2<kProblem.element>(scores[m][2 * k][2], scores[m][2 * k][3]);
          p[m][2] = ptx::cvt_rn_x2<kProblem.element>(scores[m][2 * k + 1][0], scores[m][2 * k + 1][1]);
          p[m][3] = ptx::cvt_rn_x2<kProblem.element>(scores[m][2 * k + 1][2], scores[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < kOutTiles; n += 2) {
          unsigned b[4];
          ptx::ldmatrix_x4_trans(b, block_address(values, 16 * k, n, tile::ldmatrix_v_address(lane)));
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
            ptx::mma_m16n8k16<kProblem.element>(out[m][n], p[m], b[0], b[1]);
            ptx::mma_m16n8k16<kProblem.element>(out[m][n + 1], p[m], b[2], b[3]);
          }
        }
      }
      if constexpr (kStages == 1) {
        if (t + 1 < group_tiles) {
          group_barrier();  // the only stage is read before it is overwritten
          load_tile(group + (t + 1) * kGroups, 0);
          ptx::cp_async_commit_group();
        }
      }
      if (++stage == kStages) stage = 0;
    }
    ptx::cp_async_wait_group<0>();
    rows.reduce();
    if constexpr (kGroups > 1)
      merge_and_store(out, rows);
    else
      store(out, rows, warp_row);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[kFragments][kKeyTiles][4], const unsigned (&a)[4],
                                                unsigned keys, int m, int k) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      unsigned b[4];
      ptx::ldmatrix_x4(b, block_address(keys, 8 * n, 2 * k, tile::ldmatrix_k_address(lane)));
      ptx::mma_m16n8k16<kProblem.element>(scores[m][n], a, b[0], b[1]);
      ptx::mma_m16n8k16<kProblem.element>(scores[m][n + 1], a, b[2], b[3]);
    }
  }

  __device__ __forceinline__ unsigned short* out_row(int row) const {
    return static_cast<unsigned short*>(params.o) + batch * params.o_strides.batch + head * params.o_strides.head +
           row * params.o_strides.row;
  }

  __device__ __forceinline__ void store_lse(int row, float reference, float sum) const {
    if (params.lse != nullptr && row < params.len_q)
      params.lse[(static_cast<long long>(batch) * params.heads + head) * params.len_q + row] =
          sum > 0.0F ? (reference + ptx::lg2_approx_ftz(sum)) * 0.693147181F : -__int_as_float(0x7f800000);
  }

  /// One group: divides by the row sums and writes. Rows are staged where the warp's own rows of Q were, which no other
  /// warp reads.
  __device__ __forceinline__ void store(float (&out)[kFragments][kOutTiles][4], attention::RowState<kFragments>& rows,
                                        int warp_row) const {
    __syncwarp();  // every lane has read its part of Q
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row_in_warp = 16 * m + lane / 4 + 8 * h;
        const int row = warp_row + row_in_warp;
        const float sum = rows.sum[m][h];
        const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
        if (lane % 4 == 0) store_lse(row, rows.reference[m][h], sum);
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          const unsigned packed =
              ptx::cvt_rn_x2<kProblem.element>(out[m][n][2 * h] * inverse, out[m][n][2 * h + 1] * inverse);
          if constexpr (kConfig.epilogue == Epilogue::shared) {
            const int offset =
                tile::chunk_offset(kLayout, kDim, warp * kConfig.warp_rows + row_in_warp, n) + 4 * (lane % 4);
            *reinterpret_cast<unsigned*>(shared + kPlan.q + offset) = packed;
          } else {
            if (row < params.len_q) *reinterpret_cast<unsigned*>(out_row(row) + 8 * n + 2 * (lane % 4)) = packed;
          }
        }
      }
    }
    if constexpr (kConfig.epilogue == Epilogue::shared) {
      __syncwarp();  // a warp writes the rows it staged itself
#pragma unroll
      for (int i = 0; i < kConfig.warp_rows * kChunks / 32; ++i) {
        const int index = lane + 32 * i;
        const int row_in_warp = index / kChunks;
        const int chunk = index % kChunks;
        if (warp_row + row_in_warp < params.len_q)
          *reinterpret_cast<uint4*>(out_row(warp_row + row_in_warp) + 8 * chunk) = *reinterpret_cast<const uint4*>(
              shared + kPlan.q + tile::chunk_offset(kLayout, kDim, warp * kConfig.warp_rows + row_in_warp, chunk));
      }
    }
  }

  /// Several groups: every group puts its partial output into shared memory, then all threads share the rows.
  __device__ __forceinline__ void merge_and_store(float (&out)[kFragments][kOutTiles][4],
                                                  attention::RowState<kFragments>& rows) const {
    auto* partial = reinterpret_cast<float*>(shared + kPlan.partial_out);  // (kGroups, kBlockM, partial_pitch)
    auto* state = reinterpret_cast<float2*>(shared + kPlan.row_state);     // (kGroups, kBlockM): reference, sum
    __syncthreads();                                                       // no group reads K, V or Q any more
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp * kConfig.warp_rows + 16 * m + lane / 4 + 8 * h;
        if (lane % 4 == 0) state[group * kBlockM + row] = make_float2(rows.reference[m][h], rows.sum[m][h]);
        float* to = partial + (group * kBlockM + row) * kPlan.partial_pitch + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n)
          *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[m][n][2 * h], out[m][n][2 * h + 1]);
      }
    __syncthreads();
    for (int index = threadIdx.x; index < kBlockM * kChunks; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      float reference = -__int_as_float(0x7f800000);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) reference = fmaxf(reference, state[g * kBlockM + row].x);
      const float finite = attention::finite_reference(reference);
      float sum = 0.0F;
      float merged[8] = {};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float2 part = state[g * kBlockM + row];
        const float weight = ptx::ex2_approx_ftz(part.x - finite);
        sum = fmaf(weight, part.y, sum);
        const auto* from =
            reinterpret_cast<const float4*>(partial + (g * kBlockM + row) * kPlan.partial_pitch + 8 * chunk);
        const float4 low = from[0];
        const float4 high = from[1];
        merged[0] = fmaf(weight, low.x, merged[0]);
        merged[1] = fmaf(weight, low.y, merged[1]);
        merged[2] = fmaf(weight, low.z, merged[2]);
        merged[3] = fmaf(weight, low.w, merged[3]);
        merged[4] = fmaf(weight, high.x, merged[4]);
        merged[5] = fmaf(weight, high.y, merged[5]);
        merged[6] = fmaf(weight, high.z, merged[6]);
        merged[7] = fmaf(weight, high.w, merged[7]);
      }
      const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
      if (chunk == 0) store_lse(first_row + row, reference, sum);
      if (first_row + row < params.len_q) {
        uint4 packed;
        packed.x = ptx::cvt_rn_x2<kProblem.element>(merged[0] * inverse, merged[1] * inverse);
        packed.y = ptx::cvt_rn_x2<kProblem.element>(merged[2] * inverse, merged[3] * inverse);
        packed.z = ptx::cvt_rn_x2<kProblem.element>(merged[4] * inverse, merged[5] * inverse);
        packed.w = ptx::cvt_rn_x2<kProblem.element>(merged[6] * inverse, merged[7] * inverse);
        *reinterpret_cast<uint4*>(out_row(first_row + row) + 8 * chunk) = packed;
      }
    }
  }
};

}  // namespace heed::sm80
