/// Warps that take every tile together (config.hpp: GroupSplit::columns): each computes the scores of some keys, and,
/// when they have met, some columns of the output.
///
/// Rows are few, so they are the columns of the fragments: S^T = K Q^T and O^T = V^T P^T. Eight rows fill a fragment
/// of mma.m16n8k16 that way; as its rows they fill half of one.
///
///   warp 0   S^T of keys  0..15 | P -> shared | barrier | O^T of columns  0..31 += V^T P^T
///   warp 1   S^T of keys 16..31 |             |         | O^T of columns 32..63
///   ...                                                             (head dim 128, four warps, tiles of 64 keys)
///
/// So a block's partial result is complete in registers when its last tile is read: nothing is left to merge among
/// its warps, and it goes to another block as it lies. P is there twice, of one tile and of the next, which leaves one
/// barrier a tile. That barrier also says whether a score has left the row maximum behind by more than 2^8; only then
/// the warps meet twice more and settle on another. Sums of weights are products with ones: they lie in each warp as
/// the output does, and are of the rounded weights.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/decode/column_parts.cuh"
#include "kernels/sm90/decode/column_scores.cuh"
#include "kernels/sm90/decode/entry_producer.cuh"
#include "kernels/sm90/decode/quantised_columns.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ByColumns {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using Gemm = ColumnScores<kConfig, kProblem>;
  using Quantised = QuantisedColumns<kConfig, kProblem>;
  using Parts = ColumnParts<kConfig, kProblem>;
  using Changes = typename Block::Changes;
  using JobIndex = typename Block::JobIndex;
  using KnownJob = typename Block::KnownJob;
  using Segment = typename Block::Segment;
  using Scores = typename Gemm::Scores;
  using Factors = typename Quantised::Factors;
  using Finish = typename Parts::Finish;
  using Result = typename Parts::Result;

  static constexpr int kBlockM = Block::kBlockM;
  static constexpr int kBlockN = Block::kBlockN;
  static constexpr int kDim = Block::kDim;
  static constexpr int kGroups = Block::kGroups;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr int kStages = Block::kStages;
  static constexpr int kThreads = Block::kThreads;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kBegins = Block::kBegins;
  static constexpr bool kChanges = Block::kChanges;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr Element kOperand = Block::kOperand;
  static constexpr int kRows = Parts::kRows;
  static constexpr int kColumns = Parts::kColumns;
  static constexpr unsigned kAll = Parts::kAll;
  static constexpr int kKeys = Gemm::kKeys;
  static constexpr int kSteps = Quantised::kSteps;
  static constexpr int kCountedAhead = 2;  // tiles: the reply of a counter takes about as long as one
  static constexpr float kMargin = kConfig.rescale == attention::Rescale::conditional ? attention::kFar : 0.0F;
  static constexpr unsigned kOnes = ElementTraits<kOperand>::two_ones;

  // ---- state
  Block block;

  __device__ __forceinline__ ByColumns(const Params<kProblem>& p, const TensorMaps& m, char* shared)
      : block(p, m, shared) {}

  __device__ __forceinline__ void run() const {
    if constexpr (Block::kEntries)
      if (block.tile_count == 0) return;
    if (block.role == Block::Role::copies)
      if constexpr (Block::kEntries)
        EntryProducer<kConfig, kProblem>(block).run();
      else
        block.produce();
    else if (block.role == Block::Role::merges)
      help();
    else
      consume();
  }

  __device__ __forceinline__ int find_last_job() const {
    return block.is_own_job ? block.first_job : divide(block.first_tile + block.tile_count - 1, block.job_tiles);
  }

  // ------------------------------------------------------------------------------------------------------ counting

  /// Counts the block in at the job of its first segment, if that began in an earlier block.
  __device__ __forceinline__ void count_in_at_first() const {
    // At once: blocks of the next launch take room that is free, and wait before they touch memory.
    if constexpr (kConfig.pdl) ptx::griddepcontrol_launch_dependents();
    Block::wait_for_launch_before();
    const Segment segment = block.segment_of(block.first_job);
    if (segment.blocks > 1 && segment.first_block != block.number) count_in_at(segment, 0);
    const int last_job = find_last_job();
    for (int job = block.first_job + 1; job <= last_job; ++job) block.prefetch_queries(block.job_of(job));
  }

  /// And at that of its last segment, if that ends in a later block, shortly before this block's part does.
  __device__ __forceinline__ void count_in_at_last() const {
    const Segment segment = block.segment_of(find_last_job());
    if (segment.blocks == 1 || segment.first_block != block.number) return;
    ptx::mbarrier_wait(block.ending(), 0);
    count_in_at(segment, 1);
  }

  /// Both where jobs differ.
  __device__ __forceinline__ void count_in_at_both() const {
    if constexpr (kConfig.pdl) ptx::griddepcontrol_launch_dependents();
    const Segment first = block.segment_of(block.first_job);
    if (first.blocks > 1 && first.first_block != block.number) count_in_at(first, 0);
    JobIndex job = block.first_job;
    while (!block.ends_block(job)) {
      job = block.next_job(job);
      block.prefetch_queries(block.job_of(job));
    }
    const Segment last = block.segment_of(job);
    if (last.blocks == 1 || last.first_block != block.number) return;
    ptx::mbarrier_wait(block.ending(), 0);
    count_in_at(last, 1);
  }

  __device__ __forceinline__ void count_in_at(const Segment& segment, int slot) const {
    if (block.lane != 0) return;
    const unsigned last = static_cast<unsigned>(segment.blocks) - 1;
    Parts::is_last(block, slot) =
        ptx::atom_inc_relaxed_gpu(block.params.semaphores + segment.first_block, last) == last ? 1 : 0;
    ptx::mbarrier_arrive(Parts::counted(block, slot));
  }

  // ------------------------------------------------------------------------------------------------------ segments

  /// What one warp does: sets barriers up, and counts the block in.
  __device__ __forceinline__ void help() const {
    if (Block::merger() == 0) {
      block.prefetch_maps();
      ptx::mbarrier_init(block.ending(), 1);
      for (int slot = 0; slot < 2; ++slot) ptx::mbarrier_init(Parts::counted(block, slot), 1);
    }
    Block::barriers_are_set();
    if constexpr (Block::kEntries) {
      count_in_at_both();
    } else {
      count_in_at_first();
      count_in_at_last();
    }
  }

  /// Takes segment after segment.
  __device__ __forceinline__ void consume() const {
    Block::wait_for_launch_before();
    Cursor cursor{};
    int last_job = 0;
    if constexpr (!Block::kEntries) last_job = find_last_job();
    const auto is_final = [&](const JobIndex& index) {
      if constexpr (Block::kEntries)
        return block.ends_block(index);
      else
        return index == last_job;
    };
#pragma unroll 1
    for (JobIndex job_index = block.first_job;; job_index = block.next_job(job_index)) {
      const KnownJob job = block.job_of(job_index);
      const Finish finish = Parts::finish_of(block, job, block.segment_of(job_index));
      Result result;
      Parts::Out::reset(result);
      const int job_first = block.start_of(job_index) - block.first_tile;  // may be before the block's first tile
      take_tiles(result, job, block.are_same(job_index, block.first_job), job_first,
                 least(block.tile_count, job_first + block.tiles_of(job_index)),
                 is_final(job_index) ? block.tile_count : -1, cursor);
      Parts::end_segment(block, result, finish, job);
      if (is_final(job_index)) break;
    }
  }

  // ------------------------------------------------------------------------------------------------------ computing

  /// Where a block is on its way through its tiles.
  struct Cursor {
    int tile;  ///< from the block's first
    int stage;
    unsigned parity;
    int which;  ///< of the two places for P
  };

  /// Takes the tiles of a segment up to `end`. `job_first`: where its job's tiles begin; `block_end`: where the block's
  /// tiles end, if this is its last segment.
  __device__ __forceinline__ void take_tiles(Result& result, const KnownJob& job, bool is_first, int job_first, int end,
                                             int block_end, Cursor& at) const {
    unsigned query[kDim / 16][kRows][2];
    [[maybe_unused]] Factors factors;
    if constexpr (kQuantised)
      Quantised::load_queries_of_quantised(block, query, factors.of_rows, job);
    else
      Gemm::load_queries(block, query, job);
    if (is_first) Block::wait_for_barriers();  // not before the first segment's queries are asked for
    int row_end[kRows][2];  // keys that this lane's rows see; those beyond the real ones see what they like
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = job.first + 8 * n + 2 * (block.lane % 4) + r;
        const auto& p = block.params_of(job);
        row_end[n][r] = visible_keys(kProblem.mask, has_right_bound(kProblem.mask) ? divide(row, p.group_size) : 0,
                                     p.right_offset, p.len_k);
      }
    Changes changes[kRows][2];
    if constexpr (kChanges)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          changes[n][r] =
              Changes(block.params_of(job), job.batch, job.kv_head, job.first + 8 * n + 2 * (block.lane % 4) + r);
    // Once a block, in its last segment: at that one's first tile where it is short.
    const int ending_tile = block_end - kCountedAhead > at.tile ? block_end - kCountedAhead : at.tile;
    if constexpr (kQuantised) Quantised::begin_factors(block, factors, job, (at.tile - job_first) * kBlockN);
#pragma unroll 1
    for (; at.tile < end; ++at.tile) {
      int first_key = (at.tile - job_first) * kBlockN;
      if constexpr (Block::kEntries) first_key += job.first_key;
      if constexpr (kQuantised) Quantised::advance_factors(block, factors, job, first_key);
      ptx::mbarrier_wait(block.full(at.stage), at.parity);
      if (block_end == end && at.tile == ending_tile && block.group == 0 && block.lane == 0)
        ptx::mbarrier_arrive(block.ending());
      if (first_key < job.keys_end) {
        take_tile(result, query, at, first_key, first_key + kBlockN > job.keys_plain, row_end, changes, factors, job);
        at.which ^= 1;
      } else {
        ptx::mbarrier_wait(block.values_full(at.stage), at.parity);  // before the stage is given back
      }
      __syncwarp();  // the warp has read the stage
      if (block.lane == 0) ptx::mbarrier_arrive(block.empty(at.stage));
      if (++at.stage == kStages) {
        at.stage = 0;
        at.parity ^= 1;
      }
    }
  }

  __device__ __forceinline__ void take_tile(Result& result, const unsigned (&query)[kDim / 16][kRows][2],
                                            const Cursor& at, int first_key, bool masked,
                                            const int (&row_end)[kRows][2], const Changes (&changes)[kRows][2],
                                            [[maybe_unused]] const Factors& factors, const KnownJob& job) const {
    const float scale_log2 = kChanges ? 1.0F : block.params.scale * attention::kLog2e;
    const unsigned keys = block.stage_address(at.stage);
    Scores scores;
    Gemm::multiply_keys(block, scores, query, keys);
    if constexpr (kQuantised) Quantised::scale_scores(scores, factors.of_rows, factors.of_keys);
    if constexpr (kChanges) Gemm::change_scores(block, scores, changes, row_end, first_key, job);
    if (masked) Gemm::hide_keys(block, scores, first_key, row_end);
    if constexpr (kBegins)
      if (first_key < keys_hidden(kProblem.mask, block.params_of(job), job))
        Gemm::hide_first_keys(block, scores, first_key, job);
    bool far = kConfig.rescale == attention::Rescale::always;
    float maxima[kRows][2];
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = fmaxf(scores[0][n][r], scores[0][n][2 + r]);
#pragma unroll
        for (int j = 1; j < kKeys; ++j) most = fmaxf(most, fmaxf(scores[j][n][r], scores[j][n][2 + r]));
        maxima[n][r] = most * scale_log2;
        far = far || maxima[n][r] > result.row_max[n][r] + kMargin;
      }
    const unsigned weights = block.shared_base + kPlan.weights + at.which * kBlockM * kBlockN * 2;
    put_weights(weights, scores, result, scale_log2);
    ptx::mbarrier_wait(block.values_full(at.stage), at.parity);
    unsigned values[kSteps][kColumns][4];
    if constexpr (kQuantised) {
      Quantised::load_quantised_values(block, values, keys + kPlan.tile_bytes);
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          ptx::ldmatrix_x4_trans(values[k][i],
                                 Block::block_address(keys + kPlan.tile_bytes, 16 * k, 2 * (block.group * kColumns + i),
                                                      tile::ldmatrix_k_address(block.lane)));
    }
    if constexpr (Block::kEntries)
      if (first_key + kBlockN > job.keys_end || first_key < job.keys_begin) clear_values(values, first_key, job);
    if (ptx::barrier_red_or(attention::barrier_id<kConfig, NamedBarrier::weights>(), kThreads, far)) {
      settle_on_row_maxima(result, maxima);
      put_weights(weights, scores, result, scale_log2);
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::weights>(), kThreads);
    }
    multiply_values(result, values, weights);
  }

  /// Values of keys that the job does not have become zeros: they may be NaN, which no weight of 0 does away with.
  __device__ __forceinline__ void clear_values(unsigned (&values)[kSteps][kColumns][4], int first_key,
                                               const KnownJob& job) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned mask =
            mask_of_values(first_key + 16 * k + 8 * h + 2 * (block.lane % 4), job.keys_begin, job.keys_end);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          values[k][i][2 * h] &= mask;
          values[k][i][2 * h + 1] &= mask;
        }
      }
  }

  /// Weights of this warp's keys, (row group, key, row), for all warps to read.
  __device__ __forceinline__ void put_weights(unsigned weights, const Scores& scores, const Result& result,
                                              float scale_log2) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const float negative[2] = {-attention::finite_row_max(result.row_max[n][0]),
                                 -attention::finite_row_max(result.row_max[n][1])};
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float p[2];
#pragma unroll
          for (int r = 0; r < 2; ++r)
            p[r] = attention::exp2<kConfig.exp2>(fmaf(scores[j][n][2 * h + r], scale_log2, negative[r]), 2 * h + r);
          const int key = 16 * (block.group * kKeys + j) + block.lane / 4 + 8 * h;
          ptx::st_shared(weights + (n * kBlockN + key) * 16 + 4 * (block.lane % 4),
                         ptx::cvt_rn_x2<kOperand>(p[0], p[1]));
        }
    }
  }

  /// Takes the largest scores of all warps' keys for row maxima, where they are larger, and rescales what was summed.
  __device__ __forceinline__ void settle_on_row_maxima(Result& result, float (&maxima)[kRows][2]) const {
    auto* const all = reinterpret_cast<float*>(block.shared + kPlan.row_maxima);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2)
          maxima[n][r] = fmaxf(maxima[n][r], __shfl_xor_sync(kAll, maxima[n][r], mask));
      if (block.lane < 4)
        *reinterpret_cast<float2*>(all + block.group * kBlockM + 8 * n + 2 * block.lane) =
            make_float2(maxima[n][0], maxima[n][1]);
    }
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::weights>(), kThreads);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      float next[2] = {result.row_max[n][0], result.row_max[n][1]};
#pragma unroll
      for (int w = 0; w < kGroups; ++w) {
        const float2 of_warp = *reinterpret_cast<const float2*>(all + w * kBlockM + 8 * n + 2 * (block.lane % 4));
        next[0] = fmaxf(next[0], of_warp.x);
        next[1] = fmaxf(next[1], of_warp.y);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = attention::rescale_factor(result.row_max[n][r], next[r]);
        result.row_max[n][r] = next[r];
        result.sum[n][r] *= factor;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          result.out[n][i][r] *= factor;
          result.out[n][i][2 + r] *= factor;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(Result& result, const unsigned (&values)[kSteps][kColumns][4],
                                                  unsigned weights) const {
    constexpr unsigned kOne[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4_trans(b, weights + (n * kBlockN + 16 * k + block.lane) * 16);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i)
            ptx::mma_m16n8k16<kOperand>(result.out[n][i], values[k + h][i], b[2 * h], b[2 * h + 1]);
          ptx::mma_m16n8k16<kOperand>(result.sum[n], kOne, b[2 * h], b[2 * h + 1]);
        }
      }
  }
};

}  // namespace heed::sm90_decode
