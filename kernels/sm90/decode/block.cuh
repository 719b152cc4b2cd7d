/// A thread block of fwd_sm90_decode: which jobs and tiles are its own, and the copies into its ring of stages.
#pragma once

#include "kernels/attention/packed_scores.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/decode/config.hpp"
#include "kernels/sm90/decode/entries.cuh"
#include "kernels/sm90/tma.cuh"
#include "kernels/tile/fragment.hpp"

namespace heed::sm90_decode {

/// An element of K or V, as addresses count it.
template <int kBytes>
struct KeyElement {
  using Type = unsigned short;
};
template <>
struct KeyElement<1> {
  using Type = unsigned char;
};

template <const Config& kConfig, const Problem& kProblem>
struct Block {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kHeadDim = kProblem.head_dim;
  static constexpr bool kQuantised = is_quantised(kProblem);  // K and V have 8 bits: quantised.cuh
  static constexpr Element kOperand = kQuantised ? Element::fp16 : kProblem.element;  // of both products
  static constexpr int kKeyBytes = key_bytes(kProblem);
  static constexpr int kDim = padded_dim(kProblem);
  static constexpr int kBoxColumns = box_columns(kDim, kKeyBytes);
  static constexpr int kBoxRowBytes = kBoxColumns * kKeyBytes;
  static constexpr int kBoxes = kDim / kBoxColumns;
  static constexpr int kBoxBytes = kBlockN * kBoxRowBytes;
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = 32 * warps_per_group(kConfig);
  static constexpr int kThreads = consumers(kConfig);  // that compute
  static constexpr int kMergers = merging_threads(kConfig);
  static constexpr int kFirstMerger = kThreads + (kConfig.producer_warp ? 32 : 0);
  static constexpr int kStages = kConfig.stages;
  static constexpr int kReaders = by_columns(kConfig) ? kGroups : kGroupThreads / 32;  // warps that read a stage
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kDim, kKeyBytes);
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kChanges = changes_scores(kProblem.features);
  using Changes = attention::PackedRowChanges<kProblem>;
  static constexpr bool kEntries = jobs_differ(kProblem.features);  // tiles of jobs are those of an entry
  using JobIndex = typename JobTypes<kEntries>::Index;
  using KnownJob = typename JobTypes<kEntries>::Known;

  static_assert(kHeadDim % 8 == 0 && kBlockN % 16 == 0, "rows of whole 16 bytes, products of 16 keys");
  static_assert(kBoxBytes % 1024 == 0, "every box starts a swizzle atom");
  static_assert(kKeyBytes == bytes_of(v_element(kProblem)) && kKeyBytes <= 2 && q_element(kProblem) == kProblem.element,
                "K and V are both quantised or neither, Q is not");

  // ---- state
  const Params<kProblem>& params;
  const TensorMaps& maps;
  char* shared;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  enum class Role { computes, copies, merges };
  Role role;
  int job_tiles;
  Share blocks;
  bool is_own_job;  // whether the grid says which job is this block's: it has no other (config.hpp: grid_of)
  int number;       // on the line of all blocks
  int first_tile;   // on the line of all tiles
  int tile_count;   // tiles
  JobIndex first_job;

  __device__ __forceinline__ static int merger() { return static_cast<int>(threadIdx.x) - kFirstMerger; }

  __device__ __forceinline__ Block(const Params<kProblem>& p, const TensorMaps& m, char* dynamic_shared)
      : params(p), maps(m), shared(dynamic_shared), shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    const int warp_of_block = ptx::warp_uniform(static_cast<int>(threadIdx.x / 32));
    group = warp_of_block / (kGroupThreads / 32);
    warp = warp_of_block % (kGroupThreads / 32);
    role = warp_of_block < kThreads / 32                             ? Role::computes
           : kConfig.producer_warp && warp_of_block == kThreads / 32 ? Role::copies
                                                                     : Role::merges;
    if constexpr (kEntries)
      find_share();
    else
      find_equal_share(p);
  }

  __device__ __forceinline__ void find_equal_share(const ForwardParams& p) {
    job_tiles = tiles_of_job(kConfig, kProblem.mask, p.len_q, p.right_offset, p.len_k);
    const int heads = p.heads_kv * row_tiles(kConfig, p.group_size, p.len_q);
    is_own_job = static_cast<int>(gridDim.y) == heads && static_cast<int>(gridDim.z) == p.batch;
    if (is_own_job) {
      const int parts = static_cast<int>(gridDim.x);
      const int part = static_cast<int>(blockIdx.x);
      const int each = divide(job_tiles, parts);
      blocks = {each, job_tiles - each * parts, job_tiles, parts};
      first_job = static_cast<int>(blockIdx.z) * heads + static_cast<int>(blockIdx.y);
      number = first_job * parts + part;
      first_tile = first_job * job_tiles + part * each + least(part, blocks.more);
      tile_count = each + (part < blocks.more ? 1 : 0);
    } else {
      blocks = share(kConfig, p.batch * heads, job_tiles, static_cast<int>(gridDim.x));
      number = static_cast<int>(blockIdx.x);
      first_tile = blocks.first_tile(number);
      tile_count = blocks.tiles(number);
      first_job = divide(first_tile, job_tiles);
    }
  }

  __device__ __forceinline__ auto line() const { return Line<kConfig, kProblem>(params); }

  /// The same where jobs differ: a block may have no tile. Lengths are read, so after the launch before.
  __device__ __forceinline__ void find_share() {
    wait_for_launch_before();
    const int all = line().all_tiles(lane);
    number = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    const int count = least(static_cast<int>(gridDim.x * gridDim.y * gridDim.z), all);
    const int each = divide(all, count);
    blocks = {each, all - each * count, 0, 0};
    is_own_job = false;
    job_tiles = 0;
    first_tile = blocks.first_tile(number);
    tile_count = number < count ? blocks.tiles(number) : 0;
    if (tile_count > 0) first_job = line().job_with(first_tile, lane);
  }

  // ---- jobs of the line, one after the other
  __device__ __forceinline__ int start_of(int job) const { return job * job_tiles; }
  __device__ __forceinline__ static int start_of(const LineJob& at) { return at.start; }
  __device__ __forceinline__ int tiles_of(int) const { return job_tiles; }
  __device__ __forceinline__ static int tiles_of(const LineJob& at) { return at.tiles; }
  __device__ __forceinline__ static int next_job(int job) { return job + 1; }
  __device__ __forceinline__ LineJob next_job(const LineJob& at) const { return line().next(at); }
  __device__ __forceinline__ static bool are_same(int a, int b) { return a == b; }
  __device__ __forceinline__ static bool are_same(const LineJob& a, const LineJob& b) { return a.start == b.start; }
  /// Whether it is the block's last.
  __device__ __forceinline__ bool ends_block(const LineJob& at) const {
    return at.start + at.tiles >= first_tile + tile_count;
  }

  /// The launch's parameters as a job's entry has them.
  __device__ __forceinline__ const auto& params_of([[maybe_unused]] const KnownJob& job) const {
    if constexpr (kEntries)
      return job.params;
    else
      return params;
  }

  /// Of a job of this block.
  __device__ __forceinline__ EntryJob job_of(const LineJob& at) const { return line().job_at(at); }
  __device__ __forceinline__ JobPlace place_of_job(int job) const {
    if (is_own_job) return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};
    return sm90_decode::place_of_job(kConfig, params, job);
  }
  __device__ __forceinline__ Job job_of(int job) const {
    return job_at(kConfig, kProblem.mask, params, place_of_job(job));
  }

  /// The first key that a packed row sees.
  __device__ __forceinline__ int first_key_of(const KnownJob& job, int row) const {
    const auto& p = params_of(job);
    return hidden_keys(kProblem.mask, divide(row, p.group_size), p.left_offset, p.len_k);
  }

  // Barriers of shared memory are set up by the warps that copy, help and merge; threads that compute wait for that
  // before they use one. Only they do: compute-sanitizer's synccheck takes warps that wait for each other at different
  // instructions for an error.
  __device__ __forceinline__ static void barriers_are_set() {
    __syncwarp();
    ptx::bar_arrive(attention::barrier_id<kConfig, NamedBarrier::mbarriers_set>(), threads(kConfig));
  }
  __device__ __forceinline__ static void wait_for_barriers() {
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::mbarriers_set>(), threads(kConfig));
  }

  /// Nothing in global memory is touched before.
  __device__ __forceinline__ static void wait_for_launch_before() {
    if constexpr (kConfig.pdl) ptx::griddepcontrol_wait();
  }

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + stage * 2 * kPlan.tile_bytes;
  }
  __device__ __forceinline__ unsigned full(int stage) const { return shared_base + kPlan.barriers + stage * 8; }
  /// By columns values have a barrier of their own: scores need the keys only, which come half a tile earlier.
  __device__ __forceinline__ unsigned values_full(int stage) const {
    return by_columns(kConfig) ? full(2 * kStages + stage) : full(stage);
  }
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
    const JobPlace place = place_of_job(source.job);
    source.batch = place.batch;
    source.kv_head = tiles == 1 ? place.head : divide(place.head, tiles);
  }

  /// Asks for the boxes of a tile of K, or of V.
  __device__ __forceinline__ void copy_boxes(unsigned to, const TensorMap& map, const Source& source,
                                             unsigned barrier) const {
    sm90::load_boxes<kBoxes, kConfig.evict_first, kBoxColumns>(to, kBoxBytes, map, barrier, source.tile * kBlockN,
                                                               source.kv_head, source.batch);
  }

  /// Where the block's tile `tile` comes from.
  __device__ __forceinline__ Source source_of(int tile) const {
    Source source{first_job, first_tile + tile - first_job * job_tiles, 0, 0};
    for (; source.tile >= job_tiles; source.tile -= job_tiles) ++source.job;
    find_head(source);
    return source;
  }

  /// Asks for a tile of K and of V, and goes `step` tiles on.
  __device__ __forceinline__ void copy(Source& source, int stage, int step) const {
    const unsigned keys = stage_address(stage);
    ptx::mbarrier_arrive_expect_tx(full(stage), (by_columns(kConfig) ? 1 : 2) * kPlan.tile_bytes);
    copy_boxes(keys, maps.k, source, full(stage));
    if constexpr (by_columns(kConfig)) ptx::mbarrier_arrive_expect_tx(values_full(stage), kPlan.tile_bytes);
    copy_boxes(keys + kPlan.tile_bytes, maps.v, source, values_full(stage));
    source.tile += step;
    if (source.tile < job_tiles) return;
    for (; source.tile >= job_tiles; source.tile -= job_tiles) ++source.job;
    find_head(source);
  }

  /// Address a lane gives to ldmatrix for a 16 x 16 block of 16-bit words at (row, 8 * chunk) of a tile; `row` is a
  /// multiple of 8. Chunk c of row r lies at c ^ (r % 8), of rows of 64 bytes at c ^ (r / 2 % 4).
  __device__ __forceinline__ static unsigned block_address(unsigned tile, int row, int chunk,
                                                           tile::Coordinate lane_offset) {
    constexpr int kChunks = kBoxRowBytes / 16;
    const int of_row = kChunks == 8 ? lane_offset.row % 8 : lane_offset.row / 2 % 4;
    const int swizzled = (chunk % kChunks) ^ (lane_offset.column / 8) ^ of_row;
    return tile + chunk / kChunks * kBoxBytes + (row + lane_offset.row) * kBoxRowBytes + swizzled * 16;
  }

  /// While the producer works out where its first copies come from.
  __device__ __forceinline__ void prefetch_maps() const {
    ptx::prefetch_tensormap(maps.k);
    ptx::prefetch_tensormap(maps.v);
  }

  // ------------------------------------------------------------------------------------------------------ producer

  /// Sets the barriers up and fills the ring, then refills every stage that is read.
  __device__ __forceinline__ void produce() const {
    wait_for_launch_before();
    Source source = source_of(0);
    if (kConfig.l2_prefetch_kib > 0 && ptx::elect_one()) prefetch_first_keys(source);
    if (ptx::elect_one()) {
      // By one thread: lanes would do it one after the other, more slowly.
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        ptx::mbarrier_init(full(s), 1);
        if constexpr (by_columns(kConfig)) ptx::mbarrier_init(values_full(s), 1);
        ptx::mbarrier_init(empty(s), kReaders);
      }
      ptx::fence_mbarrier_init();
#pragma unroll 1
      for (int s = 0; s < least(kStages, tile_count); ++s) copy(source, s, 1);
    }
    barriers_are_set();
    if (!ptx::elect_one()) return;
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int t = kStages; t < tile_count; ++t) {
      ptx::mbarrier_wait(empty(stage), parity);
      copy(source, stage, 1);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  /// Has the L2 fetch what the first copies will ask for, where rows lie one behind the other: that needs an address
  /// only, while a copy waits for its tensor map, which comes from memory too. One thread, few instructions: lanes ask
  /// one after the other.
  __device__ __forceinline__ void prefetch_first_keys(const Source& source) const {
    constexpr int kKeys = kConfig.l2_prefetch_kib * 1024 / (2 * kHeadDim * kKeyBytes);
    constexpr int kPiece = least(kBlockN, kKeys);
    const int begin = source.tile * kBlockN;
    const int end = least(least(begin + kKeys, (source.tile + tile_count) * kBlockN), params.len_k);
#pragma unroll 1
    for (int key = begin; key < end; key += kPiece) {
      prefetch_rows(params.k, params.k_strides, source, key, least(kPiece, end - key));
      prefetch_rows(params.v, params.v_strides, source, key, least(kPiece, end - key));
    }
  }

  __device__ __forceinline__ void prefetch_rows(const void* tensor, const TensorStrides& strides, const Source& source,
                                                int row, int rows) const {
    if (strides.row != kHeadDim) return;
    const auto* const from = static_cast<const typename KeyElement<kKeyBytes>::Type*>(tensor) +
                             source.batch * strides.batch + source.kv_head * strides.head +
                             static_cast<long long>(row) * kHeadDim;
    ptx::cp_async_bulk_prefetch_l2(from, rows * kHeadDim * kKeyBytes);
  }

  /// Packed row `row` of a job.
  __device__ __forceinline__ const unsigned short* query_row(const KnownJob& job, int row) const {
    const auto& p = params_of(job);
    const PackedRow at = packed_row(job.first + row, p.group_size);
    return static_cast<const unsigned short*>(p.q) + job.batch * p.q_strides.batch +
           (job.kv_head * p.group_size + at.head) * p.q_strides.head + at.query * p.q_strides.row;
  }

  // ------------------------------------------------------------------------------------------------------ partials

  /// The blocks that share a job.
  struct Segment {
    int first_block;
    int blocks;
  };
  __device__ __forceinline__ Segment segment_of(int job) const {
    const int first = blocks.first_block(job);
    return {first, blocks.last_block(job) - first + 1};
  }
  __device__ __forceinline__ Segment segment_of(const LineJob& at) const {
    const int first = blocks.block_of(at.start);
    return {first, blocks.block_of(at.start + at.tiles - 1) - first + 1};
  }

  __device__ __forceinline__ void prefetch_queries(const KnownJob& job) const {
    constexpr int kLines = ceil_div(kHeadDim * 2, 128);
    for (int i = merger(); i < job.rows * kLines; i += kMergers)
      ptx::prefetch_l2(query_row(job, i / kLines) + i % kLines * 64);
  }

  __device__ __forceinline__ Words words() const {
    return words_of(kConfig, kDim, static_cast<int>(gridDim.x * gridDim.y * gridDim.z),
                    least(kBlockM, params.group_size * params.len_q));
  }
  __device__ __forceinline__ unsigned* place_of(int place, const Words& words) const {
    return params.semaphores + words.place(place);
  }
};

}  // namespace heed::sm90_decode
