/// A consumer warpgroup of fwd_sm90_fp8: 64 query rows against KV tiles, the last keys first.
///
///     its products        | scores n | values n+1    | scores n-1 | values n    | ..
///     its exponentials               | exponentials n             | exponentials n-1
///
/// Scores and values of one iteration are issued together, and the exponentials of the scores run beside the values of
/// the tile before: FlashAttention-3's overlap within a warpgroup (Shah et al., arXiv 2407.08608, 3.2).
///
/// Tensor cores cut what they add to 13 bits of the sum: of 4,096 equal values 10% were lost on an H200. Every
/// promote_every tiles the output so far is added to sums in shared memory, in bf16, where a thread keeps its own
/// values with the row maximum of that time, and begins at zero (two levels of sums: DeepSeek-V3, arXiv
/// 2412.19437, 3.3.2).
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/maximum.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma_e4m3.cuh"
#include "kernels/sm90/fp8/capped_scores.cuh"
#include "kernels/sm90/fp8/entry_scores.cuh"
#include "kernels/sm90/fp8/exponentials.cuh"
#include "kernels/sm90/fp8/layout.cuh"
#include "kernels/sm90/fp8/turns.cuh"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_fp8 {

template <const Config& kConfig, const Problem& kProblem>
struct Consumer {
  using Smem = Layout<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kKeys = kConfig.block_n;
  static constexpr int kSteps = kKeys / kSlabKeys;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kPromotes = kConfig.promote_every > 0;
  static constexpr bool kCaps = kProblem.features.softcap;
  static constexpr bool kLengths = kProblem.features.lengths;
  static constexpr float kShift = 8.0F;  // log2 of what probabilities are multiplied with

  using AccS = float[kKeys / 2];
  using FragP = unsigned[kSteps][4];

  // ---- state
  attention::ParamsOfEntry<kProblem> params;  // of the launch, or of a Q tile's entry where entries have lengths
  Smem smem;
  int m_warpgroup;
  Turns<kConfig> turns;
  int warp;  // of the warpgroup
  int lane;
  Ring<kConfig.q_stages> query;
  Ring<kConfig.stages> keys;
  Ring<kConfig.stages> values;
  int warpgroup_row;
  float q_factor[2];  // scale of scores for each of the lane's two rows, times log2(e)
  float row_max[2];   // in log2 units of the scaled scores; -inf before the first key
  float row_sum[2];   // of this lane's columns, times 2^8
  float acc_o[kDim / 2];
  [[no_unique_address]] typename attention::KeptIf<kLengths, MaskBounds, 0>::Type entry_bounds;

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Consumer(const ScoreFeatureParams& parameters, const Smem& where, int block_warp)
      : params(parameters),
        smem(where),
        m_warpgroup(block_warp / 4),
        turns{block_warp / 4},
        warp(block_warp % 4),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ int row(int half) const { return warpgroup_row + warp * 16 + lane / 4 + 8 * half; }

  /// Q tiles until there is none.
  __device__ __forceinline__ void run(const ScoreFeatureParams& launch) {
    turns.begin();
#pragma unroll 1
    for (;;) {
      ptx::mbarrier_wait(smem.q_full(query.stage), query.parity);
      unsigned place[4];
      ptx::ld_shared_v4(place, smem.q_tile(query.stage));
      if (static_cast<int>(place[0]) < 0) return;
      run_q_tile(launch, {ptx::warp_uniform(static_cast<int>(place[0])), ptx::warp_uniform(static_cast<int>(place[1])),
                          ptx::warp_uniform(static_cast<int>(place[2]))});
    }
  }

 private:
  __device__ __forceinline__ void run_q_tile(const ScoreFeatureParams& launch, const attention::QTile& tile) {
    begin_entry(launch, tile.batch);
    warpgroup_row = tile.index * block_rows(kConfig) + m_warpgroup * kWarpgroupRows;
    const int kv_head = params.group_size == 1 ? tile.head : tile.head / params.group_size;
    const KvTiles tiles = kv_tiles<kConfig, kProblem>(params, tile.index);
    begin_rows(tile);
    const unsigned long long queries =
        Smem::template descriptor<Smem::kColumns>(smem.queries(query.stage, m_warpgroup));
    if (tiles.first < tiles.end) {
      AccS s;
      FragP p;
      int n = tiles.end - 1;
      float k_factor = k_factor_of(launch, tile.batch, kv_head, n);
      // Loaded ahead of the products, and only where tiles have factors of their own.
      const auto next_factor = [&](int tile_index) {
        if ((kLengths ? launch : params).k_scales.strides.row != 0)
          k_factor = k_factor_of(launch, tile.batch, kv_head, tile_index);
        return k_factor;
      };
      scores_alone(s, queries);
      if constexpr (kCaps) cap_scores(s, k_factor);
      if (n >= tiles.full_end || n < tiles.full_first) mask_scores(s, n * kKeys);
      float factor[2];
      probabilities<false>(s, factor, k_factor);
      round_to_operand(p, s);
#pragma unroll 1
      for (--n; n >= tiles.first && n >= tiles.full_end; --n) step<true>(s, p, queries, n, next_factor(n));
#pragma unroll 1
      for (; n >= tiles.first && (!kBegins || n >= tiles.full_first); --n)
        step<false>(s, p, queries, n, next_factor(n));
      if constexpr (kBegins)
#pragma unroll 1
        for (; n >= tiles.first; --n) step<true>(s, p, queries, n, next_factor(n));
      release(smem.q_empty(query.stage));
      values_alone(p);
      if constexpr (kPromotes) add_sums<false>();
    } else {
      release(smem.q_empty(query.stage));
    }
    query.advance();
    begin_entry(launch, tile.batch);
    write(tile, kv_head);
  }

  /// Parameters that change from entry to entry are not kept over the loops over keys, but for the bounds of masks.
  __device__ __forceinline__ void begin_entry(const ScoreFeatureParams& launch, int entry) {
    if constexpr (kLengths) {
      params = attention::params_of_entry<kProblem>(launch, entry);
      entry_bounds = mask_bounds(params);
    }
  }

  __device__ __forceinline__ void begin_rows(const attention::QTile& tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const TensorScales& s = params.q_scales;
      const int at = min(row(h), params.len_q - 1);
      q_factor[h] = s.at[scale_index(s, tile.batch, tile.head, at)] * params.scale * attention::kLog2e;
      row_max[h] = -attention::kInfinity;
      row_sum[h] = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_o[i] = 0.0F;
    if constexpr (kPromotes) {
      ptx::st_shared_v2(sums_max(), -attention::kInfinity, -attention::kInfinity);
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) ptx::st_shared_v4(sums(i), 0U);
    }
  }

  /// No product is in flight.
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_o[i] *= factor[i / 2 % 2];
  }

  /// Eight of this thread's sums: those of acc_o[8 i] on.
  __device__ __forceinline__ unsigned sums(int i) const {
    return smem.sums(m_warpgroup, 32 * warp + lane) + 16 * kWarpgroupThreads * i;
  }
  /// The row maxima that the sums are below.
  __device__ __forceinline__ unsigned sums_max() const { return smem.sums_max(m_warpgroup, 32 * warp + lane); }
  /// Output and sums together, below row_max: in the sums where kKeeps, else in the output. No product is in flight.
  template <bool kKeeps>
  __device__ __forceinline__ void add_sums() {
    float factor[2];
    ptx::ld_shared_v2(factor, sums_max());
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = attention::rescale_factor(factor[h], row_max[h]);
    if constexpr (kKeeps) ptx::st_shared_v2(sums_max(), row_max[0], row_max[1]);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      unsigned x[4];
      ptx::ld_shared_v4(x, sums(i));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* acc = acc_o + 8 * i + 2 * j;
        acc[0] = fmaf(ptx::unpack_low<Element::bf16>(x[j]), factor[j % 2], acc[0]);
        acc[1] = fmaf(ptx::unpack_high<Element::bf16>(x[j]), factor[j % 2], acc[1]);
        x[j] = ptx::cvt_rn_x2<Element::bf16>(acc[0], acc[1]);
        if constexpr (kKeeps) acc[0] = acc[1] = 0.0F;
      }
      if constexpr (kKeeps) ptx::st_shared_v4(sums(i), x[0], x[1], x[2], x[3]);
    }
  }

  /// The factor of the keys of tile n, which lie in one block of factors.
  __device__ __forceinline__ float k_factor_of(const ScoreFeatureParams& launch, int batch, int kv_head, int n) const {
    // Of rows of ragged tensors there are none, so that those of the launch are each entry's.
    if constexpr (kLengths) return launch.k_scales.at[scale_index(launch.k_scales, batch, kv_head, n * kKeys)];
    return params.k_scales.at[scale_index(params.k_scales, batch, kv_head, n * kKeys)];
  }

  /// This warp has read what the barrier's stage holds.
  __device__ __forceinline__ void release(unsigned barrier) const {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void gemm_qk(AccS& s, unsigned long long queries) const {
    // Else the descriptor of each step is kept over the loops, in registers that there are not.
    if constexpr (entries_differ(kProblem.features)) {
      unsigned address = static_cast<unsigned>(queries);
      opaque(address);
      queries = (queries & ~0xffffffffULL) | address;
    }
    const unsigned long long k = Smem::template descriptor<Smem::kColumns>(smem.keys(keys.stage));
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i)
      ptx::wgmma_e4m3_ss<kKeys>(s, queries + Smem::step(i, Smem::kQBox), k + Smem::step(i, Smem::kKBox), i > 0);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void gemm_pv(const FragP& p) {
    const unsigned long long v = Smem::template descriptor<kSlabKeys>(smem.values(values.stage));
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      ptx::wgmma_e4m3_rs<kDim>(acc_o, p[i], v + static_cast<unsigned long long>(i * kSlabKeys * kDim >> 4), true);
    ptx::wgmma_commit_group();
  }

  /// The first of a Q tile.
  __device__ __forceinline__ void scores_alone(AccS& s, unsigned long long queries) {
    ptx::mbarrier_wait(smem.k_full(keys.stage), keys.parity);
    ptx::wgmma_fence();
    gemm_qk(s, queries);
    ptx::wgmma_wait_group(0);
    keep_live(s);
    release(smem.k_empty(keys.stage));
    keys.advance();
  }
  /// The last.
  __device__ __forceinline__ void values_alone(const FragP& p) {
    ptx::mbarrier_wait(smem.v_full(values.stage), values.parity);
    ptx::wgmma_fence();
    gemm_pv(p);
    ptx::wgmma_wait_group(0);
    keep_live(acc_o);
    release(smem.v_empty(values.stage));
    values.advance();
  }

  /// Scores of tile n and values of the tile after it, whose probabilities are `p`; `p` becomes those of tile n.
  template <bool kMasked>
  __device__ __forceinline__ void step(AccS& s, FragP& p, unsigned long long queries, int n, float k_factor) {
    ptx::mbarrier_wait(smem.k_full(keys.stage), keys.parity);
    turns.wait_for_products();
    ptx::wgmma_fence();
    gemm_qk(s, queries);
    ptx::mbarrier_wait(smem.v_full(values.stage), values.parity);
    gemm_pv(p);
    turns.let_products();
    ptx::wgmma_wait_group(1);
    keep_live(s);
    release(smem.k_empty(keys.stage));
    keys.advance();
    if constexpr (kCaps) cap_scores(s, k_factor);
    if constexpr (kMasked) mask_scores(s, n * kKeys);
    float factor[2];
    probabilities<true>(s, factor, k_factor);
    ptx::wgmma_wait_group(0);
    keep_live(acc_o);
    release(smem.v_empty(values.stage));
    values.advance();
    // Row maxima grow in the first tiles of a row alone.
    if (__any_sync(0xffffffffU, factor[0] != 1.0F || factor[1] != 1.0F)) rescale(factor);
    round_to_operand(p, s);
    // The scores' registers are free here, without which ptxas spills at head dims 128 and 256.
    if constexpr (kPromotes)
      if (n % kConfig.promote_every == 0) add_sums<true>();
  }

  /// What products of each of the lane's rows are multiplied with. Two factors whose product is beyond fp32 leave a
  /// score of zero zero.
  __device__ __forceinline__ float scale_of(int h, float k_factor) const {
    return ptx::min_nan(q_factor[h] * k_factor, attention::kLargest);
  }
  /// Products become scores in units of log2, capped where the launch has a softcap.
  __device__ __forceinline__ void cap_scores(AccS& s, float k_factor) const {
    const float scale[2] = {scale_of(0, k_factor), scale_of(1, k_factor)};
    sm90_fp8::cap_scores(s, scale, params.softcap);
  }

  /// Sets scores of keys that a row does not see to -inf.
  __device__ __forceinline__ void mask_scores(AccS& s, int first_key) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int from = first_key + 2 * (lane % 4);
      if constexpr (kLengths) {
        hide_keys<kProblem.mask>(s, h, row(h), from, entry_bounds);
        continue;
      }
      if constexpr (kBegins)
        attention::hide_columns_before(s, h,
                                       hidden_keys(kProblem.mask, row(h), params.left_offset, params.len_k) - from);
      attention::hide_columns_from(s, h, visible_keys(kProblem.mask, row(h), params.right_offset, params.len_k) - from);
    }
  }

  /// Scores become probabilities below the row maxima so far, times 2^8. What was summed before is to be multiplied
  /// with `factor`: the sums are, the output is left to do.
  /// @tparam kBesideValues products of values are in flight
  template <bool kBesideValues>
  __device__ __forceinline__ void probabilities(AccS& s, float (&factor)[2], float k_factor) {
    float scale[2];
    float negative[2];
    float total[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = kCaps ? 1.0F : scale_of(h, k_factor);
      const float next = grown_row_max<kConfig.exp2>(row_max[h], s, h, scale[h]);
      const float finite = attention::finite_row_max(next);
      // A score beyond fp32 shows as NaN: as a factor of fmaf it is not rounded to infinity, and would be hidden.
      negative[h] = next < attention::kInfinity ? kShift - finite : next - next;
      factor[h] = ptx::ex2_approx_ftz(row_max[h] - finite);
      row_max[h] = next;
    }
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* e = s + 4 * t + 2 * h;
#pragma unroll
        for (int i = 0; i < 2; ++i) e[i] = exp2_8_bits<kConfig.exp2>(fmaf(e[i], scale[h], negative[h]), 2 * t + i);
        total[h] = t == 0 ? e[0] + e[1] : total[h] + (e[0] + e[1]);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] = fmaf(row_sum[h], factor[h], total[h]);
    if constexpr (kBesideValues) stay_in_front(total);
  }

  /// Rows of O and their log-sum-exps.
  __device__ __forceinline__ void write(const attention::QTile& tile, int kv_head) {
    const TensorScales& v = params.v_scales;
    const float* v_factor = v.at + scale_index(v, tile.batch, kv_head, 0);
    const int quarter = lane % 4;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_sum[h] = tile::quad_sum(row_sum[h]);
      [[maybe_unused]] float factor = 1.0F;
      if constexpr (kProblem.features.sinks) {
        float below = row_max[h] - kShift;  // what the sums are probabilities below
        factor = attention::add_sink(params, tile.head, below, row_sum[h]);
        row_max[h] = below + kShift;
      }
      inverse[h] = attention::inverse_or_zero(row_sum[h]);
      if (row_sum[h] != row_sum[h]) inverse[h] = row_sum[h];  // NaN
      if constexpr (kProblem.features.sinks) inverse[h] *= factor;
    }
    if (v.channel == 0) {
      inverse[0] *= v_factor[0];
      inverse[1] *= v_factor[0];
    } else {
#pragma unroll
      for (int t = 0; t < kDim / 8; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float factor = v_factor[8 * t + 2 * quarter + i];
          acc_o[4 * t + i] *= factor;
          acc_o[4 * t + 2 + i] *= factor;
        }
    }
    auto* o = static_cast<unsigned short*>(params.o) + tile.batch * params.o_strides.batch +
              tile.head * params.o_strides.head;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool inside = row(h) < params.len_q;
      unsigned short* to = o + row(h) * params.o_strides.row;
#pragma unroll
      for (int t = 0; t < kDim / 8; t += 4) {
        unsigned x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] = ptx::cvt_rn_x2<kProblem.element>(acc_o[4 * (t + i) + 2 * h] * inverse[h],
                                                  acc_o[4 * (t + i) + 2 * h + 1] * inverse[h]);
        tile::transpose_quad(x, quarter);
        if (inside) ptx::st_global_v4(to + 8 * (t + quarter), x);
      }
      if (inside && params.lse != nullptr && quarter == 0)
        params.lse[attention::lse_offset(params, tile.batch, tile.head, row(h))] =
            attention::log_sum_exp(row_sum[h] != 0.0F, row_max[h] - kShift, row_sum[h]);
    }
  }
};

}  // namespace heed::sm90_fp8
