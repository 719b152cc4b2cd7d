/// Dropout in fwd_sm90_persistent: of a tile's probabilities, which are summed and are operands already, those that are
/// dropped become zeros.
///
/// Numbers are drawn when the tile's scores are done with, in the registers of these: many calls of Philox at once, by
/// a loop over rounds. Unrolled, call by call, ptxas keeps the keys of all rounds beside the accumulators, and spills.
#pragma once

#include "kernels/attention/dropout.hpp"
#include "kernels/attention/features.hpp"

namespace heed::sm90_persistent {

/// @param p (64, 16 kSteps) probabilities as A operands: words of the rows `row` and `row` + 8 in turn, each of two
/// keys
/// @param of_head dropout_of_head of the rows
/// @param row of the lane, with row % 16 < 8
/// @param first the key of the lane's first column, as entries count
template <int kSteps>
__device__ __forceinline__ void drop(unsigned (&p)[kSteps][4], const Philox4& of_head, const ScoreFeatureParams& params,
                                     int row, int first) {
  constexpr int kAtOnce = 4;  // steps, of two calls each: as many words as their scores have been
  if (params.dropout_threshold == 0) return;
  const int key = params.dropout_first_key + first;
  // From an odd key on, a word's keys have numbers of two calls: the second number of one, the first of the next.
  const bool is_odd = key % 2 != 0;
#pragma unroll 1
  for (int next = 0; next <= (is_odd ? 1 : 0); ++next) {
    const unsigned kept = !is_odd ? 0U : next == 0 ? 0xFFFF0000U : 0x0000FFFFU;  // of a word, by this round of calls
#pragma unroll
    for (int from = 0; from < kSteps; from += kAtOnce) {
      Philox4 numbers[2 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i)
        numbers[i] = {{static_cast<unsigned>(key / 2 + 8 * from + 4 * i + next), dropout_rows(row), of_head.word[2],
                       of_head.word[3]}};
      unsigned low = of_head.word[0];
      unsigned high = of_head.word[1];
#pragma unroll 1
      for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma unroll
        for (int i = 0; i < 2 * kAtOnce; ++i)
          if (from + i / 2 < kSteps) philox_round(numbers[i], low, high);
        low += kPhiloxKeyLow;
        high += kPhiloxKeyHigh;
      }
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        if (from + i / 2 >= kSteps) break;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned* two = numbers[i].word + 2 * h;
          const unsigned of_low = is_odd ? two[1] : two[0];
          const unsigned of_high = is_odd ? two[0] : two[1];
          p[from + i / 2][2 * (i % 2) + h] &= kept | (of_low < params.dropout_threshold ? 0U : 0x0000FFFFU) |
                                              (of_high < params.dropout_threshold ? 0U : 0xFFFF0000U);
        }
      }
    }
  }
}

}  // namespace heed::sm90_persistent
