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
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/config.hpp"
#include "kernels/sm80/copies.cuh"
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

  static_assert(static_cast<int>(attention::Exp2::hardware) == kHardwareExp2 &&
                static_cast<int>(attention::Rescale::optimistic) == sm80::kOptimistic);
  using TileCopies = Copies<kLayout, kDim, kGroupThreads>;
  using QueryCopies = Copies<kLayout, kDim, kThreads>;

  static constexpr bool kMeets = kConfig.handshake == Handshake::group;
  static constexpr bool kOptimistic = kConfig.rescale == attention::Rescale::optimistic;
  static constexpr float kMargin = kOptimistic ? attention::optimistic_margin(kProblem.element) : 0.0F;

  using Scores = float[kFragments][kKeyTiles][4];               // (warp rows, keys), accumulator fragments
  using Probabilities = unsigned[kFragments][kBlockN / 16][4];  // the same as A operands
  using Output = float[kFragments][kOutTiles][4];               // (warp rows, head dim), accumulator fragments
  using Query = unsigned[kConfig.q_in_registers ? kFragments : 1][kConfig.q_in_registers ? kDim / 16 : 1][4];

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
  int keys_end;               // keys any row of the block may see
  int group_tiles;            // tiles of keys that this group takes
  unsigned long long k_from;  // address of this thread's first piece of the next tile of K to copy
  unsigned long long v_from;
  unsigned piece_place;  // of the same piece in a tile in shared memory, in bytes

  __device__ __forceinline__ Forward(const ForwardParams& p, char* dynamic_shared)
      : params(p), shared(dynamic_shared), shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    group = kGroups == 1 ? 0 : threadIdx.x / kGroupThreads;  // a constant keeps addresses short
    group_thread = kGroups == 1 ? threadIdx.x : threadIdx.x % kGroupThreads;
    warp = ptx::warp_uniform(group_thread / 32);
    constexpr bool kHeadsFirst = heads_first(kConfig.tile_order);
    const int index = kHeadsFirst ? blockIdx.z : blockIdx.x;
    const int row_tiles = kHeadsFirst ? gridDim.z : gridDim.x;
    first_row = row_tile(kConfig.tile_order, index, row_tiles) * kBlockM;
    head = kHeadsFirst ? blockIdx.x : blockIdx.y;
    batch = kHeadsFirst ? blockIdx.y : blockIdx.z;
    keys_end = visible_keys(kProblem.causal, min(first_row + kBlockM, p.len_q) - 1, p.causal_offset, p.len_k);
    group_tiles = tiles_of_group(keys_end);
    const int kv_head = head / p.group_size;
    k_from = TileCopies::source(p.k, batch * p.k_strides.batch + kv_head * p.k_strides.head, p.k_strides.row,
                                group * kBlockN, group_thread);
    v_from = TileCopies::source(p.v, batch * p.v_strides.batch + kv_head * p.v_strides.head, p.v_strides.row,
                                group * kBlockN, group_thread);
    piece_place = TileCopies::place(group_thread);
    // Or it is worked out again for every tile; which it may be where output takes half of the registers.
    if constexpr (kFragments * kOutTiles < 32) ptx::settle(piece_place);
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
      ptx::bar_sync(1 + group, kGroupThreads);
  }

  // ------------------------------------------------------------------------------------------------------- copies

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + kPlan.stages + (group * kStages + stage) * kPlan.stage_bytes;
  }
  __device__ __forceinline__ static int next_stage(int stage, int by = 1) {
    return stage + by >= kStages ? stage + by - kStages : stage + by;
  }
  __device__ __forceinline__ int first_key(int tile) const { return (group + tile * kGroups) * kBlockN; }

  /// Starts copying the group's next tile, `tile`, of K or V into a stage. Tiles come in order, each once.
  __device__ __forceinline__ void load_keys(int tile, int stage) {
    if (tile >= group_tiles) return;
    TileCopies::template start<kBlockN>(stage_address(stage), piece_place, k_from, params.k_strides.row,
                                        first_key(tile), keys_end, group_thread);
    k_from += 2 * kGroups * kBlockN * params.k_strides.row;
  }
  __device__ __forceinline__ void load_values(int tile, int stage) {
    if (tile >= group_tiles) return;
    TileCopies::template start<kBlockN>(stage_address(stage) + kPlan.stage_bytes / 2, piece_place, v_from,
                                        params.v_strides.row, first_key(tile), keys_end, group_thread);
    v_from += 2 * kGroups * kBlockN * params.v_strides.row;
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

  // ------------------------------------------------------------------------------------------------------- rounds

  __device__ __forceinline__ int rounds() const { return group_tiles + (kConfig.overlap ? 1 : 0); }

  // The stage handshake: round t's barriers are those of stage t % kStages, and of its phases the (t / kStages)th.
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

  // ----------------------------------------------------------------------------------------------------- products

  /// What a lane adds to a tile's address for ldmatrix of the block at (0, 0).
  __device__ __forceinline__ static unsigned lane_offset(tile::Coordinate at) {
    return tile::chunk_offset(kLayout, kDim, at.row, at.column / 8);
  }
  /// Address for the 16 x 16 block at (row, 8 * chunk): row a multiple of 8, chunk even, so that the swizzle is one
  /// exclusive or of the lane's own address. `lane_address`: tile address, a multiple of 128, and lane_offset.
  __device__ __forceinline__ static unsigned block_address(unsigned lane_address, int row, int chunk) {
    if constexpr (kLayout == tile::SharedLayout::swizzled)
      return (lane_address ^ (chunk % 8 * 16)) + row * kPitch + chunk / 8 * 128;
    else
      return lane_address + row * kPitch + chunk * 16;
  }

  /// scores = Q K^T of one tile.
  __device__ __forceinline__ void multiply_keys(Scores& scores, const Query& query, unsigned keys) const {
    const unsigned k_lane = keys + lane_offset(tile::ldmatrix_k_address(lane));
    const unsigned q_lane =
        shared_base + kPlan.q + warp * kConfig.warp_rows * kPitch + lane_offset(tile::ldmatrix_a_address(lane));
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0F;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if constexpr (kConfig.q_in_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = query[m][k][i];
        } else {
          ptx::ldmatrix_x4(a[m], block_address(q_lane, 16 * m, 2 * k));
        }
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, block_address(k_lane, 8 * n, 2 * k));
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          ptx::mma_m16n8k16<kProblem.element>(scores[m][n], a[m], b[0], b[1]);
          ptx::mma_m16n8k16<kProblem.element>(scores[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  /// Columns 8 n to 8 n + 15 of out += P V for 16 keys from 16 k on.
  __device__ __forceinline__ static void multiply_values_block(Output& out, const Probabilities& p, unsigned v_lane,
                                                               int k, int n) {
    unsigned b[4];
    ptx::ldmatrix_x4_trans(b, block_address(v_lane, 16 * k, n));
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      ptx::mma_m16n8k16<kProblem.element>(out[m][n], p[m][k], b[0], b[1]);
      ptx::mma_m16n8k16<kProblem.element>(out[m][n + 1], p[m][k], b[2], b[3]);
    }
  }
  __device__ __forceinline__ unsigned lane_of_values(int stage) const {
    return stage_address(stage) + kPlan.stage_bytes / 2 + lane_offset(tile::ldmatrix_v_address(lane));
  }
  /// out += P V of one tile.
  __device__ __forceinline__ void multiply_values(Output& out, const Probabilities& p, int stage) const {
    const unsigned v_lane = lane_of_values(stage);
#pragma unroll
    for (int k = 0; k < kBlockN / 16; ++k)
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) multiply_values_block(out, p, v_lane, k, n);
  }

  // ------------------------------------------------------------------------------------------------------ softmax

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(Scores& scores, int first, int warp_row) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + 16 * m + lane / 4 + 8 * h;
        const int end = visible_keys(kProblem.causal, row, params.causal_offset, params.len_k) - first - 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (8 * n + i >= end) scores[m][n][2 * h + i] = -__int_as_float(0x7f800000);
      }
  }

  /// Scores of the tile at `stage`, with keys hidden where the tile reaches past those that the warp's first row sees.
  __device__ __forceinline__ void scores_of_tile(Scores& scores, const Query& query, int tile, int stage,
                                                 int warp_row) const {
    multiply_keys(scores, query, stage_address(stage));
    if (first_key(tile) + kBlockN > visible_keys(kProblem.causal, warp_row, params.causal_offset, params.len_k))
      hide_keys(scores, first_key(tile), warp_row);
  }

  __device__ __forceinline__ static void to_operand(Probabilities& p, const Scores& e) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int k = 0; k < kBlockN / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[m][k][i] =
              ptx::cvt_rn_x2<kProblem.element>(e[m][2 * k + i / 2][i % 2 * 2], e[m][2 * k + i / 2][i % 2 * 2 + 1]);
  }

  /// Probabilities below the references so far, in place of the scores. False where they do not fit: the scores are
  /// lost then, and nothing has been added up. With kBeside, the values of the tile before, whose probabilities are
  /// `p`, are multiplied meanwhile, in any case; else the probabilities go to `p`, rounded. (Rounding beside products
  /// as well takes issue slots from them: 200 us instead of 189 at b2h8l4096d64 on an H200.)
  template <bool kBeside>
  __device__ __forceinline__ bool optimistic_softmax(Probabilities& p, Scores& s, attention::RowState<kFragments>& rows,
                                                     float scale_log2, Output& out, int stage) const {
    constexpr int kElements = kKeyTiles * 4;                            // a fragment
    constexpr int kBlocks = kBlockN / 16 * (kOutTiles / 2);             // of values
    constexpr int kAtOnce = kBeside ? kElements / kBlocks : kElements;  // exponentials a fragment and block
    static_assert(!kBeside || kAtOnce * kBlocks == kElements, "exponentials spread evenly");
    const unsigned v_lane = lane_of_values(stage);
    float total[kFragments][2] = {};
#pragma unroll
    for (int block = 0; block < (kBeside ? kBlocks : 1); ++block) {
      if constexpr (kBeside)
        multiply_values_block(out, p, v_lane, block / (kOutTiles / 2), block % (kOutTiles / 2) * 2);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int e = block * kAtOnce; e < (block + 1) * kAtOnce; ++e) {
          float& x = s[m][e / 4][e % 4];
          const int h = e % 4 / 2;
          x = attention::exp2<kConfig.exp2>(fmaf(x, scale_log2, -rows.reference[m][h]), e / 4 * 2 + e % 2);
          total[m][h] += x;
          if (!kBeside && e % 2 == 1)
            p[m][e / 8][e / 2 % 4] = ptx::cvt_rn_x2<kProblem.element>(s[m][e / 4][e % 4 - 1], x);
        }
    }
    if (!attention::optimistic_fits(total, kProblem.element)) return false;
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) rows.sum[m][h] += total[m][h];
    return true;
  }

  __device__ __forceinline__ void exact_softmax(Scores& scores, Output& out, attention::RowState<kFragments>& rows,
                                                float scale_log2) const {
    attention::softmax_tile<kConfig.exp2, kConfig.rescale>(scores, out, rows, scale_log2, kMargin);
  }

  // ----------------------------------------------------------------------------------------------------- the loop

  // Rounds asked for before the first is used, and the commit groups that are.
  static constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;
  static constexpr int kGroupsAhead = (kConfig.split_wait ? 2 : 1) * kAhead;

  __device__ __forceinline__ void load_ahead(int t, int stage) {
    load_round(t + kAhead, next_stage(stage, kAhead), next_stage(stage, kConfig.overlap ? kAhead - 1 : kAhead));
  }

  /// Values beside the next tile's exponentials: round t takes the scores of tile t and the values of tile t - 1. Warps
  /// whose rows see fewer tiles than the group takes stay for the copies.
  __device__ __forceinline__ void run_overlapped(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                                 int warp_row, int warp_tiles, float scale_log2) {
    int stage = 0;   // of tile t
    int before = 0;  // of tile t - 1
    const auto begin = [&](int t, bool reads) {
      if (t > 0) {
        before = stage;
        stage = next_stage(stage);
      }
      begin_round<kAhead - 1>(t, stage, reads);
    };
    Scores scores;
    Probabilities p;
    begin(0, warp_tiles > 0);
    load_ahead(0, stage);
    if (warp_tiles > 0) {
      scores_of_tile(scores, query, 0, stage, warp_row);
      exact_softmax(scores, out, rows, scale_log2);
      to_operand(p, scores);
      end_round(stage);
#pragma unroll 1
      for (int t = 1; t < warp_tiles; ++t) {
        begin(t, true);
        if constexpr (!kConfig.late_copies) load_ahead(t, stage);
        scores_of_tile(scores, query, t, stage, warp_row);
        if constexpr (kConfig.late_copies) load_ahead(t, stage);
        if constexpr (kOptimistic) {
          if (!optimistic_softmax<true>(p, scores, rows, scale_log2, out, before)) {
            scores_of_tile(scores, query, t, stage, warp_row);
            exact_softmax(scores, out, rows, scale_log2);
          }
        } else {
          multiply_values(out, p, before);
          exact_softmax(scores, out, rows, scale_log2);
        }
        to_operand(p, scores);
        end_round(stage);
      }
      begin(warp_tiles, true);
      load_ahead(warp_tiles, stage);
      multiply_values(out, p, before);
    }
    end_round(stage);
#pragma unroll 1
    for (int t = max(warp_tiles, 0) + 1; t <= group_tiles; ++t) {
      begin(t, false);
      load_ahead(t, stage);
      end_round(stage);
    }
  }

  /// Scores, softmax and values of one tile after the other.
  __device__ __forceinline__ void run_in_turn(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                              int warp_row, int warp_tiles, float scale_log2) {
    // With barriers of stages the first has a program of its own: whether it is the first, every round would ask. (46.0
    // us at b1h32l1024d128 on an H200 instead of 46.7; where groups meet, 48.2 instead of 46.5.)
    constexpr bool kApart = kOptimistic && !kMeets;
    int stage = 0;
    if constexpr (kApart) {
      if (group_tiles == 0) return;
      take_tile<Which::first>(out, rows, query, 0, 0, warp_row, warp_tiles, scale_log2);
      stage = next_stage(stage);
    }
#pragma unroll 1
    for (int t = kApart ? 1 : 0; t < group_tiles; ++t) {
      take_tile<kApart ? Which::later : Which::any>(out, rows, query, t, stage, warp_row, warp_tiles, scale_log2);
      stage = next_stage(stage);
    }
  }

  enum class Which { any, first, later };

  template <Which kWhich>
  __device__ __forceinline__ void take_tile(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                            int t, int stage, int warp_row, int warp_tiles, float scale_log2) {
    const bool is_first = kWhich == Which::first || (kWhich == Which::any && t == 0);
    begin_round<kGroupsAhead - 1>(t, stage, t < warp_tiles);  // its K, when waited for separately
    const bool late = kConfig.late_copies && !is_first && t < warp_tiles;
    if (kStages > 1 && !late) load_ahead(t, stage);
    Probabilities p;
    if (t < warp_tiles) {
      Scores scores;
      scores_of_tile(scores, query, t, stage, warp_row);
      if (late) load_ahead(t, stage);
      if constexpr (kOptimistic) {
        if (is_first || !optimistic_softmax<false>(p, scores, rows, scale_log2, out, stage)) {
          if (!is_first) scores_of_tile(scores, query, t, stage, warp_row);
          exact_softmax(scores, out, rows, scale_log2);
          to_operand(p, scores);
        }
      } else {
        exact_softmax(scores, out, rows, scale_log2);
        to_operand(p, scores);
      }
    }
    if constexpr (kConfig.split_wait) {
      constexpr int kPending = kStages > 1 ? 2 * kAhead : 0;  // all but this tile's V
      ptx::cp_async_wait_group<kPending>();
      group_barrier();
    }
    if (t < warp_tiles) multiply_values(out, p, stage);
    end_round(stage);
    if constexpr (kStages == 1) {
      if (t + 1 < group_tiles) {
        group_barrier();  // the only stage is read before it is overwritten
        load_round(t + 1, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void run() {
    const int warp_row = first_row + warp * kConfig.warp_rows;
    // Of the group's tiles, those that some row of the warp sees: the first ones.
    const int warp_tiles =
        kProblem.causal ? tiles_of_group(visible_keys(true, min(warp_row + kConfig.warp_rows, params.len_q) - 1,
                                                      params.causal_offset, warp_row < params.len_q ? params.len_k : 0))
                        : group_tiles;

    if constexpr (!kMeets) initialise_barriers();
    // ---- Q by the whole block, then the first stages of K and V; Q belongs to the first commit group, or is one
    QueryCopies::template start<kBlockM>(
        shared_base + kPlan.q, QueryCopies::place(threadIdx.x),
        QueryCopies::source(params.q, batch * params.q_strides.batch + head * params.q_strides.head,
                            params.q_strides.row, first_row, threadIdx.x),
        params.q_strides.row, first_row, params.len_q, threadIdx.x);
    if constexpr (!kMeets) ptx::cp_async_commit_group();
#pragma unroll
    for (int t = 0; t < kAhead; ++t) load_round(t, t, kConfig.overlap ? t - 1 : t);

    Output out;
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0F;
    attention::RowState<kFragments> rows;
    rows.reset();
    const float scale_log2 = params.scale * 1.44269504F;

    // ---- Q and, where groups meet, the first K have arrived with the first commit group of every thread
    ptx::cp_async_wait_group<kMeets ? kGroupsAhead - 1 : 0>();
    __syncthreads();
    Query query;
    if constexpr (kConfig.q_in_registers) {
      const unsigned q_lane =
          shared_base + kPlan.q + warp * kConfig.warp_rows * kPitch + lane_offset(tile::ldmatrix_a_address(lane));
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) ptx::ldmatrix_x4(query[m][k], block_address(q_lane, 16 * m, 2 * k));
    }

    if constexpr (kConfig.overlap)
      run_overlapped(out, rows, query, warp_row, warp_tiles, scale_log2);
    else
      run_in_turn(out, rows, query, warp_row, warp_tiles, scale_log2);
    if constexpr (kMeets)
      ptx::cp_async_wait_group<0>();
    else
      ptx::cp_async_wait_all();
    rows.reduce();
    if constexpr (kGroups > 1)
      merge_and_store(out, rows);
    else
      store(out, rows, warp_row);
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
