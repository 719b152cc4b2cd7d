/// The partial results of groups of warps that take whole tiles in turn (config.hpp: GroupSplit::kv_tiles), and the
/// warps that merge them: those of a block in shared memory, those of blocks through global memory.
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/sm90/decode/block.cuh"
#include "kernels/sm90/decode/partial.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct TileParts {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using KnownJob = typename Block::KnownJob;
  using JobIndex = typename Block::JobIndex;
  using Segment = typename Block::Segment;

  static constexpr int kBlockM = Block::kBlockM;
  static constexpr int kDim = Block::kDim;
  static constexpr int kGroups = Block::kGroups;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr int kMergers = Block::kMergers;
  static constexpr int kThreads = Block::kThreads;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr bool kEntries = Block::kEntries;
  static constexpr int kOutTiles = kDim / 8;  // n-tiles of O
  static constexpr int kChunks = kDim / 4;    // pieces of a row in which partials are merged
  static constexpr int kBatch = merge_batch(kConfig, kDim);
  static constexpr int kCountedAhead = 3;  // tiles: the reply of a counter takes about as long as one or two

  // Threads that compute put a segment's partials where those that merge take them from; neither waits longer than it
  // must: one side comes by, the other waits.
  __device__ __forceinline__ static void partials_are_put() {
    ptx::bar_arrive(attention::barrier_id<kConfig, NamedBarrier::partials>(), kThreads + kMergers);
  }
  __device__ __forceinline__ static void wait_for_partials() {
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::partials>(), kThreads + kMergers);
  }
  __device__ __forceinline__ static void partials_are_taken() {
    ptx::bar_arrive(attention::barrier_id<kConfig, NamedBarrier::room>(), kThreads + kMergers);
  }
  __device__ __forceinline__ static void wait_for_room() {
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::room>(), kThreads + kMergers);
  }
  /// Orders shared memory among the threads that merge.
  __device__ __forceinline__ static void mergers_meet() {
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::mergers>(), kMergers);
  }

  __device__ __forceinline__ static int* is_last_word(const Block& block) {
    return reinterpret_cast<int*>(block.shared + kPlan.is_last);
  }
  // Partials in shared memory: (kGroups, kBlockM, partial_pitch) and (kGroups, kBlockM, 2).
  __device__ __forceinline__ static float* shared_out(const Block& block, int part, int row) {
    return reinterpret_cast<float*>(block.shared + kPlan.partial_out) + (part * kBlockM + row) * kPlan.partial_pitch;
  }
  __device__ __forceinline__ static float* shared_state(const Block& block, int part, int row) {
    return reinterpret_cast<float*>(block.shared + kPlan.row_state) + 2 * (part * kBlockM + row);
  }
  __device__ __forceinline__ static void put_partials(const Block& block, const float (&out)[1][kOutTiles][4],
                                                      const attention::RowState<1>& state, const KnownJob& job) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.warp * kWarpRows + block.lane / 4 + 8 * h;
      if (row >= job.rows) continue;
      if (block.lane % 4 == 0)
        *reinterpret_cast<float2*>(shared_state(block, block.group, row)) =
            make_float2(state.row_max[0][h], state.row_sum[0][h]);
      if constexpr (kQuantised) {  // even columns of 16 in one tile, odd ones in the next
        float* to = shared_out(block, block.group, row) + 4 * (block.lane % 4);
#pragma unroll
        for (int n = 0; n < kOutTiles; n += 2) {
          const float(&even)[4] = out[0][n];
          const float(&odd)[4] = out[0][n + 1];
          *reinterpret_cast<float4*>(to + 8 * n) =
              make_float4(even[2 * h], odd[2 * h], even[2 * h + 1], odd[2 * h + 1]);
        }
      } else {
        float* to = shared_out(block, block.group, row) + 2 * (block.lane % 4);
        attention::put_row(to, out[0], h);
      }
    }
  }

  /// Merges segment after segment. All of it runs once a segment, so that the time it takes is mostly that of
  /// instructions that wait for each other: loops that could be unrolled are not.
  __device__ __forceinline__ static void merge_segments(const Block& block) {
    // At once: blocks of the next launch take room that is free, and wait before they touch memory.
    if constexpr (kConfig.pdl) ptx::griddepcontrol_launch_dependents();
    Block::wait_for_launch_before();
    const int end = block.first_tile + block.tile_count;
    partials_are_taken();  // there are none
#pragma unroll 1
    for (JobIndex job_index = block.first_job;; job_index = block.next_job(job_index)) {
      const KnownJob job = block.job_of(job_index);
      const Segment segment = block.segment_of(job_index);
      const bool is_final = block.start_of(block.next_job(job_index)) >= end;
      if (!is_final) block.prefetch_queries(block.job_of(block.next_job(job_index)));
      if constexpr (kEntries)
        if (job.rows == 0) {  // of an entry with fewer queries than others: no block of the job counts
          wait_for_partials();
          if (is_final) return;
          partials_are_taken();
          continue;
        }
      const bool is_first = segment.first_block == block.number;
      const bool is_last = segment.blocks > 1 && is_counted_last(block, segment, is_first);
      if (!is_last || !is_first) merge_groups(block, job, segment);
      if (is_last) receive(block, job, segment, is_first);
      if (is_final) return;
      partials_are_taken();
    }
  }

  /// Counts the block in at a segment's job; whether all the others were before. The first of them at most once: a
  /// block begins at most one job that another ends.
  __device__ __forceinline__ static bool is_counted_last(const Block& block, const Segment& segment, bool is_first) {
    if (Block::merger() < 32) {
      if (is_first) ptx::mbarrier_wait(block.ending(), 0);
      const unsigned last = static_cast<unsigned>(segment.blocks) - 1;
      if (block.lane == 0)
        *is_last_word(block) =
            ptx::atom_inc_relaxed_gpu(block.params.semaphores + segment.first_block, last) == last ? 1 : 0;
    }
    mergers_meet();  // again in wait_for_partials(), before the next segment's is written
    return *is_last_word(block) != 0;
  }

  __device__ __forceinline__ static Partial of_groups(const Block& block, int row, int chunk) {
    Partial merged;
    merged.reset();
    merged.add_shared<kGroups>(shared_out(block, 0, row) + 4 * chunk, kBlockM * kPlan.partial_pitch,
                               shared_state(block, 0, row), 2 * kBlockM);
    return merged;
  }

  /// The groups' partials become one: the result where the block has all of the job, else its part on its way to the
  /// block that merges.
  __device__ __forceinline__ static void merge_groups(const Block& block, const KnownJob& job, const Segment& segment) {
    unsigned* const sent =
        block.place_of(2 * block.number + (block.number == segment.first_block ? 1 : 0), block.words());
    wait_for_partials();
#pragma unroll 1
    for (int item = Block::merger(); item < job.rows * kChunks; item += kMergers) {
      const int row = item / kChunks;
      const int chunk = item % kChunks;
      const Partial merged = of_groups(block, row, chunk);
      unsigned* const to = sent + row * row_words(kDim);
      if (segment.blocks == 1)
        store(block, merged, target_of(block, job, row, chunk), has_columns(chunk));
      else
        merged.send(to + 4 * chunk, to + kDim + 2 * (chunk % 4), chunk < 4);
    }
  }

  /// Adds the partials of a segment's blocks, in order but for the first block's, which comes last, and stores the
  /// result. If this is the first block, its own are not sent: they are waited for when the others' are there already.
  /// Of few blocks, those of two rows are asked for at once.
  __device__ __forceinline__ static void receive(const Block& block, const KnownJob& job, const Segment& segment,
                                                 bool is_first) {
    using Many = Batch<kBatch, kChunks>;
    using One = Batch<2, kChunks>;  // of two rows
    constexpr int kRowsFurther = kMergers / kChunks;
    const Words at = block.words();
    unsigned* const sent = block.place_of(2 * segment.first_block, at);
    const int pitch = 2 * at.place_words;
    const int others = segment.blocks - 1;
    const int items = job.rows * kChunks;
    const int parts = merge_parts(kConfig, kDim, job.rows, others);
    const int all = parts * items;
    const bool in_pairs = items > kMergers && others <= Many::kHalf;
    bool waits = is_first;
#pragma unroll 1
    for (int first = 0; first < all; first += in_pairs ? 2 * kMergers : kMergers) {  // once, if there are several parts
      const int item = first + Block::merger();
      const bool active = item < all;
      const int part = active ? divide(item, items) : 0;
      const int row = active ? (item - part * items) / kChunks : 0;
      const int chunk = item % kChunks;
      const bool has_second = in_pairs && active && row + kRowsFurther < job.rows;
      const int second_row = has_second ? row + kRowsFurther : row;
      const Target target = target_of(block, job, row, chunk);
      const Target second_target = target_of(block, job, second_row, chunk);
      unsigned* const of_row = sent + row * row_words(kDim);
      const int further = (second_row - row) * row_words(kDim);
      const int count = active ? ceil_div(others - part, parts) : 0;  // parts are at most as many as the others
      Partial merged;
      merged.reset();
      Partial second = merged;
#pragma unroll 1
      for (int index = 0; __any_sync(0xffffffffU, index < count); index += kBatch) {
        Many batch;
        unsigned wanted = index < count ? (1U << least(count - index, kBatch)) - 1 : 0U;
        if (has_second) wanted |= wanted << Many::kHalf;
        batch.receive({of_row + static_cast<long long>(1 + part + index * parts) * pitch,
                       static_cast<unsigned>(parts * pitch), in_pairs ? further - Many::kHalf * pitch : 0},
                      wanted);
        batch.template add_half_to<0>(merged);
        if (in_pairs)
          batch.template add_half_to<1>(second);
        else
          batch.template add_half_to<1>(merged);
      }
      Partial mine;
      mine.reset();
      Partial my_second = mine;
      if (is_first) {
        if (waits) wait_for_partials();
        waits = false;
        mine = of_groups(block, row, chunk);
        my_second = of_groups(block, second_row, chunk);
      } else {
        One one;
        one.receive({of_row + pitch / 2, 0, further}, active && part == 0 ? (has_second ? 3U : 1U) : 0U);
        one.template add_half_to<0>(mine);
        one.template add_half_to<1>(my_second);
      }
      if (parts > 1) {
        mergers_meet();  // the groups' partials are read
        if (active)
          merged.put_shared(shared_out(block, part, row) + 4 * chunk, shared_state(block, part, row), chunk == 0);
        mergers_meet();
        if (part != 0) continue;
        merged.reset();
#pragma unroll 1
        for (int i = 0; i < parts; ++i)
          merged.add_shared<1>(shared_out(block, i, row) + 4 * chunk, 0, shared_state(block, i, row), 0);
      }
      merged.add(mine);
      store(block, merged, target, active && has_columns(chunk));
      if (!in_pairs) continue;
      second.add(my_second);
      store(block, second, second_target, has_second && has_columns(chunk));
    }
  }

  /// Where 4 columns of a finished row go, and its log-sum-exp: null where another thread has it, or nobody asks.
  struct Target {
    unsigned short* out;
    float* lse;
    int head;
    const float* value_factors;  ///< of V in 8 bits: that of the first column
  };
  __device__ __forceinline__ static Target target_of(const Block& block, const KnownJob& job, int row, int chunk) {
    const auto& p = block.params_of(job);
    const PackedRow at = packed_row(job.first + row, p.group_size);
    const int head = job.kv_head * p.group_size + at.head;
    Target target{static_cast<unsigned short*>(p.o) + job.batch * p.o_strides.batch + head * p.o_strides.head +
                      at.query * p.o_strides.row + 4 * chunk,
                  nullptr, head, nullptr};
    if constexpr (kQuantised)
      target.value_factors = value_factors(p, job.batch, job.kv_head) + 4 * chunk * p.v_scales.channel;
    if constexpr (has_features(kProblem.features)) {
      if (chunk == 0 && p.lse != nullptr) target.lse = p.lse + attention::lse_offset(p, job.batch, head, at.query);
    } else {
      if (chunk == 0 && block.params.lse != nullptr)
        target.lse = block.params.lse +
                     (static_cast<long long>(job.batch) * block.params.heads + head) * block.params.len_q + at.query;
    }
    return target;
  }

  /// Whether the output has a piece's columns: not those that fill its last box.
  __device__ __forceinline__ static bool has_columns(int chunk) { return kHeadDim == kDim || 4 * chunk < kHeadDim; }

  /// Writes them if `active`. A sum of zero is that of no keys; NaN stays NaN.
  __device__ __forceinline__ static void store(const Block& block, const Partial& merged, const Target& target,
                                               bool active) {
    if (!active) return;
    float row_max = merged.row_max;
    float sum = merged.sum;
    float factor = 1.0F;  // what outputs count, beside a sink
    if constexpr (kProblem.features.sinks) factor = attention::add_sink(block.params, target.head, row_max, sum);
    float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    if constexpr (kProblem.features.sinks) inverse *= factor;
    if constexpr (kQuantised) {
      float columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        columns[i] = merged.out[i] * inverse * target.value_factors[i * block.params.v_scales.channel];
      *reinterpret_cast<uint2*>(target.out) = {ptx::cvt_rn_x2<kProblem.element>(columns[0], columns[1]),
                                               ptx::cvt_rn_x2<kProblem.element>(columns[2], columns[3])};
    } else {
      *reinterpret_cast<uint2*>(target.out) = {
          ptx::cvt_rn_x2<kProblem.element>(merged.out[0] * inverse, merged.out[1] * inverse),
          ptx::cvt_rn_x2<kProblem.element>(merged.out[2] * inverse, merged.out[3] * inverse)};
    }
    if (target.lse != nullptr) *target.lse = attention::log_sum_exp(sum != 0.0F, row_max, sum);
  }
};

}  // namespace heed::sm90_decode
