/// fwd_decode_sm90: few queries, many keys, grouped heads, on Hopper. Bound by memory: every key and value is read
/// once.
///
/// The query rows that share a key head are one matrix of group_size * len_q packed rows (config.hpp: PackedRow), cut
/// into tiles of block_m. A tile of rows and all its keys are a job; the key tiles of all jobs are one line that is cut
/// into equal ranges, one a block (config.hpp: Share), so that all multiprocessors end at the same time whatever the
/// shape. Within a block:
///
///   producer warp     one lane asks for tile after tile, by bulk tensor copies into a ring of stages
///   groups of warps   take the tiles in turn: g0 | g1 | g2 | g3 | g0 | ...; no barrier among them in the loop
///   service warp      counts the block in where it shares a job, and lets the L2 fetch the next job's queries
///
/// The ring runs on over the ends of jobs: while partial results meet, the next job's keys are under way. Partial
/// results meet twice: those of the groups in shared memory, those of the blocks in global memory. There every word is
/// valid by itself, zero until it is written and never written as zero (word_of): the block that merges reads it until
/// it is there, and leaves zero. So no word needs a fence, and the order in which words arrive does not matter. After
/// Flash-Decoding (Dao et al. 2023), without its second kernel.
///
/// A block is counted in when the last tile of its segment is there, before it is used: the reply comes while the tile
/// is. The block that is counted in last merges.
///
/// No block waits for ever, however few run at a time and in whichever order. A block waits for others in receive()
/// alone, for words of a job that all its blocks were counted in at: those that it waits for have begun, and have all
/// the keys of their segments or copies of them under way. They send their words without waiting for anybody, unless
/// warps of theirs are themselves in receive(), of an earlier job: blocks work through jobs in ascending order. By
/// induction over jobs, from the first, which has none before it, every wait ends.
///
/// A word is written once, read by one thread (reference and sum: by lanes of one warp) and then cleared by it, all in
/// one launch. The end of a launch orders what it cleared before all of the next; so does griddepcontrol.wait, which
/// returns once the launch before has ended, where the next begins before that.
#pragma once

#include "kernels/decode_sm90/config.hpp"
#include "kernels/decode_sm90/partial.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/tile/fragment.hpp"

namespace heed::decode_sm90 {

template <Config kConfig, Problem kProblem>
struct Forward {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr int kBoxBytes = kBlockN * tile::kBoxRowBytes;
  static constexpr int kKeyTiles = kBlockN / 8;  // n-tiles of S
  static constexpr int kOutTiles = kDim / 8;     // n-tiles of O
  static constexpr int kGroups = kConfig.groups;
  static constexpr int kGroupThreads = 32 * warps_per_group(kConfig);
  static constexpr int kThreads = consumers(kConfig);  // that compute
  static constexpr int kStages = kConfig.stages;
  static constexpr int kChunks = kDim / 4;  // pieces of a row in which partials are merged
  static constexpr int kBatch = merge_batch(kConfig);
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kDim);

  static_assert(kDim % tile::kBoxColumns == 0 && kBlockN % 16 == 0, "boxes of 64 columns, products of 16 keys");
  static_assert(kBoxBytes % 1024 == 0, "every box starts a swizzle atom");

  // ---- state
  const ForwardParams& params;
  const TensorMaps& maps;
  char* shared;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int job_tiles;
  Share blocks;

  __device__ __forceinline__ Forward(const ForwardParams& p, const TensorMaps& m, char* dynamic_shared)
      : params(p), maps(m), shared(dynamic_shared), shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    group = threadIdx.x / kGroupThreads;
    warp = threadIdx.x % kGroupThreads / 32;
    job_tiles = tiles_of_job(kConfig, kProblem.causal, p.len_q, p.causal_offset, p.len_k);
    blocks = share(jobs() * job_tiles, gridDim.x);
  }

  __device__ __forceinline__ int jobs() const {
    return params.batch * params.heads_kv * row_tiles(kConfig, params.group_size, params.len_q);
  }

  /// Orders shared memory among the threads that compute.
  __device__ __forceinline__ static void consumers_meet() { ptx::bar_sync(1, kThreads); }
  /// The same, and with the service warp.
  __device__ __forceinline__ static void served_meet() { ptx::bar_sync(2, kThreads + 32); }

  /// Nothing in global memory is touched before.
  __device__ __forceinline__ static void wait_for_launch_before() {
    if constexpr (kConfig.dependent) ptx::griddepcontrol_wait();
  }

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + stage * 2 * kPlan.tile_bytes;
  }
  __device__ __forceinline__ unsigned full(int stage) const { return shared_base + kPlan.barriers + stage * 8; }
  __device__ __forceinline__ unsigned empty(int stage) const { return full(kStages + stage); }
  __device__ __forceinline__ unsigned ending() const { return shared_base + kPlan.ending; }

  /// Where the next copy comes from.
  struct Source {
    int job;
    int tile;  // of the job
    int kv_head;
    int batch;
  };

  __device__ __forceinline__ void find_head(Source& source) const {
    const int tiles = row_tiles(kConfig, params.group_size, params.len_q);
    const int head = tiles == 1 ? source.job : divide(source.job, tiles);
    source.batch = params.batch == 1 ? 0 : divide(head, params.heads_kv);
    source.kv_head = head - source.batch * params.heads_kv;
  }

  /// Asks for the next tile of K and of V.
  __device__ __forceinline__ void copy(Source& source, int stage) const {
    const unsigned keys = stage_address(stage);
    ptx::mbarrier_arrive_expect_tx(full(stage), 2 * kPlan.tile_bytes);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i)
      ptx::cp_async_bulk_tensor_4d(keys + i * kBoxBytes, maps.k, full(stage), i * tile::kBoxColumns,
                                   source.tile * kBlockN, source.kv_head, source.batch);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i)
      ptx::cp_async_bulk_tensor_4d(keys + kPlan.tile_bytes + i * kBoxBytes, maps.v, full(stage), i * tile::kBoxColumns,
                                   source.tile * kBlockN, source.kv_head, source.batch);
    if (++source.tile < job_tiles) return;
    source.tile = 0;
    ++source.job;
    find_head(source);
  }

  /// Address a lane gives to ldmatrix for a 16 x 16 block at (row, 8 * chunk) of a tile; `row` is a multiple of 8.
  __device__ __forceinline__ static unsigned block_address(unsigned tile, int row, int chunk,
                                                           tile::Coordinate lane_offset) {
    const int swizzled = (chunk % 8) ^ (lane_offset.column / 8) ^ (lane_offset.row % 8);
    return tile + chunk / 8 * kBoxBytes + (row + lane_offset.row) * tile::kBoxRowBytes + swizzled * 16;
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x >= kThreads + 32) {
      __syncthreads();
      serve();
    } else if (threadIdx.x >= kThreads) {
      produce();
    } else {
      consume();
    }
  }

  // ------------------------------------------------------------------------------------------------------ producer

  /// Sets the barriers up and fills the ring, then refills every stage that is read.
  __device__ __forceinline__ void produce() const {
    static_assert(kStages < 32, "a lane a stage, and one more");
    if (lane == kStages) ptx::mbarrier_init(ending(), 1);
    if (lane < kStages) {
      ptx::mbarrier_init(full(lane), 1);
      ptx::mbarrier_init(empty(lane), kGroupThreads / 32);
    }
    ptx::fence_mbarrier_init();
    __syncwarp();
    wait_for_launch_before();
    const int first = blocks.first_tile(blockIdx.x);
    const int count = blocks.tiles(blockIdx.x);
    const int job = divide(first, job_tiles);
    Source source{job, first - job * job_tiles, 0, 0};
    if (lane == 0) {
      find_head(source);
#pragma unroll 1
      for (int s = 0; s < least(kStages, count); ++s) copy(source, s);
    }
    __syncthreads();  // the others may wait at the barriers
    if (lane != 0) return;
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int t = kStages; t < count; ++t) {
      ptx::mbarrier_wait(empty(stage), parity);
      copy(source, stage);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------ service

  __device__ __forceinline__ void serve() const {
    // At once: blocks of the next launch take room that is free, and wait before they touch memory.
    if constexpr (kConfig.dependent) ptx::griddepcontrol_launch_dependents();
    wait_for_launch_before();
    const int first = blocks.first_tile(blockIdx.x);
    const int end = first + blocks.tiles(blockIdx.x);
    int slot = 0;
#pragma unroll 1
    for (int job = divide(first, job_tiles);; ++job) {
      const Segment segment = segment_of(job);
      if (lane == 0) *shared_segment(slot) = make_int2(segment.first_block, segment.blocks);
      const bool is_final = (job + 1) * job_tiles >= end;
      if (!is_final) prefetch_queries(job_of(kConfig, kProblem.causal, params, job + 1));
      ptx::mbarrier_wait(ending(), static_cast<unsigned>(slot));
      const unsigned last = static_cast<unsigned>(segment.blocks) - 1;
      unsigned before = 0;
      if (lane == 0 && last > 0) before = ptx::atom_inc_relaxed_gpu(params.counters + segment.first_block, last);
      served_meet();  // the groups' partials are there
      if (last > 0) {
        if (lane == 0) *is_last() = before == last ? 1 : 0;
        served_meet();
      }
      if (is_final) return;
      slot ^= 1;
    }
  }

  /// Packed row `row` of a job.
  __device__ __forceinline__ const unsigned short* query_row(const Job& job, int row) const {
    const PackedRow at = packed_row(job.first + row, params.group_size);
    return static_cast<const unsigned short*>(params.q) + job.batch * params.q_strides.batch +
           (job.kv_head * params.group_size + at.head) * params.q_strides.head + at.query * params.q_strides.row;
  }

  __device__ __forceinline__ void prefetch_queries(const Job& job) const {
    constexpr int kLines = kDim * 2 / 128;
    for (int i = lane; i < job.rows * kLines; i += 32) ptx::prefetch_l2(query_row(job, i / kLines) + i % kLines * 64);
  }

  // ------------------------------------------------------------------------------------------------------ computing

  /// The A operand of Q, straight from global memory; rows beyond the real ones are zeros.
  __device__ __forceinline__ void load_queries(unsigned (&query)[kDim / 16][4], const Job& job) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp * kWarpRows + lane / 4 + 8 * h;
      const bool inside = row < job.rows;
      const unsigned short* from = query_row(job, inside ? row : 0) + 2 * (lane % 4);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          query[k][2 * c + h] =
              inside && (h == 0 || kBlockM > 8) ? *reinterpret_cast<const unsigned*>(from + 16 * k + 8 * c) : 0U;
    }
  }

  __device__ __forceinline__ void consume() const {
    const int first = blocks.first_tile(blockIdx.x);  // of the block, on the line of all tiles
    const int count = blocks.tiles(blockIdx.x);
    const float scale_log2 = params.scale * 1.44269504F;
    int t = group;  // counted from the block's first tile
    int stage = group % kStages;
    unsigned parity = group / kStages % 2;
    int slot = 0;
    bool waits_for_set_up = true;
    wait_for_launch_before();
    for (int job_index = divide(first, job_tiles);; ++job_index) {
      // ---- one segment: tiles t, t + kGroups, ... below `end`
      const int job_first = job_index * job_tiles - first;  // may be before the block's first tile
      const int end = least(count, job_first + job_tiles);
      const Job job = job_of(kConfig, kProblem.causal, params, job_index);
      unsigned query[kDim / 16][4];
      load_queries(query, job);
      if (waits_for_set_up) __syncthreads();  // not before the queries are asked for
      waits_for_set_up = false;
      float out[1][kOutTiles][4];
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[0][n][i] = 0.0F;
      attention::RowState<1> state;
      state.reset();
      // Keys that this lane's rows see. Rows beyond the real ones are zeros and see what they like.
      int row_end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = job.first + warp * kWarpRows + lane / 4 + 8 * h;
        row_end[h] = visible_keys(kProblem.causal, kProblem.causal ? divide(row, params.group_size) : 0,
                                  params.causal_offset, params.len_k);
      }

#pragma unroll 1
      for (; t < end; t += kGroups) {
        const int first_key = (t - job_first) * kBlockN;
        ptx::mbarrier_wait(full(stage), parity);
        if (t == end - 1 && warp == 0 && lane == 0) ptx::mbarrier_arrive(ending());
        if (first_key < job.keys_end) {
          float scores[1][kKeyTiles][4];
          multiply_keys(scores, query, stage_address(stage));
          if (first_key + kBlockN > job.keys_plain) hide_keys(scores, first_key, row_end);
          attention::softmax_tile<kConfig.exp2, kConfig.rescale>(scores, out, state, scale_log2);
          multiply_values(out, scores, stage_address(stage) + kPlan.tile_bytes);
        }
        __syncwarp();  // the warp has read the stage
        if (lane == 0) ptx::mbarrier_arrive(empty(stage));
        for (stage += kGroups; stage >= kStages; stage -= kStages) parity ^= 1;
      }
      state.reduce();
      consumers_meet();  // the segment before is merged
      put_partials(out, state, job);
      served_meet();
      merge(job, slot);
      if (end == count) break;
      slot ^= 1;
    }
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[1][kKeyTiles][4], const unsigned (&query)[kDim / 16][4],
                                                unsigned keys) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[0][n][i] = 0.0F;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, block_address(keys, 8 * n, 2 * k, tile::ldmatrix_k_address(lane)));
        ptx::mma_m16n8k16<kProblem.element>(scores[0][n], query[k], b[0], b[1]);
        ptx::mma_m16n8k16<kProblem.element>(scores[0][n + 1], query[k], b[2], b[3]);
      }
  }

  __device__ __forceinline__ void multiply_values(float (&out)[1][kOutTiles][4], const float (&scores)[1][kKeyTiles][4],
                                                  unsigned values) const {
#pragma unroll
    for (int k = 0; k < kBlockN / 16; ++k) {
      const unsigned p[4] = {ptx::cvt_rn_x2<kProblem.element>(scores[0][2 * k][0], scores[0][2 * k][1]),
                             ptx::cvt_rn_x2<kProblem.element>(scores[0][2 * k][2], scores[0][2 * k][3]),
                             ptx::cvt_rn_x2<kProblem.element>(scores[0][2 * k + 1][0], scores[0][2 * k + 1][1]),
                             ptx::cvt_rn_x2<kProblem.element>(scores[0][2 * k + 1][2], scores[0][2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4_trans(b, block_address(values, 16 * k, n, tile::ldmatrix_v_address(lane)));
        ptx::mma_m16n8k16<kProblem.element>(out[0][n], p, b[0], b[1]);
        ptx::mma_m16n8k16<kProblem.element>(out[0][n + 1], p, b[2], b[3]);
      }
    }
  }

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(float (&scores)[1][kKeyTiles][4], int first_key,
                                            const int (&row_end)[2]) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + 8 * n + 2 * (lane % 4) + i % 2 >= row_end[i / 2]) scores[0][n][i] = -__int_as_float(0x7f800000);
  }

  // ------------------------------------------------------------------------------------------------------ merging

  /// The blocks that share a job.
  struct Segment {
    int first_block;
    int blocks;
  };
  __device__ __forceinline__ Segment segment_of(int job) const {
    const int first = blocks.block_of(job * job_tiles);
    return {first, blocks.block_of(job * job_tiles + job_tiles - 1) - first + 1};
  }

  __device__ __forceinline__ int2* shared_segment(int slot) const {
    return reinterpret_cast<int2*>(shared + kPlan.segments) + slot;
  }
  __device__ __forceinline__ int* is_last() const { return reinterpret_cast<int*>(shared + kPlan.is_last); }
  // Partials in shared memory: (kGroups, kBlockM, partial_pitch) and (kGroups, kBlockM, 2).
  __device__ __forceinline__ float* shared_out(int part, int row) const {
    return reinterpret_cast<float*>(shared + kPlan.partial_out) + (part * kBlockM + row) * kPlan.partial_pitch;
  }
  __device__ __forceinline__ float* shared_state(int part, int row) const {
    return reinterpret_cast<float*>(shared + kPlan.row_state) + 2 * (part * kBlockM + row);
  }
  __device__ __forceinline__ void put_partials(const float (&out)[1][kOutTiles][4], const attention::RowState<1>& state,
                                               const Job& job) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp * kWarpRows + lane / 4 + 8 * h;
      if (row >= job.rows) continue;
      if (lane % 4 == 0)
        *reinterpret_cast<float2*>(shared_state(group, row)) = make_float2(state.reference[0][h], state.sum[0][h]);
      float* to = shared_out(group, row) + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[0][n][2 * h], out[0][n][2 * h + 1]);
    }
  }

  /// The groups' partials become one: the result where the block has all of the job, else its part on its way to the
  /// block that has arrived last, which merges. All of this runs once a segment, so that the time it takes is mostly
  /// that of fetching its instructions: loops that could be unrolled are not.
  __device__ __forceinline__ void merge(const Job& job, int slot) const {
    const int2 segment = *shared_segment(slot);  // first block, blocks
    const int items = job.rows * kChunks;
    const Words at{static_cast<int>(gridDim.x), least(kBlockM, params.group_size * params.len_q)};
    const int mine = static_cast<int>(blockIdx.x);
    unsigned* const sent = params.counters + at.row(kDim, 2 * mine + (mine == segment.x ? 1 : 0), 0);
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += kThreads) {
      const int row = item / kChunks;
      const int chunk = item % kChunks;
      Partial merged;
      merged.reset();
      merged.add_shared<kGroups>(shared_out(0, row) + 4 * chunk, kBlockM * kPlan.partial_pitch, shared_state(0, row),
                                 2 * kBlockM);
      unsigned* const to = sent + row * Words::row_words(kDim);
      if (segment.y == 1)
        store(merged, job, row, chunk);
      else
        merged.send(to + 4 * chunk, to + kDim + 2 * (chunk % 4), chunk < 4);
    }
    if (segment.y == 1) return;
    served_meet();  // whether this block is the last
    if (*is_last() != 0)
      receive(job, segment, params.counters + at.row(kDim, 2 * segment.x, 0), 2 * at.rows * Words::row_words(kDim));
  }

  /// Merges what the segment's blocks sent: the first of them to its second place, `pitch` / 2 behind `sent`, the
  /// others to multiples of `pitch`. Its own part too comes back this way.
  __device__ __forceinline__ void receive(const Job& job, const int2& segment, unsigned* sent, int pitch) const {
    const int items = job.rows * kChunks;
    const int parts = merge_parts(kConfig, kDim, job.rows, segment.y);
    const int all = parts * items;
#pragma unroll 1
    for (int first = 0; first < all; first += kThreads) {  // once, if there are several parts
      const int item = first + static_cast<int>(threadIdx.x);
      const bool active = item < all;
      const int part = active ? divide(item, items) : 0;
      const int row = active ? (item - part * items) / kChunks : 0;
      const int chunk = item % kChunks;
      unsigned* const from = sent + row * Words::row_words(kDim) + 4 * chunk;
      Partial merged;
      merged.reset();
#pragma unroll 1
      for (int index = part; __any_sync(0xffffffffU, active && index < segment.y); index += kBatch * parts)
        merged.receive<kBatch>(from + index * pitch, kDim - 4 * chunk + 2 * (chunk % 4), parts * pitch,
                               index == 0 ? pitch / 2 : 0,
                               active && index < segment.y ? ceil_div(segment.y - index, parts) : 0, chunk < 4);
      if (parts > 1) {
        // All have read the groups' partials: they were sent before it was known that this block is the last.
        if (active) merged.put_shared(shared_out(part, row) + 4 * chunk, shared_state(part, row), chunk == 0);
        consumers_meet();
        if (part != 0) continue;
        merged.reset();
#pragma unroll 1
        for (int i = 0; i < parts; ++i)
          merged.add_shared<1>(shared_out(i, row) + 4 * chunk, 0, shared_state(i, row), 0);
      }
      if (active) store(merged, job, row, chunk);
    }
  }

  /// Writes 4 columns of a finished row, and its log-sum-exp once a row. A sum of zero is that of no keys; NaN stays
  /// NaN.
  __device__ __forceinline__ void store(const Partial& merged, const Job& job, int row, int chunk) const {
    const PackedRow at = packed_row(job.first + row, params.group_size);
    const int head = job.kv_head * params.group_size + at.head;
    const float inverse = merged.sum == 0.0F ? 0.0F : 1.0F / merged.sum;
    uint2 packed;
    packed.x = ptx::cvt_rn_x2<kProblem.element>(merged.out[0] * inverse, merged.out[1] * inverse);
    packed.y = ptx::cvt_rn_x2<kProblem.element>(merged.out[2] * inverse, merged.out[3] * inverse);
    auto* out = static_cast<unsigned short*>(params.o) + job.batch * params.o_strides.batch +
                head * params.o_strides.head + at.query * params.o_strides.row + 4 * chunk;
    *reinterpret_cast<uint2*>(out) = packed;
    if (chunk == 0 && params.lse != nullptr)
      params.lse[(static_cast<long long>(job.batch) * params.heads + head) * params.len_q + at.query] =
          merged.sum == 0.0F ? -__int_as_float(0x7f800000)
                             : (merged.reference + ptx::lg2_approx_ftz(merged.sum)) * 0.693147181F;
  }
};

}  // namespace heed::decode_sm90
