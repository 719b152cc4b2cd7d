/// A warp's part of a job's output, by columns (config.hpp: GroupSplit::columns): how it goes to the block that merges,
/// how that one adds the parts up, and how the result is written.
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
#include "kernels/sm90/decode/partial.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ColumnParts : Block<kConfig, kProblem> {
  using Base = Block<kConfig, kProblem>;
  using Base::block, Base::group, Base::lane, Base::params, Base::params_of, Base::place_of, Base::shared,
      Base::shared_base, Base::words, Base::kDim, Base::kGroups, Base::kHeadDim, Base::kPlan, Base::kQuantised;
  using typename Base::KnownJob, typename Base::Segment;

  static constexpr int kRows = row_groups(kConfig);                 // groups of eight rows
  static constexpr int kColumns = column_fragments(kConfig, kDim);  // of 16 columns of a warp's output
  static constexpr int kWarpWords = warp_words(kConfig, kDim);      // in a place
  // Parts asked for at once: what is asked for takes 4 * kColumns registers each.
  static constexpr int kFew = 4;
  static constexpr int kMany = kColumns <= 2 && registers_allowed(kConfig) > 168 ? 16 : 8;
  static constexpr unsigned kAll = 0xffffffffU;

  /// What a warp holds of a segment: of eight rows a group, lane T has rows 2 (T % 4) and the next, of columns T / 4
  /// and T / 4 + 8 of each fragment; of V in 8 bits columns 2 (T / 4) and the next.
  struct Result {
    float out[kRows][kColumns][4];
    float sum[kRows][4];  ///< the first two count
    float row_max[kRows][2];
  };

  __device__ __forceinline__ ColumnParts(const Params<kProblem>& p, const TensorMaps& m, char* dynamic_shared)
      : Base(p, m, dynamic_shared) {}

  __device__ __forceinline__ unsigned counted(int slot) const { return shared_base + kPlan.counted + slot * 8; }
  __device__ __forceinline__ int& is_last(int slot) const {
    return reinterpret_cast<int*>(shared + kPlan.is_last)[slot];
  }

  /// What the end of a segment needs to know, worked out while its first tile is on its way.
  struct Finish {
    int parts;                   ///< of the job
    int slot;                    ///< where the block was counted in: 1 as the first of the job, else 0
    int rows;                    ///< real ones
    unsigned* mine;              ///< this lane's words, of this block's part
    unsigned* others;            ///< of the second block's
    unsigned short* out[kRows];  ///< two columns of a row, where V has 8 bits four
    float value_factors[kQuantised ? kColumns : 1][2];  ///< of the lane's columns of a Result
  };

  __device__ __forceinline__ Finish finish_of(const KnownJob& job, const Segment& segment) const {
    const auto& p = params_of(job);
    Finish finish;
    finish.parts = segment.blocks;
    finish.slot = segment.first_block == block ? 1 : 0;
    finish.rows = job.rows;
    const Words at = words();
    finish.mine = words_of_lane(place_of(2 * block + finish.slot, at));
    finish.others = words_of_lane(place_of(2 * (segment.first_block + 1), at));
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + lane / 4;
      const PackedRow from = packed_row(job.first + (row < job.rows ? row : 0), p.group_size);
      const int head = job.kv_head * p.group_size + from.head;
      finish.out[n] = static_cast<unsigned short*>(p.o) + job.batch * p.o_strides.batch + head * p.o_strides.head +
                      from.query * p.o_strides.row + 16 * group * kColumns + (kQuantised ? 4 : 2) * (lane % 4);
      opaque(finish.out[n]);
    }
    if constexpr (kQuantised)
      load_value_factors<kHeadDim>(finish.value_factors, p, job.batch, job.kv_head, 16 * group * kColumns, lane);
    opaque(finish.mine);
    opaque(finish.others);
    return finish;
  }

  // ------------------------------------------------------------------------------------------------------ the end

  /// Whether one of a lane's two rows of a group is real.
  __device__ __forceinline__ bool has_row(int n, int rows) const { return 8 * n + 2 * (lane % 4) < rows; }

  __device__ __forceinline__ void end_segment(Result& result, const Finish& finish, const KnownJob& job) const {
    if constexpr (kQuantised) scale_values(result, finish);
    if (finish.parts > 1) {
      ptx::mbarrier_wait(counted(finish.slot), 0);
      const bool merges = ptx::warp_uniform(is_last(finish.slot)) != 0;
      const bool is_first = finish.slot == 1;
      if (!merges || !is_first) send(result, finish);
      if (!merges) return;
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        if (8 * n >= finish.rows) break;
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
    if constexpr (kProblem.features.sinks) add_sinks(result, job);
    store(result, finish);
    if (params.lse != nullptr && group == 0 && lane < 4) store_lse(result, job);
  }

  /// V's factors. Before parts meet: registers are fewest while they do.
  __device__ __forceinline__ void scale_values(Result& result, const Finish& finish) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) result.out[n][i][e] *= finish.value_factors[i][e / 2];
  }

  /// Where this lane's words begin, in a place.
  __device__ __forceinline__ unsigned* words_of_lane(unsigned* place) const {
    return place + group * kWarpWords + 4 * lane;
  }
  static constexpr int kRowWords = kGroups * kWarpWords;  // of eight rows, in a place
  /// From a lane's words to the (row_max, sum) of its two rows.
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
      const float(&row_max)[2] = result.row_max[n];
      const float(&sum)[4] = result.sum[n];
      ptx::st_relaxed_gpu_v4_if(wanted && lane < 4, to + to_state(lane),
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
  __device__ __forceinline__ void receive(Result& result, int n, const Finish& finish) const {
    const int row_lane = lane - 2 * class_of_lane<kClasses>();  // whose rows this lane helps with
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
      wait_for<kCount, kClasses>(batch, finish.others + n * kRowWords + index * pitch(), pitch(), others - index,
                                 wanted);
      add<kCount, kClasses>(row_max, sum, out, batch, last);
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
  __device__ __forceinline__ void add(float (&row_max)[2], float (&sum)[2], float (&out)[kColumns][4],
                                      const Batch<kCount>& batch, const float (&last)[2]) const {
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

  /// Adds the sinks of rows that have seen all of their keys.
  __device__ __forceinline__ void add_sinks(Result& result, const KnownJob& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * (lane % 4) + r;
        const PackedRow at = packed_row(job.first + (row < job.rows ? row : 0), params.group_size);
        const float factor = attention::add_sink(params, job.kv_head * params.group_size + at.head,
                                                 result.row_max[n][r], result.sum[n][r]);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          result.out[n][i][r] *= factor;
          result.out[n][i][2 + r] *= factor;
        }
      }
  }

  /// Writes the output. A sum of zero is that of no keys; NaN stays NaN. Of each 8 x 8 elements, lanes exchange what
  /// makes pairs of columns of one row: lane T then has row T / 4, columns 2 (T % 4) and the next.
  __device__ __forceinline__ void store(const Result& result, const Finish& finish) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (8 * n >= finish.rows) break;
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = result.sum[n][r] == 0.0F ? 0.0F : ptx::rcp_approx_ftz(result.sum[n][r]);
      const bool is_real = 8 * n + lane / 4 < finish.rows;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if constexpr (kQuantised) {
          if (16 * (group * kColumns + i) < kHeadDim)
            store_columns<kProblem.element>(finish.out[n] + 16 * i, result.out[n][i], inverse, is_real);
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const unsigned pair = ptx::movmatrix_trans(ptx::cvt_rn_x2<kProblem.element>(
                result.out[n][i][2 * h] * inverse[0], result.out[n][i][2 * h + 1] * inverse[1]));
            const bool is_column = kHeadDim == kDim || 16 * (group * kColumns + i) + 8 * h < kHeadDim;
            if (is_real && is_column) ptx::st_global(finish.out[n] + 16 * i + 8 * h, pair);
          }
        }
      }
    }
  }

  /// Log-sum-exps, of rows 2 (T % 4) and the next of each group. For the first four lanes.
  __device__ __forceinline__ void store_lse(const Result& result, const KnownJob& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * lane + r;
        if (row >= job.rows) continue;
        const PackedRow at = packed_row(job.first + row, params.group_size);
        if constexpr (has_features(kProblem.features)) {
          const auto& p = params_of(job);
          p.lse[attention::lse_offset(p, job.batch, job.kv_head * p.group_size + at.head, at.query)] =
              attention::log_sum_exp(result.sum[n][r] != 0.0F, result.row_max[n][r], result.sum[n][r]);
        } else {
          const long long head =
              static_cast<long long>(job.batch) * params.heads + job.kv_head * params.group_size + at.head;
          params.lse[head * params.len_q + at.query] =
              attention::log_sum_exp(result.sum[n][r] != 0.0F, result.row_max[n][r], result.sum[n][r]);
        }
      }
  }
};

}  // namespace heed::sm90_decode
