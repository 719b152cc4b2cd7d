/// A warp's part of a job's output, by columns (config.hpp: GroupSplit::columns): how it goes to the block that merges,
/// and how that one adds the parts up.
///
/// A part goes as it lies in registers, so that sender and receiver are the same lane of the same warp: nothing passes
/// through shared memory. What follows the last key runs once a launch and every instruction of it is waited for: so
/// addresses are worked out while the first keys are on their way (Finish), and lanes that wait for words leave the
/// loop together: a warp that has parted shuffles lane by lane afterwards, which cost 2 us where 15 parts met.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/block.cuh"
#include "kernels/sm90/decode/column_result.cuh"
#include "kernels/sm90/decode/partial.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ColumnParts {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using KnownJob = typename Block::KnownJob;
  using Segment = typename Block::Segment;
  using Out = ColumnResult<kConfig, kProblem>;
  using Result = typename Out::Result;
  using Finish = typename Out::Finish;

  static constexpr int kDim = Block::kDim;
  static constexpr int kGroups = Block::kGroups;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr int kRows = Out::kRows;
  static constexpr int kColumns = Out::kColumns;
  static constexpr int kWarpWords = warp_words(kConfig, kDim);  // in a place
  // Parts asked for at once: what is asked for takes 4 * kColumns registers each.
  static constexpr int kFew = 4;
  static constexpr int kMany = kColumns <= 2 && registers_allowed(kConfig) > 168 ? 16 : 8;
  static constexpr unsigned kAll = 0xffffffffU;

  __device__ __forceinline__ static unsigned counted(const Block& block, int slot) {
    return block.shared_base + kPlan.counted + slot * 8;
  }
  __device__ __forceinline__ static int& is_last(const Block& block, int slot) {
    return reinterpret_cast<int*>(block.shared + kPlan.is_last)[slot];
  }

  __device__ __forceinline__ static Finish finish_of(const Block& block, const KnownJob& job, const Segment& segment) {
    const auto& p = block.params_of(job);
    Finish finish;
    finish.parts = segment.blocks;
    finish.slot = segment.first_block == block.number ? 1 : 0;
    finish.rows = job.rows;
    const Words at = block.words();
    finish.mine = words_of_lane(block, block.place_of(2 * block.number + finish.slot, at));
    finish.others = words_of_lane(block, block.place_of(2 * (segment.first_block + 1), at));
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + block.lane / 4;
      const PackedRow from = packed_row(job.first + (row < job.rows ? row : 0), p.group_size);
      const int head = job.kv_head * p.group_size + from.head;
      finish.out[n] = static_cast<unsigned short*>(p.o) + job.batch * p.o_strides.batch + head * p.o_strides.head +
                      from.query * p.o_strides.row + 16 * block.group * kColumns +
                      (kQuantised ? 4 : 2) * (block.lane % 4);
      opaque(finish.out[n]);
    }
    if constexpr (kQuantised)
      load_value_factors<kHeadDim>(finish.value_factors, p, job.batch, job.kv_head, 16 * block.group * kColumns,
                                   block.lane);
    opaque(finish.mine);
    opaque(finish.others);
    return finish;
  }

  // ------------------------------------------------------------------------------------------------------ the end

  /// Whether one of a lane's two rows of a group is real.
  __device__ __forceinline__ static bool has_row(const Block& block, int n, int rows) {
    return 8 * n + 2 * (block.lane % 4) < rows;
  }

  __device__ __forceinline__ static void end_segment(const Block& block, Result& result, const Finish& finish,
                                                     const KnownJob& job) {
    if constexpr (kQuantised) Out::scale_values(result, finish);
    if (finish.parts > 1) {
      ptx::mbarrier_wait(counted(block, finish.slot), 0);
      const bool merges = ptx::warp_uniform(is_last(block, finish.slot)) != 0;
      const bool is_first = finish.slot == 1;
      if (!merges || !is_first) send(block, result, finish);
      if (!merges) return;
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        if (8 * n >= finish.rows) break;
        if (finish.slot == 0) take_first(block, result, n, finish);
        const bool is_narrow = job.rows - 8 * n <= 4;  // half of the lanes have no real row: they take parts, too
        if constexpr (kRows > 1)
          receive<kRows == 2 ? 8 : 4, 1>(block, result, n, finish);  // every group of rows has instructions of its own
        else if (finish.parts <= kFew + 1)
          is_narrow ? receive<kFew / 2, 2>(block, result, n, finish) : receive<kFew, 1>(block, result, n, finish);
        else
          is_narrow ? receive<8, 2>(block, result, n, finish) : receive<kMany, 1>(block, result, n, finish);
      }
    }
    if constexpr (kProblem.features.sinks) Out::add_sinks(block, result, job);
    Out::store(block, result, finish);
    if (block.params.lse != nullptr && block.group == 0 && block.lane < 4) Out::store_lse(block, result, job);
  }

  /// Where this lane's words begin, in a place.
  __device__ __forceinline__ static unsigned* words_of_lane(const Block& block, unsigned* place) {
    return place + block.group * kWarpWords + 4 * block.lane;
  }
  static constexpr int kRowWords = kGroups * kWarpWords;  // of eight rows, in a place
  /// From a lane's words to the (row_max, sum) of its two rows.
  __device__ __forceinline__ static int to_state(int of_lane) {
    return 128 * kColumns + 4 * (of_lane % 4) - 4 * of_lane;
  }

  __device__ __forceinline__ static void send(const Block& block, const Result& result, const Finish& finish) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const bool wanted = has_row(block, n, finish.rows);
      unsigned* const to = finish.mine + n * kRowWords;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float(&x)[4] = result.out[n][i];
        ptx::st_relaxed_gpu_v4_if(wanted, to + 128 * i, {word_of(x[0]), word_of(x[1]), word_of(x[2]), word_of(x[3])});
      }
      const float(&row_max)[2] = result.row_max[n];
      const float(&sum)[4] = result.sum[n];
      ptx::st_relaxed_gpu_v4_if(wanted && block.lane < 4, to + to_state(block.lane),
                                {word_of(row_max[0]), word_of(sum[0]), word_of(row_max[1]), word_of(sum[1])});
    }
  }

  /// Eight rows of some partial results that other blocks sent. Of kClasses classes of lanes, each has its columns of
  /// every kClasses-th, and row maximum and sum of its two rows of those whose number in its class is lane / 4
  /// modulo 8. Two classes: lanes 4 i + 2 and 4 i + 3 have the rows that 4 i and 4 i + 1 have, for they have no real
  /// ones.
  template <int kCount>
  struct Batch {
    uint4 out[kCount][kColumns];
    uint4 state[(kCount + 7) / 8];
  };
  template <int kClasses>
  __device__ __forceinline__ static int class_of_lane(const Block& block) {
    return kClasses == 1 ? 0 : block.lane / 2 % 2;
  }

  /// Waits until `count` partial results are there, which lie `pitch` words apart from `from` on, and leaves zeros in
  /// their place. All are asked for at once, and then again those that were not there yet.
  template <int kCount, int kClasses>
  __device__ __forceinline__ static void wait_for(const Block& block, Batch<kCount>& batch, unsigned* from, int pitch,
                                                  int count, bool wanted) {
    constexpr int kStates = (kCount + 7) / 8;
    const int number = class_of_lane<kClasses>(block);
    from += number * (pitch - 8);  // a lane's words are those of the lane two before
    pitch *= kClasses;
    unsigned* const states = from + to_state(block.lane - 2 * number) + block.lane / 4 * pitch;
    const auto is_sent = [&](int p) { return wanted && kClasses * p + number < count; };
    const auto has_state = [&](int h) { return is_sent(block.lane / 4 + 8 * h) && block.lane / 4 < kCount; };
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

  __device__ __forceinline__ static int pitch(const Block& block) { return 2 * block.words().place_words; }
  /// This lane's words of the first block's part.
  __device__ __forceinline__ static unsigned* first_of(const Block& block, const Finish& finish) {
    return finish.others - block.words().place_words;
  }

  /// Puts the first block's part into `result`, if this is another.
  __device__ __forceinline__ static void take_first(const Block& block, Result& result, int n, const Finish& finish) {
    Batch<1> first;
    wait_for<1, 1>(block, first, first_of(block, finish) + n * kRowWords, 0, 1, has_row(block, n, finish.rows));
    const int from = block.lane % 4;
    result.row_max[n][0] = __shfl_sync(kAll, __uint_as_float(first.state[0].x), from);
    result.sum[n][0] = __shfl_sync(kAll, __uint_as_float(first.state[0].y), from);
    result.row_max[n][1] = __shfl_sync(kAll, __uint_as_float(first.state[0].z), from);
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
  __device__ __forceinline__ static void receive(const Block& block, Result& result, int n, const Finish& finish) {
    const int row_lane = block.lane - 2 * class_of_lane<kClasses>(block);  // whose rows this lane helps with
    const bool wanted = 8 * n + 2 * (row_lane % 4) < finish.rows;
    float last[2] = {result.row_max[n][0], result.row_max[n][1]};
    if (kClasses > 1) {
#pragma unroll
      for (float& x : last) x = __shfl_sync(kAll, x, row_lane);
    }
    float row_max[2] = {-attention::kInfinity, -attention::kInfinity};
    float sum[2] = {0.0F, 0.0F};
    float out[kColumns][4] = {};
    const int others = finish.parts - 1;
#pragma unroll 1
    for (int index = 0; index < others; index += kClasses * kCount) {
      Batch<kCount> batch;
      wait_for<kCount, kClasses>(block, batch, finish.others + n * kRowWords + index * pitch(block), pitch(block),
                                 others - index, wanted);
      add<kCount, kClasses>(block, row_max, sum, out, batch, last);
    }
    if (kClasses > 1) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (float& x : out[i]) x += __shfl_xor_sync(kAll, x, 2);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weight = attention::rescale_factor(result.row_max[n][r], row_max[r]);
      result.row_max[n][r] = row_max[r];
      result.sum[n][r] = fmaf(result.sum[n][r], weight, sum[r]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = r; e < 4; e += 2) result.out[n][i][e] = fmaf(result.out[n][i][e], weight, out[i][e]);
    }
  }

  /// Adds a batch, in order. Row maxima take part in the maximum from the start that come last in the sum (`last`).
  template <int kCount, int kClasses>
  __device__ __forceinline__ static void add(const Block& block, float (&row_max)[2], float (&sum)[2],
                                             float (&out)[kColumns][4], const Batch<kCount>& batch,
                                             const float (&last)[2]) {
    constexpr int kStates = (kCount + 7) / 8;
    constexpr int kNearest = kClasses == 1 ? 4 : 2;  // that lanes of the same rows are apart
    float weight[kStates][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto row_max_of = [&](int h) { return __uint_as_float(r == 0 ? batch.state[h].x : batch.state[h].z); };
      const auto sum_of = [&](int h) { return __uint_as_float(r == 0 ? batch.state[h].y : batch.state[h].w); };
      float next = row_max_of(0);
#pragma unroll
      for (int h = 1; h < kStates; ++h) next = fmaxf(next, row_max_of(h));
#pragma unroll
      for (int mask = kNearest; mask < 32; mask *= 2) next = fmaxf(next, __shfl_xor_sync(kAll, next, mask));
      next = fmaxf(fmaxf(next, last[r]), row_max[r]);
      const float finite = attention::finite_row_max(next);
      float added = 0.0F;
#pragma unroll
      for (int h = 0; h < kStates; ++h) {
        weight[h][r] = ptx::ex2_approx_ftz(row_max_of(h) - finite);
        added = fmaf(weight[h][r], sum_of(h), added);
      }
#pragma unroll
      for (int mask = kNearest; mask < 32; mask *= 2) added += __shfl_xor_sync(kAll, added, mask);
      const float factor = ptx::ex2_approx_ftz(row_max[r] - finite);
      row_max[r] = next;
      sum[r] = fmaf(sum[r], factor, added);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        out[i][r] *= factor;
        out[i][2 + r] *= factor;
      }
    }
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const int from = p % 8 * 4 + block.lane % 4;
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
};

}  // namespace heed::sm90_decode
