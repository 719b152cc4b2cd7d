/// Which scores and probabilities of a consumer warpgroup of fwd_sm90_split count (MaskAt).
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/sm90/split/cta_tile.cuh"
#include "kernels/sm90/split/known_parts.hpp"

namespace heed::sm90_split {

/// What a program does about keys that rows do not see.
enum class Masks { none, scores, probabilities };

template <const Config& kConfig, const Problem& kProblem>
struct ThreadState;

template <const Config& kConfig, const Problem& kProblem>
struct Mask {
  using State = ThreadState<kConfig, kProblem>;
  static constexpr int kBlockN = kConfig.block_n;

  // ---- state, with MaskAt::probabilities
  int diagonal;      // the n-block through which the mask's edge runs
  bool is_lined_up;  // it runs from corner to corner, and no row of the tile that is written sees past the last key
  unsigned seen[kBlockN / 8 + 1];  // bits of two packed ones that are kept, of its tile t and row h: at t - h + 1

  /// Sets scores of keys that a row does not see, or that are another split's, to -inf.
  __device__ __forceinline__ static void hide(float (&s)[kBlockN / 2], int first_key, const State& state) {
    const auto& tile = state.tile;
    const auto& place = state.place;
    const ForwardParams& params = tile.params;
    if constexpr (has_left_bound(kProblem.mask)) {
      int begin[2];
      int end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = tile.origin() + first_key + 2 * (place.lane % 4);
        begin[h] = hidden_keys(kProblem.mask, state.row(h), params.left_offset, params.len_k) - from;
        end[h] = min(visible_keys(kProblem.mask, state.row(h), params.right_offset, params.len_k),
                     tile.origin() + state.n_blocks.end * kBlockN) -
                 from;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_from(s, h, end[h]);
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_before(s, h, begin[h]);
    } else {
      int end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        end[h] = min(visible_keys(kProblem.mask, state.row(h), params.right_offset, params.len_k),
                     state.n_blocks.end * kBlockN) -
                 first_key - 2 * (place.lane % 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_from(s, h, end[h]);
    }
  }

  /// Which probabilities the rows of this lane see of the n-block on the diagonal. Both rows see the same of tiles that
  /// are one apart, so nine words tell of all 16 pairs of columns.
  __device__ __forceinline__ void find_diagonal(const State& state) {
    const auto& tile = state.tile;
    const auto& place = state.place;
    const ForwardParams& params = tile.params;
    diagonal = (tile.first_row + state.warpgroup.m_warpgroup * kWarpgroupRows + params.right_offset) / kBlockN;
    // Of the whole CTA: its consumer warpgroups vote together, and one in the other program would vote at another
    // place.
    is_lined_up = sm90_split::is_lined_up(kConfig, tile.first_row, params.len_q, params.len_k, params.right_offset);
    const int keys = 16 * place.warp + place.lane / 4 + 1 - 2 * (place.lane % 4);  // from this lane's first column on
#pragma unroll
    for (int i = 0; i <= kBlockN / 8; ++i) {
      const int left = keys - 8 * (i - 1);
      seen[i] = left >= 2 ? 0xFFFFFFFFU : left == 1 ? 0xFFFFU : 0;
    }
  }

  /// Takes out what the rows do not see, of a step of an n-block; `before` has all bits set where the n-block lies
  /// before the diagonal.
  __device__ __forceinline__ void keep_seen(unsigned (&p)[4], int step, unsigned before) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] &= seen[2 * step + i / 2 - i % 2 + 1] | before;
  }
};

}  // namespace heed::sm90_split
