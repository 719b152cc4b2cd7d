/// How a consumer warpgroup of fwd_sm90_persistent goes through the KV tiles of a list of blocks: one tile after the
/// other, in the order of the list from its end, any of which may be masked.
#pragma once

#include "kernels/sm90/persistent/tiles.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct ListedTiles : Tiles<kConfig, kProblem> {
  using Base = Tiles<kConfig, kProblem>;
  using Base::both_products, Base::change_products, Base::clear_hidden_values, Base::exponentials_beside_values,
      Base::first_key, Base::mask_scores, Base::online_softmax, Base::release_queries, Base::scores_alone,
      Base::stale_16_softmax, Base::stale_softmax, Base::values_alone;
  using Base::kBegins, Base::kKeys;
  using typename Base::AccS, typename Base::FragP;

  using Base::Base;

  /// run_tiles of programs with lists of blocks: the last of a list first, and any of them may have keys that some row
  /// does not see.
  __device__ __forceinline__ void run_listed_tiles(int n, int first, int seen_by_all, unsigned long long queries) {
    const int hidden = kBegins ? Base::hidden_from_some() : 0;
    const auto is_masked = [&](int key) { return key + kKeys > seen_by_all || (kBegins && key < hidden); };
    AccS s;
    FragP p;
    int key = first_key(n);
    scores_alone(s, queries);
    Base::try_wait_next(Base::kv_stage);
    change_products(s, n);
    if (is_masked(key)) mask_scores(s, key);
    if (kConfig.row_max != RowMax::stale_16 || !stale_16_softmax(p, s)) online_softmax(p, s);
#pragma unroll 1
    for (; n > first; --n) {
      if (is_masked(key)) clear_hidden_values(key);
      key = first_key(n - 1);
      if (is_masked(key)) {
        both_products(s, queries, p, false);
        change_products(s, n - 1);
        mask_scores(s, key);
        online_softmax(p, s);
        continue;
      }
      if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
        exponentials_beside_values(s, queries, p, n - 1, false);
        continue;
      }
      both_products(s, queries, p, false);
      change_products(s, n - 1);
      if (kConfig.row_max == RowMax::online || !stale_softmax(p, s)) online_softmax(p, s);
    }
    release_queries();
    if (is_masked(key)) clear_hidden_values(key);
    values_alone(p);
  }
};

}  // namespace heed::sm90_persistent
