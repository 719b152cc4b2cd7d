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

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/stream/copies.cuh"
#include "kernels/stream/epilogue.cuh"
#include "kernels/stream/warp_scores.cuh"

namespace heed::stream {

template <Config kConfig, Problem kProblem>
struct Forward {
  // ---- compile-time facts
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr int kKeys = kConfig.tile_keys;
  static constexpr int kSteps = kKeys / kStepKeys;
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  static constexpr bool kAhead = kConfig.arrival == Arrival::ahead;
  static constexpr bool kCounted = kConfig.upkeep == Upkeep::conditions;
  using Place = Layout<kConfig, kProblem>;
  static constexpr SharedPlan kPlan = Place::kPlan;
  static constexpr bool kVotesAtOnce = kConfig.vote == Vote::at_once;
  static constexpr bool kInOrder = kConfig.turns == Turns::in_order;
  // The largest probability of the tiles a reference was taken from is 2^kMargin: fp16 has less room below one than
  // above. The sum of a lane's columns of one tile stays below kMostSum, or fp16 probabilities may have overflowed;
  // bf16 ones cannot, but outputs of many large ones could.
  static constexpr float kMargin = kProblem.element == Element::bf16 ? 0.0F : 8.0F;
  static constexpr float kMostSum = kProblem.element == Element::bf16 ? 1e9F : 3e4F;
  // Of bf16 the rounded probabilities are summed: where the reference is not the maximum, one that outweighs all others
  // is no power of two, and rounding it alone makes a row wrong by 0.5%.
  static constexpr bool kSumsRounded = kProblem.element == Element::bf16;

  using Scores = float[kKeys / 2];            // (64, tile keys), accumulator fragments
  using Probabilities = unsigned[kSteps][4];  // the same, as A operands of a step each

  // ---- state of a consumer thread
  const ForwardParams& params;
  Place place;
  int lane;
  int warp;  // within the row group
  int row_group;
  int key_group;
  int group_row;  // first of the row group
  float scale_log2;
  Cursor<kConfig.stages> turn;  // the stage of the next products
  unsigned first_keys;          // low words of the descriptors of the key group's first stage (Upkeep::conditions)
  unsigned first_values;
  unsigned ready = 0;   // the stage at `turn` is known to have arrived (Arrival::ahead)
  float out[kDim / 2];  // (64, kDim): two rows a lane
  float reference[2];   // in log2 units of the scaled scores; -inf before the first key
  float sum[2];         // of this lane's columns

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Forward(const ForwardParams& parameters, const Place& where, int block_warp)
      : params(parameters),
        place(where),
        lane(threadIdx.x % 32),
        warp(block_warp % 4),
        // Constants keep addresses out of vector registers.
        row_group(kConfig.row_groups == 1 ? 0 : block_warp / 4 % kConfig.row_groups),
        key_group(kConfig.key_groups == 1 ? 0 : block_warp / 4 / kConfig.row_groups),
        scale_log2(parameters.scale * 1.44269504F) {
    if constexpr (kCounted) {
      first_keys = static_cast<unsigned>(tile::matrix_descriptor(place.keys(key_group, 0), 16));
      first_values = static_cast<unsigned>(tile::matrix_descriptor(place.values(key_group, 0), kPlan.box));
    }
  }

  // ---------------------------------------------------------------------------------------------------- products

  __device__ __forceinline__ void multiply_keys(Scores& into, unsigned long long queries) const {
    const unsigned long long k = keys();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) multiply_keys_step(into, queries, k, i);
  }
  __device__ __forceinline__ static void multiply_keys_step(Scores& into, unsigned long long q, unsigned long long k,
                                                            int i) {
    ptx::wgmma_ss<kProblem.element, kKeys>(
        into, q + tile::descriptor_advance(i / 4 * kGroupRows * tile::kBoxRowBytes + i % 4 * 32),
        k + tile::descriptor_advance(i / 4 * kPlan.box + i % 4 * 32), i != 0);
  }
  __device__ __forceinline__ unsigned long long keys() const {
    if constexpr (kCounted) return counted(first_keys, turn.stage);
    return tile::matrix_descriptor(place.keys(key_group, turn.stage), 16);
  }
  __device__ __forceinline__ unsigned long long values() const {
    if constexpr (kCounted) return counted(first_values, turn.stage);
    return tile::matrix_descriptor(place.values(key_group, turn.stage), kPlan.box);
  }
  /// A descriptor's high word is the same for all operands; stages count into its low one.
  __device__ __forceinline__ static unsigned long long counted(unsigned first, int stage) {
    constexpr unsigned long long kHigh = tile::descriptor_layout(0) >> 32 << 32;
    return kHigh | (first + stage * static_cast<unsigned>(tile::descriptor_advance(kPlan.operand)));
  }
  __device__ __forceinline__ void multiply_values_step(const Probabilities& p, unsigned long long v, int i) {
    ptx::wgmma_rs<kProblem.element, kDim>(out, p[i], v + tile::descriptor_advance(i * kStepKeys * tile::kBoxRowBytes),
                                          true);
  }
  __device__ __forceinline__ void multiply_values(const Probabilities& p) {
    const unsigned long long v = values();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply_values_step(p, v, i);
  }

  /// Both products as one group, in the order that the config asks for.
  __device__ __forceinline__ void multiply_both(Scores& into, unsigned long long queries, const Probabilities& p) {
    constexpr int kBoth = kDim / 16 + kSteps;
    const unsigned long long k = keys();
    const unsigned long long v = values();
    ptx::wgmma_fence();
    int of_keys = 0;
    int of_values = 0;
#pragma unroll
    for (int i = 0; i < kBoth; ++i) {
      const bool values_next =
          of_keys == kDim / 16 ||
          (of_values < kSteps && (kConfig.product_order == ProductOrder::values_first ||
                                  (kConfig.product_order == ProductOrder::alternating && i % 2 == 0)));
      if (values_next)
        multiply_values_step(p, v, of_values++);
      else
        multiply_keys_step(into, queries, k, of_keys++);
    }
    ptx::wgmma_commit_group();
  }

  /// In front of and behind the products of every turn, also of those that a row group passes: with Turns::in_order the
  /// row groups of a key group go one after the other, as FlashAttention-3's two warpgroups do (arXiv 2407.08608, 3.1).
  /// Barriers 8 and up, one a row group: it waits there, the one before it arrives.
  __device__ __forceinline__ void begin_products() const {
    if constexpr (kInOrder) ptx::bar_sync(order_barrier(row_group), 2 * kGroupThreads);
  }
  __device__ __forceinline__ void end_products() const {
    if constexpr (kInOrder) ptx::bar_arrive(order_barrier((row_group + 1) % kConfig.row_groups), 2 * kGroupThreads);
  }
  __device__ __forceinline__ int order_barrier(int of) const { return 8 + key_group * kConfig.row_groups + of; }
  /// The last row group lets the first begin, and the first takes its last arrival at the end.
  __device__ __forceinline__ void begin_turns() const {
    if (kInOrder && row_group == kConfig.row_groups - 1) end_products();
  }
  __device__ __forceinline__ void end_turns() const {
    if (kInOrder && row_group == 0) begin_products();
  }

  __device__ __forceinline__ void wait_for_turn() const {
    ptx::mbarrier_wait(place.ring_barrier(key_group, turn.stage), turn.parity);
  }
  /// The same, where look_ahead() may have asked already.
  __device__ __forceinline__ void wait_for_next_turn() const {
    if constexpr (kAhead)
      ptx::mbarrier_wait_unless(ready, place.ring_barrier(key_group, turn.stage), turn.parity);
    else
      wait_for_turn();
  }
  /// Asks after the turn that will be next. There may be none: then no one will look at the answer.
  __device__ __forceinline__ void look_ahead(const Cursor<kConfig.stages>& next) {
    if constexpr (kAhead) ready = ptx::mbarrier_test(place.ring_barrier(key_group, next.stage), next.parity);
  }
  /// What was multiplied last may be overwritten.
  __device__ __forceinline__ void end_turn() {
    release(place.ring_freed(key_group, turn.stage));
    turn.advance();
  }
  __device__ __forceinline__ void pass_turn() {
    wait_for_turn();
    begin_products();
    end_products();
    end_turn();
  }
  __device__ __forceinline__ void release(unsigned freed) const {
    if constexpr (kCounted) {
      ptx::mbarrier_arrive_if(lane == 0, freed);
    } else {
      if (lane == 0) ptx::mbarrier_arrive(freed);
    }
  }

  // ----------------------------------------------------------------------------------------------------- softmax

  __device__ __forceinline__ int row(int half) const { return group_row + warp * 16 + lane / 4 + 8 * half; }

  /// Sets scores of keys that a row does not see to -inf.
  __device__ __forceinline__ void hide_keys(Scores& s, int first_key) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int seen = visible_keys(kProblem.causal, row(h), params.causal_offset, params.len_k);
      const int end = seen - first_key - 2 * (lane % 4);
#pragma unroll
      for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * t + i >= end) s[4 * t + 2 * h + i] = -__int_as_float(0x7f800000);
    }
  }

  /// Probabilities below the given references and their sums in this lane's columns.
  __device__ __forceinline__ void exponentials(Probabilities& p, float (&total)[2], const Scores& s,
                                               const float (&negative)[2]) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      float e[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = ptx::ex2_approx_ftz(fmaf(s[8 * k + i], scale_log2, negative[i / 2 % 2]));
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = ptx::cvt_rn_x2<kProblem.element>(e[2 * i], e[2 * i + 1]);
      if constexpr (kSumsRounded) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          e[2 * i] = ptx::unpack_low<kProblem.element>(p[k][i]);
          e[2 * i + 1] = ptx::unpack_high<kProblem.element>(p[k][i]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float of_step = (e[2 * h] + e[2 * h + 1]) + (e[2 * h + 4] + e[2 * h + 5]);
        total[h] = k == 0 ? of_step : total[h] + of_step;
      }
    }
  }

  /// The reference of a row by the maximum of a tile's first kUsed keys.
  template <int kUsed>
  __device__ __forceinline__ float reference_of(const Scores& s, int half) const {
    float maximum = fmaxf(s[2 * half], s[2 * half + 1]);
#pragma unroll
    for (int t = 1; t < kUsed / 8; ++t) maximum = fmaxf(maximum, fmaxf(s[4 * t + 2 * half], s[4 * t + 2 * half + 1]));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
    return fmaf(maximum, scale_log2, -kMargin);
  }

  /// Raises the references to this tile's maxima where those are larger, and takes the probabilities. What was summed
  /// below the old references is to be multiplied with `factor`: the sums are, the output is left to rescale.
  __device__ __forceinline__ void exact_probabilities(Probabilities& p, float (&factor)[2], const Scores& s) {
    float negative[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(reference[h], reference_of<kKeys>(s, h));
      negative[h] = -attention::finite_reference(next);
      factor[h] = ptx::ex2_approx_ftz(reference[h] + negative[h]);
      reference[h] = next;
    }
    float total[2];
    exponentials(p, total, s, negative);
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = fmaf(sum[h], factor[h], total[h]);
  }

  /// No product is in flight.
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) out[i] *= factor[i / 2 % 2];
  }

  __device__ __forceinline__ void exact_softmax(Probabilities& p, const Scores& s) {
    float factor[2];
    exact_probabilities(p, factor, s);
    rescale(factor);
  }

  /// Probabilities of the first tile below references of its first 16 keys, which take a quarter of the instructions of
  /// all maxima (0.1 of 6.7 us at b1h8l1024d64 on an H200); false where that will not do, without references again.
  __device__ __forceinline__ bool first_keys_softmax(Probabilities& p, const Scores& s) {
    reference[0] = reference_of<kStepKeys>(s, 0);
    reference[1] = reference_of<kStepKeys>(s, 1);
    if (optimistic_softmax(p, s)) return true;
    reference[0] = reference[1] = -__int_as_float(0x7f800000);
    return false;
  }

  /// Of the first tile, some of whose keys may be hidden.
  __device__ __forceinline__ void first_softmax(Probabilities& p, Scores& s, int n, bool masked) {
    if (masked) hide_keys(s, n * kKeys);
    if (kConfig.reference != Reference::first_keys || !first_keys_softmax(p, s)) exact_softmax(p, s);
  }

  /// Probabilities below the references so far; false where they may have left the range of 16 bits, or where a row
  /// has no reference yet (its probabilities are infinite then): nothing has been added up in that case.
  __device__ __forceinline__ bool optimistic_softmax(Probabilities& p, const Scores& s) {
    const float negative[2] = {-reference[0], -reference[1]};
    float total[2];
    exponentials(p, total, s, negative);
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    if (__any_sync(0xffffffffU, !fits)) return false;
    sum[0] += total[0];
    sum[1] += total[1];
    return true;
  }

  /// The same without a branch: whether they may have left the range. ptxas moves no wait for products over a branch,
  /// but products would wait for one at the end of these.
  __device__ __forceinline__ bool guessed_softmax(Probabilities& p, const Scores& s) {
    const float negative[2] = {-reference[0], -reference[1]};
    float total[2];
    exponentials(p, total, s, negative);
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    const bool misled = __any_sync(0xffffffffU, !fits);
    sum[0] += misled ? 0.0F : total[0];
    sum[1] += misled ? 0.0F : total[1];
    return misled;
  }

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

  Cursor<kConfig.query_stages> query;

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
