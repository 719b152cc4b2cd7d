/// The tiles of K and V of fwd_sm80: the ring of stages that a group of warps keeps full, and how warps learn that a
/// tile is there and that a stage may be overwritten. A round is one turn of the loop over a group's tiles.
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/forward/block.cuh"
#include "kernels/sm80/forward/copies.cuh"

namespace heed::sm80 {

template <const Config& kConfig, const Problem& kProblem>
struct KvPipeline {
  using Block = sm80::Block<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kKeyBytes = Block::kKeyBytes;
  static constexpr int kValueBytes = Block::kValueBytes;
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = Block::kGroupThreads;
  static constexpr int kStages = kConfig.stages;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kMeets = kConfig.pipeline_sync == PipelineSync::group;
  static constexpr bool kBegins = Block::kBegins;
  static constexpr bool kLooksUp = kProblem.features.pages || kProblem.features.blocks;  // where rows of keys lie
  // Rounds asked for before the first is used, and the commit groups that are.
  static constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;
  static constexpr int kGroupsAhead = (kConfig.split_wait ? 2 : 1) * kAhead;

  using ValueCopies =
      Copies<kConfig.smem_layout, Block::kWidth, kValueBytes, kGroupThreads, Block::kDim * kValueBytes / 16>;
  using KeyCopies = Copies<kConfig.smem_layout, Block::kWidth, kKeyBytes, kGroupThreads, Block::kDim * kKeyBytes / 16>;

  // ---- state
  unsigned long long k_from;  // address of this thread's first piece of the next tile of K to copy
  unsigned long long v_from;
  unsigned piece_place;  // of the same piece in a tile in shared memory, in bytes

  __device__ __forceinline__ explicit KvPipeline(const Block& block) {
    const auto& p = block.params;
    const int kv_head = block.head / p.group_size;
    k_from = KeyCopies::source(p.k, block.batch * p.k_strides.batch + kv_head * p.k_strides.head, p.k_strides.row,
                               block.group * kBlockN, block.group_thread);
    v_from = ValueCopies::source(p.v, block.batch * p.v_strides.batch + kv_head * p.v_strides.head, p.v_strides.row,
                                 block.group * kBlockN, block.group_thread);
    if constexpr (kBegins) {
      k_from += kKeyBytes * block.origin() * p.k_strides.row;
      v_from += kValueBytes * block.origin() * p.v_strides.row;
    }
    piece_place = ValueCopies::place(block.group_thread);
    // Or it is worked out again for every tile; which it may be where output takes half of the registers.
    if constexpr (Block::kFragments * Block::kOutTiles < 32) opaque(piece_place);
  }

  __device__ __forceinline__ static int next_stage(int stage, int by = 1) {
    return stage + by >= kStages ? stage + by - kStages : stage + by;
  }

  /// Of a thread's first piece of a tile of K, whose rows may have fewer chunks than those of V.
  __device__ __forceinline__ unsigned place_of_keys(const Block& block) const {
    if constexpr (kKeyBytes == kValueBytes)
      return piece_place;
    else
      return KeyCopies::place(block.group_thread);
  }

  /// Starts copying the group's next tile, `tile`, of K or V into a stage. Tiles come in order, each once.
  __device__ __forceinline__ void load_keys(const Block& block, int tile, int stage) {
    if (tile >= block.group_tiles) return;
    if constexpr (kLooksUp) {
      load_looked_up<KeyCopies, kKeyBytes>(block, block.params.k, block.params.k_strides, tile,
                                           block.stage_address(stage));
    } else {
      KeyCopies::template start<kBlockN>(block.stage_address(stage), place_of_keys(block), k_from,
                                         block.params.k_strides.row, block.first_key(tile), block.keys_end,
                                         block.group_thread);
      k_from += kKeyBytes * kGroups * kBlockN * block.params.k_strides.row;
    }
  }
  __device__ __forceinline__ void load_values(const Block& block, int tile, int stage) {
    if (tile >= block.group_tiles) return;
    if constexpr (kLooksUp) {
      load_looked_up<ValueCopies, kValueBytes>(block, block.params.v, block.params.v_strides, tile,
                                               block.stage_address(stage) + kPlan.stage_bytes / 2);
    } else {
      ValueCopies::template start<kBlockN>(block.stage_address(stage) + kPlan.stage_bytes / 2, piece_place, v_from,
                                           block.params.v_strides.row, block.first_key(tile), block.keys_end,
                                           block.group_thread);
      v_from += kValueBytes * kGroups * kBlockN * block.params.v_strides.row;
    }
  }
  /// Where keys may lie in pages or in listed blocks, each row's address is looked up.
  template <class RowCopies, int kElementBytes>
  __device__ __forceinline__ static void load_looked_up(const Block& block, const void* tensor,
                                                        const TensorStrides& strides, int tile, unsigned to) {
    const auto from = reinterpret_cast<unsigned long long>(tensor);
    const long long of_head = block.head / block.params.group_size * strides.head;
    const int begin = kBegins ? block.origin() : 0;
    const int first = block.first_key_of_entry(tile);
    RowCopies::template start_rows<kBlockN>(
        to, from, first, kProblem.features.blocks ? begin : first, begin + block.keys_end, block.group_thread,
        [&](int key) {
          return from + kElementBytes * (of_head + key_offset(block.params, strides, block.batch, key));
        });
  }
  /// What round t reads: K and V of tile t, or K of tile t and V of tile t - 1 where values are multiplied beside the
  /// next tile's exponentials. `stage` is tile t's, `value_stage` that of the values.
  __device__ __forceinline__ void load_round(const Block& block, int t, int stage, int value_stage) {
    if constexpr (!kMeets) {
      if (t >= rounds(block)) return;
      if (t >= kStages) ptx::mbarrier_wait(freed(block, stage), parity_of(t - kStages));
    }
    load_keys(block, t, stage);
    if constexpr (kConfig.split_wait) ptx::cp_async_commit_group();
    if constexpr (!kConfig.overlap)
      load_values(block, t, value_stage);
    else if (t > 0)
      load_values(block, t - 1, value_stage);
    if constexpr (kMeets)
      // One commit group, or two when K and V are waited for separately. Past the last tile the groups are empty, which
      // keeps the count of pending ones the same in every round.
      ptx::cp_async_commit_group();
    else
      ptx::cp_async_mbarrier_arrive_noinc(full(block, stage));
  }

  __device__ __forceinline__ void load_ahead(const Block& block, int t, int stage) {
    load_round(block, t + kAhead, next_stage(stage, kAhead), next_stage(stage, kConfig.overlap ? kAhead - 1 : kAhead));
  }

  // ------------------------------------------------------------------------------------------------------- rounds

  __device__ __forceinline__ static int rounds(const Block& block) {
    return block.group_tiles + (kConfig.overlap ? 1 : 0);
  }

  // The stage pipeline_sync: round t's barriers are those of stage t % kStages, and of its phases the (t / kStages)th.
  __device__ __forceinline__ static unsigned full(const Block& block, int stage) {
    return block.shared_base + kPlan.barriers + 16 * (block.group * kStages + stage);
  }
  __device__ __forceinline__ static unsigned freed(const Block& block, int stage) { return full(block, stage) + 8; }
  __device__ __forceinline__ static unsigned parity_of(int t) { return static_cast<unsigned>(t) / kStages & 1; }

  __device__ __forceinline__ static void initialise_barriers(const Block& block) {
    if (threadIdx.x < kGroups * kStages) {
      const unsigned barrier = block.shared_base + kPlan.barriers + 16 * threadIdx.x;
      ptx::mbarrier_init(barrier, kGroupThreads);
      ptx::mbarrier_init(barrier + 8, kGroupThreads / 32);
    }
    __syncthreads();
  }

  /// Waits until what round t reads is there, if this warp reads any; kPending commit groups are of later rounds. The
  /// first round's came with Q where groups meet.
  template <int kPending>
  __device__ __forceinline__ static void begin_round(const Block& block, int t, int stage, bool reads) {
    if constexpr (!kMeets) {
      if (reads) ptx::mbarrier_wait(full(block, stage), parity_of(t));
    } else if (t > 0) {
      ptx::cp_async_wait_group<kPending>();
      block.group_barrier();  // everyone's part is there, and everyone is done with the round before
    }
  }
  /// This warp has read what it wanted of the round.
  __device__ __forceinline__ static void end_round(const Block& block, int stage) {
    if constexpr (!kMeets) {
      __syncwarp();
      if (block.lane == 0) ptx::mbarrier_arrive(freed(block, stage));
    }
  }
};

}  // namespace heed::sm80
