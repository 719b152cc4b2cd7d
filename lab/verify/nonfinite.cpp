#include "verify/nonfinite.hpp"

#include <algorithm>
#include <cmath>

#include "variant/element.hpp"
#include "workload/mask.hpp"

namespace heed::verify {
namespace {

// What elements of q and k are multiplied by so that scores lie beyond fp32, with the scale and without: 1e42 over a
// largest number of 3.4e38.
double beyond_fp32(const Workload& w) {
  return 1e21 / std::sqrt(std::min(1.0, w.softmax_scale()));
}

bool can_leave_fp32(const Workload& w) {
  return beyond_fp32(w) < std::min(1e37, facts_of(w.dtype).largest) && w.softmax_scale() < 1e10;
}

}  // namespace

KeyRange seen_by_every_row(const Workload& w) {
  const KeySpan span = key_span(mask_kind(w), mask_bounds(w), 0, static_cast<int>(w.len_q));
  return {span.full_begin, span.full_end};
}

std::int64_t seeing_row(const Workload& w) {
  std::int64_t row = 0;
  while (row + 1 < w.len_q && w.keys_of(row).is_empty()) ++row;
  return row;
}

Workload with_a_shared_key(const Workload& workload) {
  Workload w = workload;
  const MaskBounds bounds = mask_bounds(w);
  if (w.has_left_bound()) w.len_q = std::min<std::int64_t>(w.len_q, bounds.right_offset - bounds.left_offset + 1);
  return w;
}

std::vector<Blemish> seen_by_all(const Workload& w) {
  std::vector<Blemish> all = {Blemish::query_nan};
  if (!seen_by_every_row(w).is_empty())
    all.insert(all.end(), {Blemish::key_nan, Blemish::value_nan, Blemish::value_inf});
  if (can_leave_fp32(w)) all.push_back(Blemish::scores_above);
  return all;
}

std::vector<Blemish> hidden_from_some(const Workload& w) {
  std::vector<Blemish> all;
  const int edges = (w.has_left_bound() ? 1 : 0) + (w.has_right_bound() ? 1 : 0);
  for (const Blemish blemish : {Blemish::key_nan, Blemish::value_nan, Blemish::value_inf})
    for (int edge = 0; edge < edges; ++edge) all.push_back(blemish);
  if (!can_leave_fp32(w)) return all;
  all.push_back(Blemish::scores_below);
  // Products of both signs may add up to -infinity in fp32 where the exact sum is above. Without a sink a row of such
  // scores alone is NaN all the same; beside one it is zeros.
  if (!w.sinks) all.push_back(Blemish::scores_mixed);
  return all;
}

void apply(Blemish blemish, const Workload& w, InputValues& values, std::int64_t batch, std::int64_t key_head,
           std::int64_t key, Random& random) {
  const std::int64_t group = w.heads / w.heads_kv;
  const auto any = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(count)));
  };
  float* q = values.q.data() + (batch * w.heads + key_head * group) * w.len_q * w.dim;
  float* k = values.k.data() + (batch * w.heads_kv + key_head) * w.len_k * w.dim;
  float* v = values.v.data() + (batch * w.heads_kv + key_head) * w.len_k * w.dim_v;
  const auto scale_all = [&](float* x, std::int64_t count, const auto& change) {
    const auto size = static_cast<float>(beyond_fp32(w));
    for (std::int64_t i = 0; i < count; ++i) x[i] = change(x[i]) * size;
  };
  const auto positive = [](float x) { return std::abs(x) + 0.5F; };
  const auto negative = [](float x) { return -std::abs(x) - 0.5F; };
  const auto same = [](float x) { return x; };
  switch (blemish) {
    case Blemish::query_nan: {
      // Rows that see a key follow each other: a mask's bounds both move with the row.
      const std::int64_t first = seeing_row(w);
      std::int64_t end = first;
      while (end < w.len_q && !w.keys_of(end).is_empty()) ++end;
      if (first == end) break;
      const std::int64_t row = any(group) * w.len_q + first + any(end - first);
      q[row * w.dim + any(w.dim)] = NAN;
      break;
    }
    case Blemish::key_nan:
      k[key * w.dim + any(w.dim)] = NAN;
      break;
    case Blemish::value_nan:
      v[key * w.dim_v + any(w.dim_v)] = NAN;
      break;
    case Blemish::value_inf:
      v[key * w.dim_v + any(w.dim_v)] = random.chance(0.5) ? INFINITY : -INFINITY;
      break;
    case Blemish::scores_above:
      scale_all(q, group * w.len_q * w.dim, positive);
      scale_all(k, w.len_k * w.dim, positive);
      break;
    case Blemish::scores_below:
      scale_all(q, group * w.len_q * w.dim, positive);
      scale_all(k, w.len_k * w.dim, negative);
      break;
    case Blemish::scores_mixed:
      scale_all(q, group * w.len_q * w.dim, same);
      scale_all(k, w.len_k * w.dim, same);
      break;
  }
}

}  // namespace heed::verify
