/// Dropout in fwd_sm90_persistent: of a tile's probabilities, which are summed and are operands already, those that are
/// dropped become zeros.
///
/// Numbers are drawn when the tile's scores are done with, in the registers of these: many calls of Philox at once, by
/// a loop over rounds. Unrolled, call by call, ptxas keeps the keys of all rounds beside the accumulators, and spills.
#pragma once

#include "kernels/attention/dropout.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/ptx/bytes.cuh"

namespace heed::sm90_persistent {
namespace detail {

/// @param numbers counters, which become what Philox makes of them
template <int kCalls>
__device__ __forceinline__ void draw(Philox4 (&numbers)[kCalls], const HeadDropout& of_head) {
  auto low = static_cast<unsigned>(of_head.seed);
  auto high = static_cast<unsigned>(of_head.seed >> 32);
#pragma unroll 1
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kCalls; ++i) philox_round(numbers[i], low, high);
    low += kPhiloxKeyLow;
    high += kPhiloxKeyHigh;
  }
}

/// Which of two neighbouring elements of 16 bits are kept, as a mask: those whose byte is below the threshold.
/// @tparam kHigh the bytes are the upper ones of the word
template <bool kHigh>
__device__ __forceinline__ unsigned kept_of_two(unsigned word, unsigned threshold) {
  const unsigned bytes = ptx::prmt(word, 0U, kHigh ? 0x4342U : 0x4140U);
  // The sign of 0x7fff + threshold - byte, for threshold and byte together are below 2^15.
  return ptx::prmt(0x7FFF7FFFU + threshold * 0x00010001U - bytes, 0U, 0xBB99U);
}

/// Keys from a multiple of 16 on: a call has the numbers of two steps.
template <int kSteps>
__device__ __forceinline__ void drop_aligned(unsigned (&p)[kSteps][4], const HeadDropout& of_head, unsigned threshold,
                                             int row, int first) {
  // An odd number of steps begins with the second half of a call's numbers, in every second tile.
  const bool is_second = kSteps % 2 != 0 && (first & 16) != 0;
  Philox4 numbers[(kSteps + 1) / 2];
#pragma unroll
  for (int i = 0; i < (kSteps + 1) / 2; ++i) numbers[i] = dropout_counter(of_head, row, first + 32 * i);
  draw(numbers, of_head);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned word = numbers[step / 2].word[step % 2 * 2 + half];
      if constexpr (kSteps % 2 != 0)
        if (is_second) word = numbers[(step + 1) / 2].word[(step + 1) % 2 * 2 + half];
      p[step][2 * half] &= kept_of_two<false>(word, threshold);
      p[step][2 * half + 1] &= kept_of_two<true>(word, threshold);
    }
}

/// Keys from any on, as tiles under masks with a left bound have them: 8 keys take a call.
template <int kSteps>
__device__ __forceinline__ void drop_unaligned(unsigned (&p)[kSteps][4], const HeadDropout& of_head, unsigned threshold,
                                               int row, int key) {
  constexpr int kAtOnce = 4;  // steps, of two calls each: as many words as their scores have been
  // From an odd key on two keys have numbers of two calls: those of the first and, in another round, of the second.
  const bool is_odd = key % 2 != 0;
#pragma unroll 1
  for (int next = 0; next <= (is_odd ? 1 : 0); ++next) {
    const unsigned others = !is_odd ? 0U : next == 0 ? 0xFFFF0000U : 0x0000FFFFU;  // elements of the other round
#pragma unroll
    for (int from = 0; from < kSteps; from += kAtOnce) {
      Philox4 numbers[2 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) numbers[i] = dropout_counter(of_head, row, key + next + 16 * from + 8 * i);
      draw(numbers, of_head);
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        if (from + i / 2 >= kSteps) break;
        unsigned word = dropout_word(numbers[i], key + next + 16 * from + 8 * i);
        if (is_odd) word = next == 0 ? word >> 8 : word << 8;
        p[from + i / 2][i % 2 * 2] &= others | kept_of_two<false>(word, threshold);
        p[from + i / 2][i % 2 * 2 + 1] &= others | kept_of_two<true>(word, threshold);
      }
    }
  }
}

}  // namespace detail

/// @tparam kIsAligned `first` is that of a lane in a tile whose first key is a multiple of its keys
/// @param p (64, 16 kSteps) probabilities as A operands: words of the rows `row` and `row` + 8 in turn, each of two
/// keys
/// @param of_head dropout_of_head of the rows
/// @param row of the lane, with row % 16 < 8
/// @param first the key of the lane's first column, as entries count
template <bool kIsAligned, int kSteps>
__device__ __forceinline__ void drop(unsigned (&p)[kSteps][4], const HeadDropout& of_head,
                                     const ScoreFeatureParams& params, int row, int first) {
  if (params.dropout_threshold == 0) return;
  if constexpr (kIsAligned)
    detail::drop_aligned(p, of_head, params.dropout_threshold, row, first);
  else
    detail::drop_unaligned(p, of_head, params.dropout_threshold, row, params.dropout_first_key + first);
}

}  // namespace heed::sm90_persistent
