/// The products of fwd_sm90_stream and the turns in which a row group takes them: which stage of the ring is next, that
/// it has arrived, and that it may be overwritten.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
#pragma once

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/stream/copies.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::stream {

template <const Config& kConfig, const Problem& kProblem>
struct Products {
  // ---- compile-time facts
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kKeys = kConfig.tile_keys;
  static constexpr int kSteps = kKeys / kStepKeys;
  static constexpr bool kAhead = kConfig.arrival == Arrival::ahead;
  static constexpr bool kCounted = kConfig.upkeep == Upkeep::conditions;
  using Place = Layout<kConfig, kProblem>;
  static constexpr SharedPlan kPlan = Place::kPlan;
  static constexpr bool kInOrder = kConfig.turns == Turns::in_order;
  static constexpr bool kInTurn = kConfig.starts == Starts::in_turn;

  using Scores = float[kKeys / 2];            // (64, tile keys), accumulator fragments
  using Probabilities = unsigned[kSteps][4];  // the same, as A operands of a step each

  // ---- state
  Place place;
  int lane;
  int warp;  // within the row group
  int row_group;
  int key_group;
  Cursor<kConfig.stages> turn;  // the stage of the next products
  unsigned first_keys;          // low words of the descriptors of the key group's first stage (Upkeep::conditions)
  unsigned first_values;
  unsigned ready = 0;   // the stage at `turn` is known to have arrived (Arrival::ahead)
  float out[kDim / 2];  // (64, kDim): two rows a lane

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Products(const Place& where, int block_warp)
      : place(where),
        lane(threadIdx.x % 32),
        warp(block_warp % 4),
        // Constants keep addresses out of vector registers.
        row_group(kConfig.row_groups == 1 ? 0 : block_warp / 4 % kConfig.row_groups),
        key_group(kConfig.key_groups == 1 ? 0 : block_warp / 4 / kConfig.row_groups) {
    if constexpr (kCounted) {
      first_keys = static_cast<unsigned>(tile::matrix_descriptor(place.keys(key_group, 0), 16));
      first_values = static_cast<unsigned>(tile::matrix_descriptor(place.values(key_group, 0), kPlan.box));
    }
  }

  __device__ __forceinline__ void multiply_keys(Scores& into, unsigned long long queries, int stage) const {
    const unsigned long long k = keys(stage);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) multiply_keys_step(into, queries, k, i);
  }
  __device__ __forceinline__ static void multiply_keys_step(Scores& into, unsigned long long q, unsigned long long k,
                                                            int i) {
    ptx::wgmma_ss<kProblem.element, kKeys>(
        into, q + tile::descriptor_advance(i / 4 * kGroupRows * tile::kBoxRowBytes + i % 4 * 32),
        k + tile::descriptor_advance(i / 4 * kPlan.box + i % 4 * 32), i != 0);
  }
  __device__ __forceinline__ unsigned long long keys(int stage) const {
    if constexpr (kCounted) return counted(first_keys, stage);
    return tile::matrix_descriptor(place.keys(key_group, stage), 16);
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
  /// @param key_stage of the keys
  __device__ __forceinline__ void multiply_both(Scores& into, unsigned long long queries, const Probabilities& p,
                                                int key_stage) {
    constexpr int kBoth = kDim / 16 + kSteps;
    const unsigned long long k = keys(key_stage);
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
  __device__ __forceinline__ int order_barrier(int of) const {
    return 8 + (place.team + key_group) * kConfig.row_groups + of;  // one team, or one key group
  }
  /// The last row group lets the first begin, and the first takes its last arrival at the end.
  __device__ __forceinline__ void begin_turns() const {
    if (kInOrder && row_group == kConfig.row_groups - 1) end_products();
  }
  __device__ __forceinline__ void end_turns() const {
    if (kInOrder && row_group == 0) begin_products();
  }

  /// With Starts::in_turn a key group waits until the one before it has its first scores, or knows that it has no keys.
  /// Barriers 8 and up, one for every key group but the first.
  __device__ __forceinline__ void wait_to_start() const {
    if constexpr (kInTurn)
      if (key_group > 0) ptx::bar_sync(7 + key_group, 2 * kGroupThreads);
  }
  __device__ __forceinline__ void let_next_start() const {
    if constexpr (kInTurn)
      if (key_group < kConfig.key_groups - 1) ptx::bar_arrive(8 + key_group, 2 * kGroupThreads);
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
};

}  // namespace heed::stream
