/// Which rows a block holds, and what a row ends as: the same for every unit.
#pragma once

#include "cpu/config.hpp"
#include "cpu/exp2.hpp"
#include "kernels/attention/mask.hpp"

namespace heed::cpu {

struct BlockPlace {
  long long batch;
  long long head;  ///< the first one; with pack_gqa the rows of group_size heads count on
  int first_row;
};

/// Keys [begin, end).
struct Span {
  int begin;
  int end;
  /// What of it lies in the tile of `count` keys from `tile` on, counted from there.
  [[nodiscard]] Span in_tile(int tile, int count) const {
    const auto clamp = [count](int x) { return x < 0 ? 0 : x < count ? x : count; };
    return {clamp(begin - tile), clamp(end - tile)};
  }
};

/// Rows that blocks of one head, or of heads that share their keys, are cut from.
template <Config kConfig>
inline int rows_of_head(const ForwardParams& params) {
  return kConfig.pack_gqa ? params.len_q * params.group_size : params.len_q;
}

/// The rows of a block: block_m of one head, handed out in the config's order. Of causal rows the last ones, which see
/// most, come first, so that what is left for the end is short; the rows of a window see equally many keys.
template <Config kConfig, Problem kProblem>
inline BlockPlace place_of(const ForwardParams& params, long long block) {
  const long long row_blocks = (rows_of_head<kConfig>(params) + kConfig.block_m - 1) / kConfig.block_m;
  const long long heads_each = kConfig.pack_gqa ? params.heads_kv : params.heads;
  const long long heads = params.batch * heads_each;
  const bool heads_outer = kConfig.loop_order == LoopOrder::heads_outer;
  const long long batch_head = heads_outer ? block / row_blocks : block % heads;
  const long long turn = heads_outer ? block % row_blocks : block / heads;
  const long long row_block = kProblem.mask == MaskKind::causal ? row_blocks - 1 - turn : turn;
  const long long head = batch_head % heads_each * (kConfig.pack_gqa ? params.group_size : 1);
  return {batch_head / heads_each, head, static_cast<int>(row_block * kConfig.block_m)};
}

/// From the first key that any of some rows sees to the last. Rows are those that blocks are cut from; with pack_gqa
/// they begin anew with each head, and where a head ends among them all its rows count.
template <Config kConfig, Problem kProblem>
inline Span span_of_rows(const ForwardParams& params, int first, int count) {
  if constexpr (kConfig.pack_gqa) {
    const int row = first % params.len_q;
    first = row + count > params.len_q ? 0 : row;
    count = row + count > params.len_q ? params.len_q : count;
  }
  const auto span = key_span<kProblem.mask>(mask_bounds(params), first, first + count);
  return {span.begin, span.end};
}

/// What a row's sums of values are multiplied by. A row that sees nothing is zeros; where a row sees something, a sum
/// of weights that is no positive number (NaN among its scores, or all of them beyond fp32) shows as NaN.
inline float inverse_sum(bool sees, float sum) {
  if (!sees) return 0;
  return sum > 0 ? 1.0F / sum : __builtin_nanf("");
}

/// The row's log-sum-exp from its maximum in powers of two.
inline float row_log_sum(bool sees, float maximum, float sum) {
  if (!sees) return -kInfinity;
  return sum > 0 ? maximum * 0.693147181F + natural_log(sum) : __builtin_nanf("");
}

}  // namespace heed::cpu
