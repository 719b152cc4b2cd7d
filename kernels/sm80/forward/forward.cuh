/// fwd_sm80: fused attention for Ampere and later, with warp-level mma.sync, ldmatrix and cp.async.
///
/// A thread block holds block_m query rows of one head. Its warps form kv_groups groups; every group holds the same
/// rows and takes every kv_groups-th tile of block_n keys, with its own ring of stages in shared memory:
///
///              keys ->  tile 0   tile 1   tile 2   tile 3             block_m = 64, warp_rows = 16, kv_groups = 2
///   rows  0..15  warp 0 [group 0]         [group 0]                   8 warps; warp w of group g holds rows 16 w ...
///   rows 16..31  warp 1 [group 0]         [group 0]
///   rows  0..15  warp 4          [group 1]         [group 1]
///   rows 16..31  warp 5          [group 1]         [group 1]
///
/// A warp keeps S and P in registers: the accumulator fragment of S = Q K^T, rounded to 16 bits, is the A fragment of P
/// V; gemms_fp32.cuh has the products of fp32, gemms_8_bit.cuh those of 8 bits. At the end the groups'
/// partial outputs meet in shared memory and are merged in fp32. After FlashAttention-2 (Dao, arXiv 2307.08691); the
/// split of keys over warps of one block is Flash-Decoding's split (Dao et al. 2023) without a second kernel.
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/forward/epilogue.cuh"
#include "kernels/sm80/forward/gemms.cuh"
#include "kernels/sm80/forward/kv_pipeline.cuh"

namespace heed::sm80 {

template <const Config& kConfig, const Problem& kProblem>
struct Forward {
  using Block = sm80::Block<kConfig, kProblem>;
  using Pipeline = KvPipeline<kConfig, kProblem>;
  using Operands = sm80::Operands<kConfig, kProblem>;
  using Qk = QkGemm<kConfig, kProblem>;
  using Pv = PvGemm<kConfig, kProblem>;
  using Scores = typename Operands::Scores;
  using Output = typename Operands::Output;
  using Query = typename Qk::Query;
  using Probabilities = typename Pv::Probabilities;

  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kFragments = Block::kFragments;
  static constexpr int kStages = kConfig.stages;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kBegins = Block::kBegins;
  static constexpr bool kMeets = Pipeline::kMeets;
  static constexpr int kAhead = Pipeline::kAhead;
  static constexpr int kGroupsAhead = Pipeline::kGroupsAhead;
  static constexpr bool kStaleTile = kConfig.rescale == attention::Rescale::stale_tile;
  // Whether warps of a group meet at one barrier of the program in every round, whatever their rows see of its keys.
  // PTX asks this of the lanes of a warp alone; compute-sanitizer's synccheck of all threads that a barrier counts. Of
  // problems without lengths the rounds of a warp's own tiles have a loop of their own.
  static constexpr bool kOneBarrier = kMeets && kProblem.features.lengths;
  static constexpr Element kOperand = value_operand(kProblem);  // of P, whose range a stale row maximum has to fit
  static constexpr float kMargin = kStaleTile ? attention::StaleRange<kOperand>::tile_margin : 0.0F;

  static constexpr int kQueryBytes = bytes_of(q_element(kProblem));

  using QueryCopies =
      Copies<kConfig.smem_layout, Block::kWidth, kQueryBytes, threads(kConfig), kProblem.head_dim * kQueryBytes / 16>;

  // ---- state
  Block block;
  Pipeline pipeline;
  [[no_unique_address]] Qk qk;
  CollectiveEpilogue<kConfig, kProblem> epilogue;

  __device__ __forceinline__ Forward(const Params<kProblem>& launch, char* shared)
      : block(launch, ptx::shared_address(shared)), pipeline(block), epilogue{shared} {}

  // ------------------------------------------------------------------------------------------------------ softmax

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(Scores& scores, int first, int warp_row) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + 16 * m + block.lane / 4 + 8 * h;
        int end = visible_keys(kProblem.mask, row, block.params.right_offset, block.params.len_k) - first -
                  2 * (block.lane % 4);
        if constexpr (kProblem.features.prefix) end = max(end, block.features.prefix - first - 2 * (block.lane % 4));
        attention::hide_columns_from(scores[m], h, end);
        if constexpr (kBegins) {
          const int begin = hidden_keys(kProblem.mask, row, block.params.left_offset, block.params.len_k) - first -
                            2 * (block.lane % 4);
          attention::hide_columns_before(scores[m], h, begin);
        }
      }
  }

  /// Scores of the tile at `stage`, with keys hidden where some row of the warp does not see the whole tile.
  __device__ __forceinline__ void scores_of_tile(Scores& scores, const Query& query, int tile, int stage,
                                                 int warp_row) const {
    if constexpr (is_quantised(kProblem)) {
      const int first = block.first_key_of_entry(tile);
      const auto factor = qk.key_factor(block, first);
      qk.multiply(block, scores, query, block.stage_address(stage));
      qk.scale_scores(block, scores, factor, first);
    } else {
      qk.multiply(block, scores, query, block.stage_address(stage));
    }
    if constexpr (changes_scores(kProblem.features)) {
      const int first = block.first_key_of_entry(tile) + 2 * (block.lane % 4);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
        if constexpr (Block::kHasFull)
          block.features.change_scores(scores[m], block.params, warp_row + 16 * m + block.lane / 4, first,
                                       block.reads_bias(tile));
        else
          block.features.change_scores(scores[m], block.params, warp_row + 16 * m + block.lane / 4, first);
    }
    if constexpr (kProblem.features.blocks || kProblem.features.prefix) {
      const int first = block.first_key_of_entry(tile);
      int end = visible_keys(kProblem.mask, warp_row, block.params.right_offset, block.params.len_k);
      if constexpr (kProblem.features.prefix) end = max(end, block.features.prefix);
      if (first + kBlockN > end || first < hidden_keys(kProblem.mask, warp_row + kConfig.warp_rows - 1,
                                                       block.params.left_offset, block.params.len_k))
        hide_keys(scores, first, warp_row);
    } else if constexpr (kBegins) {
      const int first = block.origin() + block.first_key(tile);
      const int last_row = warp_row + kConfig.warp_rows - 1;
      if (first + kBlockN > visible_keys(kProblem.mask, warp_row, block.params.right_offset, block.params.len_k) ||
          first < hidden_keys(kProblem.mask, last_row, block.params.left_offset, block.params.len_k))
        hide_keys(scores, first, warp_row);
    } else {
      if (block.first_key(tile) + kBlockN >
          visible_keys(kProblem.mask, warp_row, block.params.right_offset, block.params.len_k))
        hide_keys(scores, block.first_key(tile), warp_row);
    }
  }

  /// Probabilities as operands, without those that are dropped.
  __device__ __forceinline__ void to_operand(Probabilities& p, Scores& e, int tile, int warp_row) const {
    if constexpr (kProblem.features.dropout) {
      const int first = block.first_key_of_entry(tile) + 2 * (block.lane % 4);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
        block.features.dropout.template drop<!kBegins>(e[m], block.params, warp_row + 16 * m + block.lane / 4, first);
    }
    Pv::to_operand(p, e);
  }

  /// Probabilities below the row maxima so far, in place of the scores. False where they do not fit: the scores are
  /// lost then, and nothing has been added up. With kBeside, the values of the tile before, whose probabilities are
  /// `p`, are multiplied meanwhile, in any case; else the probabilities go to `p`, rounded, where none are dropped.
  /// (Rounding beside products as well takes issue slots from them: 200 us instead of 189 at b2h8l4096d64 on an H200.)
  template <bool kBeside>
  __device__ __forceinline__ bool stale_softmax(Probabilities& p, Scores& s, attention::RowState<kFragments>& rows,
                                                float scale_log2, Output& out, int stage) const {
    constexpr int kElements = Operands::kKeyTiles * 4;                      // a fragment
    constexpr int kAtOnce = kBeside ? kElements / Pv::kBlocks : kElements;  // exponentials a fragment and block
    constexpr bool kRounds = !kBeside && !kProblem.features.dropout;
    static_assert(!kBeside || kAtOnce * Pv::kBlocks == kElements, "exponentials spread evenly");
    const unsigned v_lane = Pv::lane_address(block, stage);
    float total[kFragments][2] = {};
#pragma unroll
    for (int part = 0; part < (kBeside ? Pv::kBlocks : 1); ++part) {
      if constexpr (kBeside) Pv::multiply_block(out, p, v_lane, part);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int e = part * kAtOnce; e < (part + 1) * kAtOnce; ++e) {
          float& x = s[m][e / 4][e % 4];
          const int h = e % 4 / 2;
          x = attention::exp2<kConfig.exp2>(fmaf(x, scale_log2, -rows.row_max[m][h]), e / 4 * 2 + e % 2);
          total[m][h] += x;
          if (kRounds && e % 2 == 1) Pv::pair_to_operand(p, m, e / 2, s[m][e / 4][e % 4 - 1], x);
        }
    }
    if (!attention::stale_tile_fits<kOperand>(total)) return false;
    if constexpr (!Operands::kOnes)
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) rows.row_sum[m][h] += total[m][h];
    return true;
  }

  __device__ __forceinline__ void exact_softmax(Scores& scores, Output& out, attention::RowState<kFragments>& rows,
                                                float scale_log2) const {
    attention::softmax_tile<kConfig.exp2, kConfig.rescale, !Operands::kOnes>(scores, out, rows, scale_log2, kMargin);
  }

  // ----------------------------------------------------------------------------------------------------- the loop

  /// Values beside the next tile's exponentials: round t takes the scores of tile t and the values of tile t - 1. Warps
  /// whose rows see fewer tiles than the group takes stay for the copies.
  __device__ __forceinline__ void run_overlapped(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                                 int warp_row, int warp_tiles, float scale_log2) {
    int stage = 0;   // of tile t
    int before = 0;  // of tile t - 1
    const auto begin = [&](int t, bool reads) {
      if (t > 0) {
        before = stage;
        stage = Pipeline::next_stage(stage);
      }
      Pipeline::template begin_round<kAhead - 1>(block, t, stage, reads);
    };
    Scores scores;
    Probabilities p;
    const auto take_later_tile = [&](int t) {
      if constexpr (!kConfig.late_loads) pipeline.load_ahead(block, t, stage);
      scores_of_tile(scores, query, t, stage, warp_row);
      if constexpr (kConfig.late_loads) pipeline.load_ahead(block, t, stage);
      if constexpr (kStaleTile) {
        if (!stale_softmax<true>(p, scores, rows, scale_log2, out, before)) {
          scores_of_tile(scores, query, t, stage, warp_row);
          exact_softmax(scores, out, rows, scale_log2);
        }
      } else {
        Pv::multiply(block, out, p, before);
        exact_softmax(scores, out, rows, scale_log2);
      }
      to_operand(p, scores, t, warp_row);
    };
    begin(0, warp_tiles > 0);
    pipeline.load_ahead(block, 0, stage);
    if (warp_tiles > 0) {
      scores_of_tile(scores, query, 0, stage, warp_row);
      exact_softmax(scores, out, rows, scale_log2);
      to_operand(p, scores, 0, warp_row);
      if constexpr (!kOneBarrier) {
        Pipeline::end_round(block, stage);
#pragma unroll 1
        for (int t = 1; t < warp_tiles; ++t) {
          begin(t, true);
          take_later_tile(t);
          Pipeline::end_round(block, stage);
        }
        begin(warp_tiles, true);
        pipeline.load_ahead(block, warp_tiles, stage);
        Pv::multiply(block, out, p, before);
      }
    }
    Pipeline::end_round(block, stage);
#pragma unroll 1
    for (int t = kOneBarrier ? 1 : max(warp_tiles, 0) + 1; t <= block.group_tiles; ++t) {
      begin(t, kOneBarrier && t <= warp_tiles);
      if (kOneBarrier && t < warp_tiles) {
        take_later_tile(t);
      } else {
        pipeline.load_ahead(block, t, stage);
        if (kOneBarrier && t == warp_tiles) Pv::multiply(block, out, p, before);
      }
      Pipeline::end_round(block, stage);
    }
  }

  /// Scores, softmax and values of one tile after the other.
  __device__ __forceinline__ void run_in_turn(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                              int warp_row, int warp_tiles, float scale_log2) {
    // With barriers of stages the first has a program of its own: whether it is the first, every round would ask. (46.5
    // us at b1h32l1024d128 on an H200 instead of 47.2; where groups meet, 48.2 instead of 46.5.)
    constexpr bool kApart = kStaleTile && !kMeets;
    int stage = 0;
    if constexpr (kApart) {
      if (block.group_tiles == 0) return;
      take_tile<Which::first>(out, rows, query, 0, 0, warp_row, warp_tiles, scale_log2);
      stage = Pipeline::next_stage(stage);
    }
#pragma unroll 1
    for (int t = kApart ? 1 : 0; t < block.group_tiles; ++t) {
      take_tile<kApart ? Which::later : Which::any>(out, rows, query, t, stage, warp_row, warp_tiles, scale_log2);
      stage = Pipeline::next_stage(stage);
    }
  }

  enum class Which { any, first, later };

  template <Which kWhich>
  __device__ __forceinline__ void take_tile(Output& out, attention::RowState<kFragments>& rows, const Query& query,
                                            int t, int stage, int warp_row, int warp_tiles, float scale_log2) {
    const bool is_first = kWhich == Which::first || (kWhich == Which::any && t == 0);
    Pipeline::template begin_round<kGroupsAhead - 1>(block, t, stage,
                                                     t < warp_tiles);  // its K, when waited for separately
    const bool late = kConfig.late_loads && !is_first && t < warp_tiles;
    if (kStages > 1 && !late) pipeline.load_ahead(block, t, stage);
    Probabilities p;
    if (t < warp_tiles) {
      Scores scores;
      scores_of_tile(scores, query, t, stage, warp_row);
      if (late) pipeline.load_ahead(block, t, stage);
      if constexpr (kStaleTile) {
        if (is_first || !stale_softmax<false>(p, scores, rows, scale_log2, out, stage)) {
          if (!is_first) scores_of_tile(scores, query, t, stage, warp_row);
          exact_softmax(scores, out, rows, scale_log2);
          to_operand(p, scores, t, warp_row);
        } else if constexpr (kProblem.features.dropout) {
          to_operand(p, scores, t, warp_row);
        }
      } else {
        exact_softmax(scores, out, rows, scale_log2);
        to_operand(p, scores, t, warp_row);
      }
    }
    if constexpr (kConfig.split_wait) {
      constexpr int kPending = kStages > 1 ? 2 * kAhead : 0;  // all but this tile's V
      ptx::cp_async_wait_group<kPending>();
      block.group_barrier();
    }
    if (t < warp_tiles) Pv::multiply(block, out, p, stage);
    Pipeline::end_round(block, stage);
    if constexpr (kStages == 1) {
      if (t + 1 < block.group_tiles) {
        block.group_barrier();  // the only stage is read before it is overwritten
        pipeline.load_round(block, t + 1, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (kProblem.features.lengths)
      if (block.first_row >= block.params.len_q) return;  // the whole block, past the entry's rows
    const int warp_row = block.first_row + block.warp * kConfig.warp_rows;
    // Of the group's tiles, those that some row of the warp sees: the first ones.
    const int origin_of_block = kBegins ? block.origin() : 0;
    int warp_tiles =
        kBegins ? block.tiles_of_group(
                      visible_keys(kProblem.mask, min(warp_row + kConfig.warp_rows, block.params.len_q) - 1,
                                   block.params.right_offset, warp_row < block.params.len_q ? block.params.len_k : 0) -
                      origin_of_block)
        : has_right_bound(kProblem.mask)
            ? block.tiles_of_group(
                  visible_keys(MaskKind::causal, min(warp_row + kConfig.warp_rows, block.params.len_q) - 1,
                               block.params.right_offset, warp_row < block.params.len_q ? block.params.len_k : 0))
            : block.group_tiles;
    if constexpr (kProblem.features.prefix)
      if (warp_row < block.params.len_q)
        warp_tiles = max(warp_tiles, block.tiles_of_group(block.features.prefix - origin_of_block));
    // Of listed blocks all: lists are in any order.
    if constexpr (kProblem.features.blocks)
      if (block.features.blocks.numbers != nullptr) warp_tiles = warp_row < block.params.len_q ? block.group_tiles : 0;

    if constexpr (!kMeets) Pipeline::initialise_barriers(block);
    // ---- Q by the whole block, then the first stages of K and V; Q belongs to the first commit group, or is one
    QueryCopies::template start<kBlockM>(
        block.shared_base + kPlan.q, QueryCopies::place(threadIdx.x),
        QueryCopies::source(block.params.q,
                            block.batch * block.params.q_strides.batch + block.head * block.params.q_strides.head,
                            block.params.q_strides.row, block.first_row, threadIdx.x),
        block.params.q_strides.row, block.first_row, block.params.len_q, threadIdx.x);
    if constexpr (!kMeets) ptx::cp_async_commit_group();
#pragma unroll
    for (int t = 0; t < kAhead; ++t) pipeline.load_round(block, t, t, kConfig.overlap ? t - 1 : t);

    if constexpr (is_quantised(kProblem)) qk.load_query_factors(block, warp_row);
    Output out;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(out[m]);
    attention::RowState<kFragments> rows;
    rows.reset();
    const float scale_log2 = changes_scores(kProblem.features) ? 1.0F : block.params.scale * attention::kLog2e;

    // ---- Q and, where groups meet, the first K have arrived with the first commit group of every thread
    ptx::cp_async_wait_group<kMeets ? kGroupsAhead - 1 : 0>();
    __syncthreads();
    Query query;
    if constexpr (kConfig.q_in_registers) {
      const unsigned q_lane = Operands::query_address(block);
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int k = 0; k < Qk::kSteps; ++k)
          ptx::ldmatrix_x4(query[m][k], Operands::block_address(q_lane, 16 * m, 2 * k));
    }

    if constexpr (kConfig.overlap)
      run_overlapped(out, rows, query, warp_row, warp_tiles, scale_log2);
    else
      run_in_turn(out, rows, query, warp_row, warp_tiles, scale_log2);
    if constexpr (kMeets)
      ptx::cp_async_wait_group<0>();
    else
      ptx::cp_async_wait_all();
    epilogue.finish_sums(rows, out);
    if constexpr (is_quantised(kProblem)) Pv::scale_output(block, out);
    if constexpr (kConfig.kv_groups > 1)
      epilogue.merge_and_store(block, out, rows);
    else
      epilogue.store(block, out, rows, warp_row);
  }
};

}  // namespace heed::sm80
