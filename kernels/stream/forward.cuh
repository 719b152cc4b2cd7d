/// fwd_sm90_stream: fused attention for Hopper where the products and exponentials of a launch take longer than
/// starting it. A producer keeps a ring of key tiles full; row groups run through them, last tile first:
///
///   row group 0     | scores n-1, values n | exponentials n-1 | scores n-2, values n-1 | exponentials n-2 | ..
///   row group 1     .. exponentials n      | scores n-1, values n | exponentials n-1   | ..
///                     the tensor cores always have some row group's products (Overlap::nothing)
///
///   one row group   | exponentials n-1                        | exponentials n-2       | ..
///     its products  | values n, scores n-2                    | values n-1, scores n-3 | ..   (Overlap::products)
///
///   a row group     |              exponentials n-1 |              exponentials n-2 | ..
///     its products  | scores n-1 | values n         | scores n-2 | values n-1       | ..         (Overlap::values)
///
/// Tiles that not every row of the row group sees whole are the first of its order and take the exact maximum. The
/// tiles after them need neither mask nor, unless the reference is exact, maximum.
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691), asynchronous products beside exponentials and
/// registers that move from producer to consumers are FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/stream/copies.cuh"
#include "kernels/stream/epilogue.cuh"
#include "kernels/stream/softmax.cuh"
#include "kernels/stream/warp_scores.cuh"

namespace heed::stream {

template <Config kConfig, Problem kProblem>
struct Forward : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::kDim, Base::kKeys, Base::kSteps, Base::kAhead, Base::kPlan, Base::kMostSum, Base::kSumsRounded;
  using Base::multiply_keys, Base::multiply_values, Base::multiply_both, Base::begin_products, Base::end_products,
      Base::begin_turns, Base::end_turns;
  using Base::params, Base::place, Base::lane, Base::warp, Base::row_group, Base::key_group, Base::group_row,
      Base::scale_log2, Base::turn, Base::out, Base::reference, Base::sum;
  using Base::row, Base::hide_keys, Base::exact_probabilities, Base::rescale, Base::exact_softmax,
      Base::first_keys_softmax, Base::first_softmax, Base::optimistic_softmax, Base::guessed_softmax;
  using Base::wait_for_turn, Base::wait_for_next_turn, Base::look_ahead, Base::end_turn, Base::pass_turn;
  using typename Base::Scores, typename Base::Probabilities;

  // ---- compile-time facts
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  static constexpr bool kVotesAtOnce = kConfig.vote == Vote::at_once;

  // ---- state
  Cursor<kConfig.query_stages> query;

  using Base::Base;

  // --------------------------------------------------------------------------------------------------- key tiles

  __device__ __forceinline__ void scores_alone(Scores& s, unsigned long long queries) {
    wait_for_turn();
    begin_products();
    ptx::wgmma_fence();
    multiply_keys(s, queries);
    ptx::wgmma_commit_group();
    end_products();
    ptx::wgmma_wait_group(0);
    ptx::pin(s);
    end_turn();
  }

  /// Values of the tile before and scores of the next, waited for.
  __device__ __forceinline__ void both_products(Scores& s, unsigned long long queries, const Probabilities& p) {
    wait_for_next_turn();
    begin_products();
    multiply_both(s, queries, p);
    end_products();
    ptx::wgmma_wait_group(0);
    ptx::pin(s);
    ptx::pin(out);
    end_turn();
    look_ahead(turn);
  }

  __device__ __forceinline__ void values_alone(const Probabilities& p) {
    wait_for_turn();
    begin_products();
    ptx::wgmma_fence();
    multiply_values(p);
    ptx::wgmma_commit_group();
    end_products();
    ptx::wgmma_wait_group(0);
    ptx::pin(out);
    end_turn();
  }

  /// The scores of the next tile, and its exponentials beside the values of the tile before, whose probabilities are
  /// `p`. They take the scores' place: what else would need the registers of both is to have the scores at hand where
  /// they must be taken again, which happens so rarely that they are multiplied again.
  __device__ __forceinline__ void exponentials_beside_values(Scores& s, unsigned long long queries, Probabilities& p) {
    wait_for_turn();
    begin_products();
    ptx::wgmma_fence();
    multiply_keys(s, queries);
    ptx::wgmma_commit_group();
    multiply_values(p);
    ptx::wgmma_commit_group();
    end_products();
    ptx::wgmma_wait_group(1);
    ptx::pin(s);
    float total[2];
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* e = s + 4 * t + 2 * h;
#pragma unroll
        for (int i = 0; i < 2; ++i) e[i] = ptx::ex2_approx_ftz(fmaf(e[i], scale_log2, -reference[h]));
        total[h] = t == 0 ? e[0] + e[1] : total[h] + (e[0] + e[1]);
      }
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    if (__any_sync(0xffffffffU, !fits)) {
      ptx::wgmma_wait_group(0);
      ptx::pin(out);
      scores_of_warp<kProblem, kKeys>(s,
                                      place.queries(query.stage) + row_group * kBoxes * kGroupRows * tile::kBoxRowBytes,
                                      place.keys(key_group, turn.stage), kPlan.box);
      exact_softmax(p, s);
    } else {
      // Behind the branch, over which ptxas moves no wait: it would put one in front of most exponentials.
      ptx::wgmma_wait_group(0);
      ptx::pin(out);
      ptx::pin(s);
      if constexpr (!kSumsRounded) {
        sum[0] += total[0];
        sum[1] += total[1];
      }
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[k][i] = ptx::cvt_rn_x2<kProblem.element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
          // Here, though beside no product: rounded in place, beside the values, one register too many is live.
          if constexpr (kSumsRounded)
            sum[i % 2] += ptx::unpack_low<kProblem.element>(p[k][i]) + ptx::unpack_high<kProblem.element>(p[k][i]);
        }
    }
    end_turn();
  }

  /// Tiles n, n - 1, .. first of this key group; those that reach past seen_by_all have keys that some row does not
  /// see.
  __device__ __forceinline__ void run_tiles(int n, int first, int seen_by_all, unsigned long long queries) {
    if constexpr (kConfig.overlap != Overlap::products) {
      Scores s;
      Probabilities p;
      scores_alone(s, queries);
      look_ahead(turn);
      first_softmax(p, s, n, (n + 1) * kKeys > seen_by_all);
#pragma unroll 1
      for (; n > first && n * kKeys > seen_by_all; --n) {
        both_products(s, queries, p);
        hide_keys(s, (n - 1) * kKeys);
        exact_softmax(p, s);
      }
#pragma unroll 1
      for (; n > first; --n) {
        if constexpr (kConfig.overlap == Overlap::values) {
          exponentials_beside_values(s, queries, p);
          continue;
        }
        both_products(s, queries, p);
        if (kConfig.reference == Reference::exact || !optimistic_softmax(p, s)) exact_softmax(p, s);
      }
      release_queries();
      values_alone(p);
    } else {
      Scores s[2];
      Probabilities p[2];
      scores_alone(s[0], queries);
      look_ahead(turn);
      const bool masked = (n + 1) * kKeys > seen_by_all;
      if (n == first) {
        first_softmax(p[0], s[0], n, masked);
        release_queries();
        pass_turn();  // between a tile's scores and its values
        values_alone(p[0]);
        return;
      }
      const auto hides = [&](int tile) { return kProblem.causal && (tile + 1) * kKeys > seen_by_all; };
      overlapped<false, true>(s[1], p[0], s[0], p[1], queries, n, masked);
#pragma unroll 1
      for (--n; n > first + 1; n -= 2) {
        overlapped<true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n));
        overlapped<true, true>(s[1], p[0], s[0], p[1], queries, n - 1, hides(n - 1));
      }
      // One or two are left. Two ends cost nothing; copied to the same registers, probabilities would be what ptxas
      // serialises products for (C7513).
      if (n == first) {
        overlapped<true, false>(s[0], p[1], s[1], p[0], queries, n, hides(n));
        release_queries();
        values_alone(p[1]);
      } else {
        overlapped<true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n));
        overlapped<true, false>(s[1], p[0], s[0], p[1], queries, first, hides(first));
        release_queries();
        values_alone(p[0]);
      }
    }
  }

  /// The exponentials of tile n's scores `s` to `p`, while the values of the tile before, with probabilities
  /// `p_before`, and the scores of the next one are multiplied. Nothing stays in flight: ptxas serialises all products
  /// of a kernel that keeps one in flight over a loop's back edge.
  template <bool kBefore, bool kMore>
  __device__ __forceinline__ void overlapped(Scores& next, Probabilities& p, Scores& s, const Probabilities& p_before,
                                             unsigned long long queries, int n, bool masked) {
    wait_for_next_turn();
    if constexpr (kAhead && kMore) {
      Cursor<kConfig.stages> following = turn;
      following.advance();
      look_ahead(following);
    }
    begin_products();
    if constexpr (kBefore && kMore) {
      multiply_both(next, queries, p_before);
    } else {
      ptx::wgmma_fence();
      if constexpr (kBefore) multiply_values(p_before);
      if constexpr (kMore) multiply_keys(next, queries);
      ptx::wgmma_commit_group();
    }
    end_products();
    float factor[2] = {1.0F, 1.0F};
    constexpr bool kFirst = !kBefore && kConfig.reference == Reference::first_keys;
    if (kFirst && masked) hide_keys(s, n * kKeys);
    const bool exact =
        kFirst ? !first_keys_softmax(p, s) : !kBefore || masked || (kVotesAtOnce && !optimistic_softmax(p, s));
    bool misled = false;
    if (exact) {
      if (!kFirst && masked) hide_keys(s, n * kKeys);
      exact_probabilities(p, factor, s);
    } else if constexpr (!kVotesAtOnce && !kFirst) {
      misled = guessed_softmax(p, s);
    }
    ptx::wgmma_wait_group(0);
    ptx::pin(out);
    if constexpr (kMore) ptx::pin(next);
    end_turn();
    if (kBefore && exact) rescale(factor);
    if (!kVotesAtOnce && misled) exact_softmax(p, s);
  }

  // --------------------------------------------------------------------------------------------------- row tiles

  __device__ __forceinline__ void release_queries() const {
    if constexpr (!kOneTile)
      if (lane == 0) ptx::mbarrier_arrive(place.queries_freed(query.stage));
  }

  __device__ __forceinline__ void run_row_tile(const RowTile& at, const Target& target) {
    group_row = group_tile(kConfig, at.index, row_group, (params.len_q + kGroupRows - 1) / kGroupRows) * kGroupRows;
    const int keys_end =
        visible_keys(kProblem.causal, last_row(kConfig, at.index, params.len_q), params.causal_offset, params.len_k);
    const Range tiles = tiles_of_group(kConfig, keys_end, key_group);
    const int seen_by_all = visible_keys(kProblem.causal, group_row, params.causal_offset, params.len_k);
    const int seen_by_any = group_row < params.len_q
                                ? visible_keys(kProblem.causal, min(group_row + kGroupRows, params.len_q) - 1,
                                               params.causal_offset, params.len_k)
                                : 0;
    const int end = min(tiles.end, (seen_by_any + kKeys - 1) / kKeys);
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) out[i] = 0.0F;
    reference[0] = reference[1] = -__int_as_float(0x7f800000);
    sum[0] = sum[1] = 0.0F;
    // Tiles that only other row groups see.
#pragma unroll 1
    for (int n = end > tiles.first ? tiles.end - end : turns_of(kConfig, tiles.end - tiles.first); n > 0; --n)
      pass_turn();
    const unsigned long long queries =
        tile::matrix_descriptor(place.queries(query.stage) + row_group * kBoxes * kGroupRows * tile::kBoxRowBytes, 16);
    if (end > tiles.first)
      run_tiles(end - 1, tiles.first, seen_by_all, queries);
    else
      release_queries();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
    }
    Epilogue<kConfig, kProblem>{target, place.shared, {key_group, row_group, warp, lane, row(0), at.head, at.batch}}
        .run(out, reference, sum);
  }

  __device__ __forceinline__ void consume() {
    const Target target = {static_cast<unsigned short*>(params.o), params.lse, params.o_strides, params.len_q,
                           params.heads};
    ptx::bar_sync(1, consumer_threads(kConfig) + 32);
    begin_turns();
    if constexpr (kOneTile) {
      const int index = kProblem.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
      ptx::mbarrier_wait(place.queries_barrier(0, row_group), 0);
      run_row_tile({index, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)}, target);
    } else {
#pragma unroll 1
      for (;;) {
        ptx::mbarrier_wait(place.queries_barrier(query.stage, row_group), query.parity);
        unsigned words[4];
        ptx::ld_shared_v4(words, place.row_tile(query.stage));
        const RowTile at = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1]), ptx::warp_uniform(words[2])};
        if (at.index < 0) break;
        run_row_tile(at, target);
        query.advance();
      }
    }
    end_turns();
  }
};

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <Config kConfig, Problem kProblem>
__device__ __forceinline__ void forward(const ForwardParams& params, const TensorMaps& maps, char* dynamic_shared) {
  const Layout<kConfig, kProblem> place{ptx::shared_address(dynamic_shared)};
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  constexpr int kConsumerWarps = consumer_threads(kConfig) / 32;
  if (warp >= kConsumerWarps) {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (warp != kConsumerWarps) return;
    // In a register: ptxas would work the address out again for every copy, from a special register each time.
    const Layout<kConfig, kProblem> own{static_cast<unsigned>(ptx::warp_uniform(place.shared))};
    const Copies<kConfig, kProblem> copies{params, maps, own};
    if (ptx::elect_one()) copies.start();
    __syncwarp();
    ptx::bar_arrive(1, consumer_threads(kConfig) + 32);
    if (ptx::elect_one()) copies.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    Forward<kConfig, kProblem>(params, place, warp).consume();
  }
}

}  // namespace heed::stream
