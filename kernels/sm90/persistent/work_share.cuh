/// Which rows and KV tiles of a Q tile a consumer warpgroup of fwd_sm90_persistent takes.
#pragma once

#include "kernels/sm90/persistent/scores.cuh"

namespace heed::sm90_persistent {

/// Which rows and tiles of a Q tile are this warp's.
struct WorkShare {
  int row;      ///< first of the consumer warpgroup
  Range tiles;  ///< of the KV group
  int end;      ///< of those, that any of the rows sees; under a mask with a left bound they begin with first_seen()
  int odd_row;  ///< ShareCausalTail::on: first of the odd consumer warpgroup of the pair, and its end; that of the
                ///< even one
  int odd_end;
  int even_end;
};

/// The first row of consumer warpgroup `of` in Q tile `index`.
template <const Config& kConfig>
__device__ __forceinline__ int row_of(const ForwardParams& params, int index, int of) {
  return warpgroup_tile(kConfig, index, of, warpgroup_tiles(params.len_q)) * kWarpgroupRows;
}

/// Of Q tile `index`.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ WorkShare work_share(const Scores<kConfig, kProblem>& scores,
                                                const ConsumerThread<kConfig>& at, int index) {
  const auto& params = scores.params;
  WorkShare share{};
  share.row = row_of<kConfig>(params, index, at.m_warpgroup);
  if constexpr (kProblem.features.blocks)
    if (scores.changes.blocks.numbers != nullptr) {
      share.tiles = kv_tiles_of_split(kConfig, keys_of_list(scores.changes.blocks), split_of<kConfig>(at.kv_group));
      share.end = share.row < params.len_q ? share.tiles.end : share.tiles.first;
      return share;
    }
  const auto keys = [&] {
    if constexpr (kProblem.features.prefix)
      return max(scores.changes.prefix,
                 keys_seen(kConfig, kProblem.mask, index, params.len_q, params.len_k, params.right_offset));
    return keys_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, index, params.len_q, params.len_k,
                                                  params.right_offset);
  };
  const auto tiles_of = [&](int of) {
    return tiles_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, index, of, params.len_q, params.len_k,
                                                   params.right_offset);
  };
  // A prefix is seen by every row that there is.
  const auto with_prefix = [&](int tiles, int begin) {
    if constexpr (kProblem.features.prefix)
      if (share.row < params.len_q)
        return max(tiles, static_cast<int>(kv_tiles_for(kConfig, max(0, scores.changes.prefix - begin))));
    return tiles;
  };
  if constexpr (kConfig.share_causal_tail == ShareCausalTail::on) {
    const int even = at.m_warpgroup & ~1;
    const int of_even = tiles_of(even);
    const int of_odd = tiles_of(even + 1);
    if constexpr (kConfig.kv_groups > 1)
      share.tiles = kv_tiles_of_split(kConfig, min(of_even, of_odd), max(of_even, of_odd), at.kv_group);
    else
      share.tiles = kv_tiles_of_split(kConfig, keys(), 0);
    const auto in_group = [&](int end) { return max(share.tiles.first, min(share.tiles.end, end)); };
    share.even_end = in_group(of_even);
    share.odd_end = in_group(of_odd);
    share.odd_row = row_of<kConfig>(params, index, even + 1);
    share.end = at.m_warpgroup == even ? share.even_end : share.odd_end;
  } else if constexpr (has_left_bound(kProblem.mask)) {
    int begin = origin_of(kConfig, kProblem.mask, index, params.left_offset, params.len_k);
    if constexpr (kProblem.features.pages) begin = origin_of_boxes(kConfig, params, begin);
    share.tiles = kv_tiles_of_split(kConfig, keys() - begin, split_of<kConfig>(at.kv_group));
    share.end = min(share.tiles.end, with_prefix(tiles_seen_from(kConfig, kProblem.mask, index, at.m_warpgroup, begin,
                                                                 params.len_q, params.len_k, params.right_offset),
                                                 begin));
  } else {
    share.tiles = kv_tiles_of_split(kConfig, keys(), split_of<kConfig>(at.kv_group));
    share.end = min(share.tiles.end, with_prefix(tiles_of(at.m_warpgroup), 0));
  }
  return share;
}

}  // namespace heed::sm90_persistent
