/// The rounds of fwd_sm80: which rows and tiles of keys a thread is there for, the ring of stages its group keeps full,
/// and how warps learn that a tile is there and that a stage may be overwritten.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/forward/config.hpp"
#include "kernels/sm80/forward/copies.cuh"

namespace heed::sm80 {

template <const Config& kConfig, const Problem& kProblem>
struct Rounds : attention::ListedBlocks<kProblem> {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBytes = bytes_of(kProblem.element);
  static constexpr int kKeyBytes = bytes_of(k_element(kProblem));
  static constexpr int kValueBytes = bytes_of(v_element(kProblem));
  static constexpr int kWidth = row_width(kProblem);         // of rows in shared memory, in 16-bit elements
  static constexpr int kFragments = kConfig.warp_rows / 16;  // 16-row fragments a warp
  static constexpr int kOutTiles = kDim / 8;                 // n-tiles of O
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = threads_per_group(kConfig);
  static constexpr int kStages = kConfig.stages;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem);
  static constexpr auto kLayout = kConfig.smem_layout;
  static constexpr bool kMeets = kConfig.pipeline_sync == PipelineSync::group;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kLooksUp = kProblem.features.pages || kProblem.features.blocks;  // where rows of keys lie
  static constexpr bool kHasFull = has_full_blocks(kProblem.features);
  // Rounds asked for before the first is used, and the commit groups that are.
  static constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;
  static constexpr int kGroupsAhead = (kConfig.split_wait ? 2 : 1) * kAhead;

  static_assert(kBlockM % kConfig.warp_rows == 0, "warps must share the rows evenly");

  using ValueCopies = Copies<kLayout, kWidth, kValueBytes, kGroupThreads, kDim * kValueBytes / 16>;
  using KeyCopies = Copies<kLayout, kWidth, kKeyBytes, kGroupThreads, kDim * kKeyBytes / 16>;

  // ---- state
  attention::ParamsOfEntry<kProblem> params;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int group_thread;  // within the group
  int first_row;     // of the block
  int head;
  int batch;
  int keys_end;               // keys any row of the block may see, counted from the first of them (origin())
  int group_tiles;            // tiles of keys that this group takes
  unsigned long long k_from;  // address of this thread's first piece of the next tile of K to copy
  unsigned long long v_from;
  unsigned piece_place;  // of the same piece in a tile in shared memory, in bytes

  /// Parameters of a launch; those kept are of the block's entry.
  __device__ __forceinline__ Rounds(const Params<kProblem>& launch, unsigned shared_address)
      : attention::ListedBlocks<kProblem>(launch, place().batch, place().head),
        params(attention::params_of_entry<kProblem>(launch, place().batch)),
        shared_base(shared_address) {
    const auto& p = params;
    lane = threadIdx.x % 32;
    group = kGroups == 1 ? 0 : threadIdx.x / kGroupThreads;  // a constant keeps addresses short
    group_thread = kGroups == 1 ? threadIdx.x : threadIdx.x % kGroupThreads;
    warp = ptx::warp_uniform(group_thread / 32);
    const attention::GridPlace at = place();
    first_row = attention::q_tile_at(kConfig.tile_order, at.index, at.q_tiles) * kBlockM;
    head = at.head;
    batch = at.batch;
    keys_end = visible_keys(kProblem.mask, min(first_row + kBlockM, p.len_q) - 1, p.right_offset, p.len_k);
    if constexpr (kProblem.features.prefix) {
      this->prefix = prefix_of(p, batch);
      keys_end = max(keys_end, this->prefix);
    }
    if constexpr (kBegins) keys_end -= origin();
    group_tiles = tiles_of_group(keys_end);
    if constexpr (kProblem.features.blocks) {
      this->blocks = key_blocks<kHasFull>(p, batch, head, first_row, keys_end + (kBegins ? origin() : 0));
      if (this->blocks.numbers != nullptr) group_tiles = tiles_of_group(this->blocks.count * this->blocks.keys);
    }
    const int kv_head = head / p.group_size;
    k_from = KeyCopies::source(p.k, batch * p.k_strides.batch + kv_head * p.k_strides.head, p.k_strides.row,
                               group * kBlockN, group_thread);
    v_from = ValueCopies::source(p.v, batch * p.v_strides.batch + kv_head * p.v_strides.head, p.v_strides.row,
                                 group * kBlockN, group_thread);
    if constexpr (kBegins) {
      k_from += kKeyBytes * origin() * p.k_strides.row;
      v_from += kValueBytes * origin() * p.v_strides.row;
    }
    piece_place = ValueCopies::place(group_thread);
    // Or it is worked out again for every tile; which it may be where output takes half of the registers.
    if constexpr (kFragments * kOutTiles < 32) opaque(piece_place);
  }

  __device__ __forceinline__ static attention::GridPlace place() {
    return attention::place_in_grid<grid_axes(kConfig.tile_order)>({blockIdx.x, blockIdx.y, blockIdx.z},
                                                                   {gridDim.x, gridDim.y, gridDim.z});
  }

  // Under a mask with a left bound tiles begin at the first key that some row of the block sees: keys are counted from
  // there, and keys before it are neither loaded nor masked.

  /// The key that is counted as the block's first.
  __device__ __forceinline__ int origin() const {
    return hidden_keys(kProblem.mask, first_row, params.left_offset, params.len_k);
  }
  /// Tiles with keys below `end` that this group takes.
  __device__ __forceinline__ int tiles_of_group(int end) const {
    const int tiles = (end + kBlockN - 1) / kBlockN;
    return kGroups == 1 ? tiles : tiles > group ? (tiles - group + kGroups - 1) / kGroups : 0;
  }

  __device__ __forceinline__ void group_barrier() const {
    if constexpr (kGroupThreads == 32)
      __syncwarp();
    else if constexpr (kGroups == 1)
      __syncthreads();
    else
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::group>(group), kGroupThreads);
  }

  // ------------------------------------------------------------------------------------------------------- copies

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + kPlan.stages + (group * kStages + stage) * kPlan.stage_bytes;
  }
  __device__ __forceinline__ static int next_stage(int stage, int by = 1) {
    return stage + by >= kStages ? stage + by - kStages : stage + by;
  }
  __device__ __forceinline__ int first_key(int tile) const { return (group + tile * kGroups) * kBlockN; }
  /// The first key of a tile, counted from the entry's first: of the tiles of listed blocks one after another, or of
  /// those from the origin on where the launch has no lists.
  __device__ __forceinline__ int first_key_of_entry(int tile) const {
    const int at = first_key(tile);
    if constexpr (kProblem.features.blocks) {
      // The head's bias is null where the launch's is, and is kept anyway.
      bool takes_full = false;
      if constexpr (kHasFull) takes_full = this->bias != nullptr;
      if (this->blocks.numbers != nullptr)
        return this->blocks.first_key(at / this->blocks.keys, takes_full) + at % this->blocks.keys;
    }
    return (kBegins ? origin() : 0) + at;
  }
  /// Whether the bias may change scores of a tile.
  __device__ __forceinline__ bool reads_bias(int tile) const {
    if constexpr (kHasFull) return !this->blocks.is_full(first_key(tile) / this->blocks.keys);
    return true;
  }

  /// Of a thread's first piece of a tile of K, whose rows may have fewer chunks than those of V.
  __device__ __forceinline__ unsigned place_of_keys() const {
    if constexpr (kKeyBytes == kValueBytes)
      return piece_place;
    else
      return KeyCopies::place(group_thread);
  }

  /// Starts copying the group's next tile, `tile`, of K or V into a stage. Tiles come in order, each once.
  __device__ __forceinline__ void load_keys(int tile, int stage) {
    if (tile >= group_tiles) return;
    if constexpr (kLooksUp) {
      load_looked_up<KeyCopies, kKeyBytes>(params.k, params.k_strides, tile, stage_address(stage));
    } else {
      KeyCopies::template start<kBlockN>(stage_address(stage), place_of_keys(), k_from, params.k_strides.row,
                                         first_key(tile), keys_end, group_thread);
      k_from += kKeyBytes * kGroups * kBlockN * params.k_strides.row;
    }
  }
  __device__ __forceinline__ void load_values(int tile, int stage) {
    if (tile >= group_tiles) return;
    if constexpr (kLooksUp) {
      load_looked_up<ValueCopies, kValueBytes>(params.v, params.v_strides, tile,
                                               stage_address(stage) + kPlan.stage_bytes / 2);
    } else {
      ValueCopies::template start<kBlockN>(stage_address(stage) + kPlan.stage_bytes / 2, piece_place, v_from,
                                           params.v_strides.row, first_key(tile), keys_end, group_thread);
      v_from += kValueBytes * kGroups * kBlockN * params.v_strides.row;
    }
  }
  /// Where keys may lie in pages or in listed blocks, each row's address is looked up.
  template <class RowCopies, int kElementBytes>
  __device__ __forceinline__ void load_looked_up(const void* tensor, const TensorStrides& strides, int tile,
                                                 unsigned to) const {
    const auto from = reinterpret_cast<unsigned long long>(tensor);
    const long long of_head = head / params.group_size * strides.head;
    const int begin = kBegins ? origin() : 0;
    const int first = first_key_of_entry(tile);
    RowCopies::template start_rows<kBlockN>(
        to, from, first, kProblem.features.blocks ? begin : first, begin + keys_end, group_thread,
        [&](int key) { return from + kElementBytes * (of_head + key_offset(params, strides, batch, key)); });
  }
  /// What round t reads: K and V of tile t, or K of tile t and V of tile t - 1 where values are multiplied beside the
  /// next tile's exponentials. `stage` is tile t's, `value_stage` that of the values.
  __device__ __forceinline__ void load_round(int t, int stage, int value_stage) {
    if constexpr (!kMeets) {
      if (t >= rounds()) return;
      if (t >= kStages) ptx::mbarrier_wait(freed(stage), parity_of(t - kStages));
    }
    load_keys(t, stage);
    if constexpr (kConfig.split_wait) ptx::cp_async_commit_group();
    if constexpr (!kConfig.overlap)
      load_values(t, value_stage);
    else if (t > 0)
      load_values(t - 1, value_stage);
    if constexpr (kMeets)
      // One commit group, or two when K and V are waited for separately. Past the last tile the groups are empty, which
      // keeps the count of pending ones the same in every round.
      ptx::cp_async_commit_group();
    else
      ptx::cp_async_mbarrier_arrive_noinc(full(stage));
  }

  __device__ __forceinline__ void load_ahead(int t, int stage) {
    load_round(t + kAhead, next_stage(stage, kAhead), next_stage(stage, kConfig.overlap ? kAhead - 1 : kAhead));
  }

  // ------------------------------------------------------------------------------------------------------- rounds

  __device__ __forceinline__ int rounds() const { return group_tiles + (kConfig.overlap ? 1 : 0); }

  // The stage pipeline_sync: round t's barriers are those of stage t % kStages, and of its phases the (t / kStages)th.
  __device__ __forceinline__ unsigned full(int stage) const {
    return shared_base + kPlan.barriers + 16 * (group * kStages + stage);
  }
  __device__ __forceinline__ unsigned freed(int stage) const { return full(stage) + 8; }
  __device__ __forceinline__ static unsigned parity_of(int t) { return static_cast<unsigned>(t) / kStages & 1; }

  __device__ __forceinline__ void initialise_barriers() const {
    if (threadIdx.x < kGroups * kStages) {
      const unsigned barrier = shared_base + kPlan.barriers + 16 * threadIdx.x;
      ptx::mbarrier_init(barrier, kGroupThreads);
      ptx::mbarrier_init(barrier + 8, kGroupThreads / 32);
    }
    __syncthreads();
  }

  /// Waits until what round t reads is there, if this warp reads any; kPending commit groups are of later rounds. The
  /// first round's came with Q where groups meet.
  template <int kPending>
  __device__ __forceinline__ void begin_round(int t, int stage, bool reads) const {
    if constexpr (!kMeets) {
      if (reads) ptx::mbarrier_wait(full(stage), parity_of(t));
    } else if (t > 0) {
      ptx::cp_async_wait_group<kPending>();
      group_barrier();  // everyone's part is there, and everyone is done with the round before
    }
  }
  /// This warp has read what it wanted of the round.
  __device__ __forceinline__ void end_round(int stage) const {
    if constexpr (!kMeets) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(freed(stage));
    }
  }
};

}  // namespace heed::sm80
