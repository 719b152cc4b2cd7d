/// Warps that take every tile together (config.hpp: Division::columns): each computes the scores of some keys, and,
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
/// barrier a tile. That barrier also says whether a score has left the reference behind by more than 2^8; only then
/// the warps meet twice more and settle on another. Sums of weights are products with ones: they lie in each warp as
/// the output does, and are of the rounded weights.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/decode_sm90/block.cuh"
#include "kernels/decode_sm90/partial.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"

namespace heed::decode_sm90 {

template <Config kConfig, Problem kProblem>
struct ByColumns : Block<kConfig, kProblem> {
  using Base = Block<kConfig, kProblem>;
  using Base::block;
  using Base::block_address;
  using Base::empty;
  using Base::ending;
  using Base::first_job;
  using Base::first_tile;
  using Base::full;
  using Base::role;
  using Role = typename Base::Role;
  using Base::group;
  using Base::is_own_job;
  using Base::job_of;
  using Base::job_tiles;
  using Base::kBlockM;
  using Base::kBlockN;
  using Base::kDim;
  using Base::kGroups;
  using Base::kPlan;
  using Base::kStages;
  using Base::kThreads;
  using Base::lane;
  using Base::merger;
  using Base::params;
  using Base::place_of;
  using Base::prefetch_maps;
  using Base::prefetch_queries;
  using Base::produce;
  using Base::query_row;
  using Base::segment_of;
  using Base::shared;
  using Base::shared_base;
  using Base::stage_address;
  using Base::tile_count;
  using Base::wait_for_launch_before;
  using Base::words;
  using Segment = typename Base::Segment;

  static constexpr int kRows = row_groups(kConfig);                 // groups of eight rows
  static constexpr int kKeys = kBlockN / (16 * kGroups);            // fragments of 16 keys of a warp's scores
  static constexpr int kColumns = column_fragments(kConfig, kDim);  // of 16 columns of a warp's output
  static constexpr int kSteps = kBlockN / 16;                       // of 16 keys of a product with V
  static constexpr int kWarpWords = warp_words(kConfig, kDim);      // in a place
  static constexpr int kChains = kKeys * kRows == 1 ? 2 : 1;        // accumulators a score, so that none waits long
  static constexpr int kCountedAhead = 2;  // tiles: the reply of a counter takes about as long as one
  // Partial results asked for at once: what is asked for takes 4 * kColumns registers each.
  static constexpr int kFew = 4;
  static constexpr int kMany = kColumns <= 2 && registers_allowed(kConfig) > 168 ? 16 : 8;
  static constexpr float kMargin = kConfig.rescale == attention::Rescale::when_far ? attention::kFar : 0.0F;
  static constexpr unsigned kAll = 0xffffffffU;
  static constexpr unsigned kOnes = kProblem.element == Element::bf16 ? 0x3f803f80U : 0x3c003c00U;

  /// What a warp holds of a segment: of eight rows a group, lane T has rows 2 (T % 4) and the next, of columns T / 4
  /// and T / 4 + 8 of each fragment.
  struct Result {
    float out[kRows][kColumns][4];
    float sum[kRows][4];  ///< the first two count
    float reference[kRows][2];
  };

  __device__ __forceinline__ ByColumns(const ForwardParams& p, const TensorMaps& m, char* dynamic_shared)
      : Base(p, m, dynamic_shared) {}

  __device__ __forceinline__ unsigned counted(int slot) const { return shared_base + kPlan.counted + slot * 8; }
  __device__ __forceinline__ int& is_last(int slot) const {
    return reinterpret_cast<int*>(shared + kPlan.is_last)[slot];
  }

  __device__ __forceinline__ void run() const {
    if (role == Role::copies) {
      produce();
    } else {
      work();
    }
  }

  // ------------------------------------------------------------------------------------------------------ counting

  /// Counts the block in at the job of its first segment, if that began in an earlier block.
  __device__ __forceinline__ void count_in_at_first(int last_job) const {
    // At once: blocks of the next launch take room that is free, and wait before they touch memory.
    if constexpr (kConfig.dependent) ptx::griddepcontrol_launch_dependents();
    wait_for_launch_before();
    const Segment segment = segment_of(first_job);
    if (segment.blocks > 1 && segment.first_block != block) count_in_at(segment, 0);
    for (int job = first_job + 1; job <= last_job; ++job) prefetch_queries(job_of(job));
  }

  /// And at that of its last segment, if that ends in a later block, shortly before this block's part does.
  __device__ __forceinline__ void count_in_at_last(int last_job) const {
    const Segment segment = segment_of(last_job);
    if (segment.blocks == 1 || segment.first_block != block) return;
    ptx::mbarrier_wait(ending(0), 0);
    count_in_at(segment, 1);
  }

  __device__ __forceinline__ void count_in_at(const Segment& segment, int slot) const {
    if (lane != 0) return;
    const unsigned last = static_cast<unsigned>(segment.blocks) - 1;
    is_last(slot) = ptx::atom_inc_relaxed_gpu(params.counters + segment.first_block, last) == last ? 1 : 0;
    ptx::mbarrier_arrive(counted(slot));
  }

  // ------------------------------------------------------------------------------------------------------ segments

  /// What all warps but the producer do. One of them helps: it counts in, and goes through the end of a segment with no
  /// rows before any other does. Instructions that run once a launch come from memory, behind all the keys; those of a
  /// merge of 16 partial results would take longer than the merge.
  __device__ __forceinline__ void work() const {
    const bool helps = role == Role::merges;
    const int last_job = is_own_job ? first_job : divide(first_tile + tile_count - 1, job_tiles);
    Cursor cursor{};
    if (helps) {
      if (merger() == 0) {
        prefetch_maps();
        ptx::mbarrier_init(ending(0), 1);
        for (int slot = 0; slot < 2; ++slot) ptx::mbarrier_init(counted(slot), 1);
      }
      __syncthreads();
      count_in_at_first(last_job);
    } else {
      wait_for_launch_before();
    }
    const bool is_first_shared = segment_of(first_job).blocks > 1;
#pragma unroll 1
    for (int job_index = helps && !is_first_shared ? last_job : first_job;; ++job_index) {
      const Job job = job_of(job_index);
      const Finish finish = finish_of(job, segment_of(job_index), helps);
      Result result;
      reset(result);
      if (!helps) {
        const int job_first = job_index * job_tiles - first_tile;  // may be before the block's first tile
        take_tiles(result, job, job_index == first_job, job_first, least(tile_count, job_first + job_tiles),
                   job_index == last_job ? tile_count : -1, cursor);
      }
      end_segment(result, finish, job);
      if (helps || job_index == last_job) break;
    }
    if (helps) count_in_at_last(last_job);
  }

  /// What the end of a segment needs to know, worked out while its first tile is on its way.
  struct Finish {
    int parts;                   ///< of the job
    int slot;                    ///< where the block was counted in: 1 as the first of the job, else 0
    bool dry;                    ///< as if this block merged, without a wait, with a job of no rows
    int rows;                    ///< real ones
    unsigned* mine;              ///< this lane's words, of this block's part
    unsigned* others;            ///< of the second block's
    unsigned short* out[kRows];  ///< two columns of a row
  };

  __device__ __forceinline__ Finish finish_of(const Job& job, const Segment& segment, bool dry) const {
    Finish finish;
    finish.parts = segment.blocks;
    finish.slot = segment.first_block == block ? 1 : 0;
    finish.dry = dry;
    finish.rows = dry ? 0 : job.rows;
    const Words at = words();
    finish.mine = words_of_lane(place_of(2 * block + finish.slot, at));
    finish.others = words_of_lane(place_of(2 * (segment.first_block + 1), at));
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + lane / 4;
      const PackedRow from = packed_row(job.first + (row < job.rows ? row : 0), params.group_size);
      const int head = job.kv_head * params.group_size + from.head;
      finish.out[n] = static_cast<unsigned short*>(params.o) + job.batch * params.o_strides.batch +
                      head * params.o_strides.head + from.query * params.o_strides.row + 16 * group * kColumns +
                      2 * (lane % 4);
      ptx::settle(finish.out[n]);
    }
    ptx::settle(finish.mine);
    ptx::settle(finish.others);
    return finish;
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
  __device__ __forceinline__ void take_tiles(Result& result, const Job& job, bool is_first, int job_first, int end,
                                             int block_end, Cursor& at) const {
    unsigned query[kDim / 16][kRows][2];
    load_queries(query, job);
    if (is_first) __syncthreads();  // not before the first segment's queries are asked for
    int row_end[kRows][2];          // keys that this lane's rows see; those beyond the real ones see what they like
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = job.first + 8 * n + 2 * (lane % 4) + r;
        row_end[n][r] = visible_keys(kProblem.causal, kProblem.causal ? divide(row, params.group_size) : 0,
                                     params.causal_offset, params.len_k);
      }
    // Once a block, in its last segment: at that one's first tile where it is short.
    const int ending_tile = block_end - kCountedAhead > at.tile ? block_end - kCountedAhead : at.tile;
#pragma unroll 1
    for (; at.tile < end; ++at.tile) {
      const int first_key = (at.tile - job_first) * kBlockN;
      ptx::mbarrier_wait(full(at.stage), at.parity);
      if (block_end == end && at.tile == ending_tile && group == 0 && lane == 0) ptx::mbarrier_arrive(ending(0));
      if (first_key < job.keys_end) {
        take_tile(result, query, stage_address(at.stage), at.which, first_key, first_key + kBlockN > job.keys_plain,
                  row_end);
        at.which ^= 1;
      }
      __syncwarp();  // the warp has read the stage
      if (lane == 0) ptx::mbarrier_arrive(empty(at.stage));
      if (++at.stage == kStages) {
        at.stage = 0;
        at.parity ^= 1;
      }
    }
  }

  __device__ __forceinline__ static void reset(Result& result) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) result.out[n][i][e] = 0.0F;
#pragma unroll
      for (int e = 0; e < 4; ++e) result.sum[n][e] = 0.0F;
#pragma unroll
      for (int r = 0; r < 2; ++r) result.reference[n][r] = -__int_as_float(0x7f800000);
    }
  }

  /// The B operand Q^T, straight from global memory; rows beyond the real ones are zeros.
  __device__ __forceinline__ void load_queries(unsigned (&query)[kDim / 16][kRows][2], const Job& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + lane / 4;
      const bool inside = row < job.rows;
      const unsigned short* from = query_row(job, inside ? row : 0) + 2 * (lane % 4);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          query[k][n][c] = inside ? *reinterpret_cast<const unsigned*>(from + 16 * k + 8 * c) : 0U;
    }
  }

  using Scores = float[kKeys][kRows][4];  // of keys T / 4 and T / 4 + 8 of a fragment, rows as in Result

  __device__ __forceinline__ void take_tile(Result& result, const unsigned (&query)[kDim / 16][kRows][2], unsigned keys,
                                            int which, int first_key, bool masked,
                                            const int (&row_end)[kRows][2]) const {
    const float scale_log2 = params.scale * 1.44269504F;
    Scores scores;
    multiply_keys(scores, query, keys);
    unsigned values[kSteps][kColumns][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        ptx::ldmatrix_x4_trans(values[k][i], block_address(keys + kPlan.tile_bytes, 16 * k, 2 * (group * kColumns + i),
                                                           tile::ldmatrix_k_address(lane)));
    if (masked) hide_keys(scores, first_key, row_end);
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
        far = far || maxima[n][r] > result.reference[n][r] + kMargin;
      }
    const unsigned weights = shared_base + kPlan.weights + which * kBlockM * kBlockN * 2;
    put_weights(weights, scores, result, scale_log2);
    if (ptx::barrier_red_or(1, kThreads, far)) {
      settle_on_references(result, maxima);
      put_weights(weights, scores, result, scale_log2);
      ptx::bar_sync(1, kThreads);
    }
    multiply_values(result, values, weights);
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores, const unsigned (&query)[kDim / 16][kRows][2],
                                                unsigned keys) const {
    float chains[kChains][kKeys][kRows][4];
#pragma unroll
    for (int h = 0; h < kChains; ++h)
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
#pragma unroll
        for (int n = 0; n < kRows; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) chains[h][j][n][e] = 0.0F;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        unsigned a[4];
        ptx::ldmatrix_x4(a, block_address(keys, 16 * (group * kKeys + j), 2 * k, tile::ldmatrix_a_address(lane)));
#pragma unroll
        for (int n = 0; n < kRows; ++n)
          ptx::mma_m16n8k16<kProblem.element>(chains[k % kChains][j][n], a, query[k][n][0], query[k][n][1]);
      }
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[j][n][e] = kChains == 1 ? chains[0][j][n][e] : chains[0][j][n][e] + chains[kChains - 1][j][n][e];
  }

  /// Sets scores of hidden keys to -inf.
  __device__ __forceinline__ void hide_keys(Scores& scores, int first_key, const int (&row_end)[kRows][2]) const {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first_key + 16 * (group * kKeys + j) + lane / 4 + 8 * (e / 2) >= row_end[n][e % 2])
            scores[j][n][e] = -__int_as_float(0x7f800000);
  }

  /// Weights of this warp's keys, (row group, key, row), for all warps to read.
  __device__ __forceinline__ void put_weights(unsigned weights, const Scores& scores, const Result& result,
                                              float scale_log2) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const float negative[2] = {-attention::finite_reference(result.reference[n][0]),
                                 -attention::finite_reference(result.reference[n][1])};
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float p[2];
#pragma unroll
          for (int r = 0; r < 2; ++r)
            p[r] = attention::exp2<kConfig.exp2>(fmaf(scores[j][n][2 * h + r], scale_log2, negative[r]), 2 * h + r);
          const int key = 16 * (group * kKeys + j) + lane / 4 + 8 * h;
          ptx::st_shared(weights + (n * kBlockN + key) * 16 + 4 * (lane % 4),
                         ptx::cvt_rn_x2<kProblem.element>(p[0], p[1]));
        }
    }
  }

  /// Takes the largest scores of all warps' keys for references, where they are larger, and rescales what was summed.
  __device__ __forceinline__ void settle_on_references(Result& result, float (&maxima)[kRows][2]) const {
    auto* const all = reinterpret_cast<float*>(shared + kPlan.references);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2)
          maxima[n][r] = fmaxf(maxima[n][r], __shfl_xor_sync(kAll, maxima[n][r], mask));
      if (lane < 4)
        *reinterpret_cast<float2*>(all + group * kBlockM + 8 * n + 2 * lane) = make_float2(maxima[n][0], maxima[n][1]);
    }
    ptx::bar_sync(1, kThreads);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      float next[2] = {result.reference[n][0], result.reference[n][1]};
#pragma unroll
      for (int w = 0; w < kGroups; ++w) {
        const float2 of_warp = *reinterpret_cast<const float2*>(all + w * kBlockM + 8 * n + 2 * (lane % 4));
        next[0] = fmaxf(next[0], of_warp.x);
        next[1] = fmaxf(next[1], of_warp.y);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = ptx::ex2_approx_ftz(result.reference[n][r] - attention::finite_reference(next[r]));
        result.reference[n][r] = next[r];
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
        ptx::ldmatrix_x4_trans(b, weights + (n * kBlockN + 16 * k + lane) * 16);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i)
            ptx::mma_m16n8k16<kProblem.element>(result.out[n][i], values[k + h][i], b[2 * h], b[2 * h + 1]);
          ptx::mma_m16n8k16<kProblem.element>(result.sum[n], kOne, b[2 * h], b[2 * h + 1]);
        }
      }
  }

  // ------------------------------------------------------------------------------------------------------ merging

  /// Whether one of a lane's two rows of a group is real.
  __device__ __forceinline__ bool has_row(int n, int rows) const { return 8 * n + 2 * (lane % 4) < rows; }

  __device__ __forceinline__ void end_segment(Result& result, const Finish& finish, const Job& job) const {
    if (finish.parts > 1) {
      if (!finish.dry) ptx::mbarrier_wait(counted(finish.slot), 0);
      const bool merges = ptx::warp_uniform(finish.dry ? 1 : is_last(finish.slot)) != 0;
      const bool is_first = finish.slot == 1;
      if (!merges || !is_first) send(result, finish);
      if (!merges) return;
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        if (n > 0 && 8 * n >= finish.rows) break;
        if (finish.slot == 0) take_first(result, n, finish);
        const bool is_narrow = job.rows - 8 * n <= 4;  // half of the lanes have no real row: they take parts, too
        if constexpr (kRows > 1)
          receive<kRows == 2 ? 8 : 4, 1>(result, n, finish);  // every group of rows has instructions of its own
        else if (finish.parts <= kFew + 1)
          is_narrow ? receive<kFew / 2, 2>(result, n, finish) : receive<kFew, 1>(result, n, finish);
        else
          is_narrow ? receive<8, 2>(result, n, finish) : receive<kMany, 1>(result, n, finish);
      }
    }
    store(result, finish);
    if (params.lse != nullptr && group == 0 && lane < 4 && !finish.dry) store_lse(result, job);
  }

  /// Where this lane's words begin, in a place.
  __device__ __forceinline__ unsigned* words_of_lane(unsigned* place) const {
    return place + group * kWarpWords + 4 * lane;
  }
  static constexpr int kRowWords = kGroups * kWarpWords;  // of eight rows, in a place
  /// From a lane's words to the (reference, sum) of its two rows.
  __device__ __forceinline__ static int to_state(int of_lane) {
    return 128 * kColumns + 4 * (of_lane % 4) - 4 * of_lane;
  }

  __device__ __forceinline__ void send(const Result& result, const Finish& finish) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const bool wanted = has_row(n, finish.rows);
      unsigned* const to = finish.mine + n * kRowWords;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float(&x)[4] = result.out[n][i];
        ptx::st_relaxed_gpu_v4_if(wanted, to + 128 * i, {word_of(x[0]), word_of(x[1]), word_of(x[2]), word_of(x[3])});
      }
      const float(&reference)[2] = result.reference[n];
      const float(&sum)[4] = result.sum[n];
      ptx::st_relaxed_gpu_v4_if(wanted && lane < 4, to + to_state(lane),
                                {word_of(reference[0]), word_of(sum[0]), word_of(reference[1]), word_of(sum[1])});
    }
  }

  /// Eight rows of some partial results that other blocks sent. Of kClasses classes of lanes, each has its columns of
  /// every kClasses-th, and reference and sum of its two rows of those whose number in its class is lane / 4 modulo 8.
  /// Two classes: lanes 4 i + 2 and 4 i + 3 have the rows that 4 i and 4 i + 1 have, for they have no real ones.
  template <int kCount>
  struct Batch {
    uint4 out[kCount][kColumns];
    uint4 state[(kCount + 7) / 8];
  };
  template <int kClasses>
  __device__ __forceinline__ int class_of_lane() const {
    return kClasses == 1 ? 0 : lane / 2 % 2;
  }

  /// Waits until `count` partial results are there, which lie `pitch` words apart from `from` on, and leaves zeros in
  /// their place. All are asked for at once, and then again those that were not there yet.
  template <int kCount, int kClasses>
  __device__ __forceinline__ void wait_for(Batch<kCount>& batch, unsigned* from, int pitch, int count,
                                           bool wanted) const {
    constexpr int kStates = (kCount + 7) / 8;
    const int number = class_of_lane<kClasses>();
    from += number * (pitch - 8);  // a lane's words are those of the lane two before
    pitch *= kClasses;
    unsigned* const states = from + to_state(lane - 2 * number) + lane / 4 * pitch;
    const auto lacks = [](const uint4& x) { return min(min(x.x, x.y), min(x.z, x.w)) == 0; };
    const auto is_sent = [&](int p) { return wanted && kClasses * p + number < count; };
    const auto has_state = [&](int h) { return is_sent(lane / 4 + 8 * h) && lane / 4 < kCount; };
#pragma unroll
    for (int h = 0; h < kStates; ++h)  // of no keys: -inf, -0
      batch.state[h] = {has_state(h) ? 0U : 0xff800000U, 0x80000000U, 0xff800000U, 0x80000000U};
#pragma unroll
    for (int p = 0; p < kCount; ++p)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) batch.out[p][i] = {is_sent(p) ? 0U : 1U, 1, 1, 1};
    bool missing = false;
    do {
      missing = false;
#pragma unroll
      for (int h = 0; h < kStates; ++h)
        ptx::ld_relaxed_gpu_v4(batch.state[h], states + 8 * h * pitch, lacks(batch.state[h]));
#pragma unroll
      for (int p = 0; p < kCount; ++p)
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          ptx::ld_relaxed_gpu_v4(batch.out[p][i], from + p * pitch + 128 * i, lacks(batch.out[p][i]));
#pragma unroll
      for (int h = 0; h < kStates; ++h) missing = missing || lacks(batch.state[h]);
#pragma unroll
      for (int p = 0; p < kCount; ++p)
#pragma unroll
        for (int i = 0; i < kColumns; ++i) missing = missing || lacks(batch.out[p][i]);
    } while (__any_sync(kAll, missing));  // lanes that part company here would shuffle one by one below
#pragma unroll
    for (int h = 0; h < kStates; ++h) ptx::st_relaxed_gpu_v4_if(has_state(h), states + 8 * h * pitch, {0, 0, 0, 0});
#pragma unroll
    for (int p = 0; p < kCount; ++p)
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        ptx::st_relaxed_gpu_v4_if(is_sent(p), from + p * pitch + 128 * i, {0, 0, 0, 0});
  }

  __device__ __forceinline__ int pitch() const { return 2 * words().place_words; }
  /// This lane's words of the first block's part.
  __device__ __forceinline__ unsigned* first_of(const Finish& finish) const {
    return finish.others - words().place_words;
  }

  /// Puts the first block's part into `result`, if this is another.
  __device__ __forceinline__ void take_first(Result& result, int n, const Finish& finish) const {
    Batch<1> first;
    wait_for<1, 1>(first, first_of(finish) + n * kRowWords, 0, 1, has_row(n, finish.rows));
    const int from = lane % 4;
    result.reference[n][0] = __shfl_sync(kAll, __uint_as_float(first.state[0].x), from);
    result.sum[n][0] = __shfl_sync(kAll, __uint_as_float(first.state[0].y), from);
    result.reference[n][1] = __shfl_sync(kAll, __uint_as_float(first.state[0].z), from);
    result.sum[n][1] = __shfl_sync(kAll, __uint_as_float(first.state[0].w), from);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const uint4& x = first.out[0][i];
      const float values[4] = {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
#pragma unroll
      for (int e = 0; e < 4; ++e) result.out[n][i][e] = values[e];
    }
  }

  /// The result of a job's blocks, for one group of rows: those after the first by class and in order, the first's
  /// last, whoever merges: it is in `result`.
  template <int kCount, int kClasses>
  __device__ __forceinline__ void receive(Result& result, int n, const Finish& finish) const {
    const int row_lane = lane - 2 * class_of_lane<kClasses>();  // whose rows this lane helps with
    const bool wanted = 8 * n + 2 * (row_lane % 4) < finish.rows;
    float last[2] = {result.reference[n][0], result.reference[n][1]};
    if (kClasses > 1) {
#pragma unroll
      for (float& x : last) x = __shfl_sync(kAll, x, row_lane);
    }
    float reference[2] = {-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)};
    float sum[2] = {0.0F, 0.0F};
    float out[kColumns][4] = {};
    const int others = finish.parts - 1;
#pragma unroll 1
    for (int index = 0; index < others; index += kClasses * kCount) {
      Batch<kCount> batch;
      wait_for<kCount, kClasses>(batch, finish.others + n * kRowWords + index * pitch(), pitch(), others - index,
                                 wanted);
      add<kCount, kClasses>(reference, sum, out, batch, last);
    }
    if (kClasses > 1) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (float& x : out[i]) x += __shfl_xor_sync(kAll, x, 2);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weight = ptx::ex2_approx_ftz(result.reference[n][r] - attention::finite_reference(reference[r]));
      result.reference[n][r] = reference[r];
      result.sum[n][r] = fmaf(result.sum[n][r], weight, sum[r]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = r; e < 4; e += 2) result.out[n][i][e] = fmaf(result.out[n][i][e], weight, out[i][e]);
    }
  }

  /// Adds a batch, in order. References take part in the maximum from the start that come last in the sum (`last`).
  template <int kCount, int kClasses>
  __device__ __forceinline__ void add(float (&reference)[2], float (&sum)[2], float (&out)[kColumns][4],
                                      const Batch<kCount>& batch, const float (&last)[2]) const {
    constexpr int kStates = (kCount + 7) / 8;
    constexpr int kNearest = kClasses == 1 ? 4 : 2;  // that lanes of the same rows are apart
    float weight[kStates][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto reference_of = [&](int h) { return __uint_as_float(r == 0 ? batch.state[h].x : batch.state[h].z); };
      const auto sum_of = [&](int h) { return __uint_as_float(r == 0 ? batch.state[h].y : batch.state[h].w); };
      float next = reference_of(0);
#pragma unroll
      for (int h = 1; h < kStates; ++h) next = fmaxf(next, reference_of(h));
#pragma unroll
      for (int mask = kNearest; mask < 32; mask *= 2) next = fmaxf(next, __shfl_xor_sync(kAll, next, mask));
      next = fmaxf(fmaxf(next, last[r]), reference[r]);
      const float finite = attention::finite_reference(next);
      float added = 0.0F;
#pragma unroll
      for (int h = 0; h < kStates; ++h) {
        weight[h][r] = ptx::ex2_approx_ftz(reference_of(h) - finite);
        added = fmaf(weight[h][r], sum_of(h), added);
      }
#pragma unroll
      for (int mask = kNearest; mask < 32; mask *= 2) added += __shfl_xor_sync(kAll, added, mask);
      const float factor = ptx::ex2_approx_ftz(reference[r] - finite);
      reference[r] = next;
      sum[r] = fmaf(sum[r], factor, added);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        out[i][r] *= factor;
        out[i][2 + r] *= factor;
      }
    }
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const int from = p % 8 * 4 + lane % 4;
      const float w[2] = {__shfl_sync(kAll, weight[p / 8][0], from), __shfl_sync(kAll, weight[p / 8][1], from)};
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const uint4& x = batch.out[p][i];
        out[i][0] = fmaf(w[0], __uint_as_float(x.x), out[i][0]);
        out[i][1] = fmaf(w[1], __uint_as_float(x.y), out[i][1]);
        out[i][2] = fmaf(w[0], __uint_as_float(x.z), out[i][2]);
        out[i][3] = fmaf(w[1], __uint_as_float(x.w), out[i][3]);
      }
    }
  }

  /// Writes the output. A sum of zero is that of no keys; NaN stays NaN. Of each 8 x 8 elements, lanes exchange what
  /// makes pairs of columns of one row: lane T then has row T / 4, columns 2 (T % 4) and the next.
  __device__ __forceinline__ void store(const Result& result, const Finish& finish) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n > 0 && 8 * n >= finish.rows) break;
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = result.sum[n][r] == 0.0F ? 0.0F : ptx::rcp_approx_ftz(result.sum[n][r]);
      const bool is_real = 8 * n + lane / 4 < finish.rows;
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned pair = ptx::movmatrix_trans(ptx::cvt_rn_x2<kProblem.element>(
              result.out[n][i][2 * h] * inverse[0], result.out[n][i][2 * h + 1] * inverse[1]));
          if (is_real) ptx::st_global(finish.out[n] + 16 * i + 8 * h, pair);
        }
    }
  }

  /// Log-sum-exps, of rows 2 (T % 4) and the next of each group. For the first four lanes.
  __device__ __forceinline__ void store_lse(const Result& result, const Job& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * lane + r;
        if (row >= job.rows) continue;
        const PackedRow at = packed_row(job.first + row, params.group_size);
        const long long head =
            static_cast<long long>(job.batch) * params.heads + job.kv_head * params.group_size + at.head;
        params.lse[head * params.len_q + at.query] =
            result.sum[n][r] == 0.0F ? -__int_as_float(0x7f800000)
                                     : (result.reference[n][r] + ptx::lg2_approx_ftz(result.sum[n][r])) * 0.693147181F;
      }
  }
};

}  // namespace heed::decode_sm90
