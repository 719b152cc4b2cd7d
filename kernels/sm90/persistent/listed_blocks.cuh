/// How a consumer warpgroup of fwd_sm90_persistent goes through the KV tiles of a list of blocks: in the order of the
/// list from its end; any of them may be masked.
#pragma once

#include "kernels/sm90/persistent/mainloop.cuh"

namespace heed::sm90_persistent {

/// Mainloop::run_overlapped of programs with lists of blocks (SoftmaxOverlap::qk_pv).
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void run_listed_tiles_overlapped(Mainloop<kConfig, kProblem>& loop, int n, int first,
                                                            int seen_by_all, unsigned long long queries) {
  using Loop = Mainloop<kConfig, kProblem>;
  constexpr int kKeys = Loop::kKeys;
  auto& gemms = loop.gemms;
  auto& scores = loop.scores;
  typename Loop::AccS s[2];
  typename Loop::FragP p[2];
  int key = scores.first_key(n);
  int next_key = n > first ? scores.first_key(n - 1) : 0;
  typename Loop::BiasTile biases;
  scores.ask_for_first_biases(biases, gemms, key);
  gemms.scores(s[0], queries);
  gemms.try_wait_next(gemms.kv_stage);
  const int hidden = Loop::kBegins ? scores.hidden_from_some(gemms) : 0;
  const auto is_masked = [&](int at) { return at + kKeys > seen_by_all || (Loop::kBegins && at < hidden); };
  // Values of the tile that has been exponentiated last come with the next stage.
  const auto clear_values_of_last = [&] {
    if (is_masked(key)) clear_hidden_values(gemms, scores, key);
  };
  if (n == first) {
    scores.template change<true>(s[0], gemms, n, biases);
    loop.first_tile_softmax(p[0], s[0], n, is_masked(key));
    loop.release_queries();
    gemms.skip_iteration();
    clear_values_of_last();
    loop.values_alone(p[0]);
    return;
  }
  loop.template overlapped<true, false, true>(s[1], p[0], s[0], p[1], queries, n, is_masked(key), biases, next_key);
  const auto take_next_key = [&] {
    clear_values_of_last();
    key = next_key;
    if (n > first) next_key = scores.first_key(n - 1);
  };
#pragma unroll 1
  for (--n; n > first + 1;) {
    take_next_key();
    loop.template overlapped<true, true, true>(s[0], p[1], s[1], p[0], queries, n, is_masked(key), biases, next_key);
    --n;
    take_next_key();
    loop.template overlapped<true, true, true>(s[1], p[0], s[0], p[1], queries, n, is_masked(key), biases, next_key);
    --n;
  }
  // Two ends, as in Mainloop::run_overlapped.
  take_next_key();
  if (n == first) {
    loop.template overlapped<true, true, false>(s[0], p[1], s[1], p[0], queries, n, is_masked(key), biases, next_key);
    loop.release_queries();
    clear_values_of_last();
    loop.values_alone(p[1]);
  } else {
    loop.template overlapped<true, true, true>(s[0], p[1], s[1], p[0], queries, n, is_masked(key), biases, next_key);
    --n;
    take_next_key();
    loop.template overlapped<true, true, false>(s[1], p[0], s[0], p[1], queries, n, is_masked(key), biases, next_key);
    loop.release_queries();
    clear_values_of_last();
    loop.values_alone(p[0]);
  }
}

/// Mainloop::run_tiles of programs with lists of blocks: the last of a list first, and any of them may have keys that
/// some row does not see.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void run_listed_tiles(Mainloop<kConfig, kProblem>& loop, int n, int first, int seen_by_all,
                                                 unsigned long long queries) {
  using Loop = Mainloop<kConfig, kProblem>;
  constexpr int kKeys = Loop::kKeys;
  constexpr bool kBegins = Loop::kBegins;
  if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::qk_pv) {
    run_listed_tiles_overlapped(loop, n, first, seen_by_all, queries);
    return;
  }
  auto& gemms = loop.gemms;
  auto& scores = loop.scores;
  auto& softmax = loop.softmax;
  const int hidden = kBegins ? scores.hidden_from_some(gemms) : 0;
  const auto is_masked = [&](int key) { return key + kKeys > seen_by_all || (kBegins && key < hidden); };
  typename Loop::AccS s;
  typename Loop::FragP p;
  int key = scores.first_key(n);
  int next_key = n > first ? scores.first_key(n - 1) : 0;  // asked for a tile ahead: its load takes longer than a GEMM
  typename Loop::BiasTile biases;
  scores.ask_for_first_biases(biases, gemms, key);
  gemms.scores(s, queries);
  gemms.try_wait_next(gemms.kv_stage);
  loop.change_and_ask(s, n, biases, n > first, next_key);
  if (is_masked(key)) scores.mask(s, gemms, key);
  if (kConfig.row_max != RowMax::stale_16 || !softmax.stale_16(p, s, scores.scale_log2))
    softmax.online(p, s, scores.scale_log2, gemms.acc_o);
  scores.drop(p, gemms, n);
#pragma unroll 1
  for (; n > first; --n) {
    if (is_masked(key)) clear_hidden_values(gemms, scores, key);
    key = next_key;
    if (n - 1 > first) next_key = scores.first_key(n - 2);
    if (is_masked(key)) {
      gemms.scores_and_values(s, queries, p);
      loop.change_and_ask(s, n - 1, biases, n - 1 > first, next_key);
      loop.masked_tile_softmax(p, s, n - 1, key);
      continue;
    }
    if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
      loop.exponentials_beside_values(s, queries, p, n - 1);
      continue;
    }
    gemms.scores_and_values(s, queries, p);
    loop.change_and_ask(s, n - 1, biases, n - 1 > first, next_key);
    loop.template whole_tile_softmax<true>(p, s, n - 1);
  }
  loop.release_queries();
  if (is_masked(key)) clear_hidden_values(gemms, scores, key);
  loop.values_alone(p);
}

}  // namespace heed::sm90_persistent
