#include "dispatch/neighbour.hpp"

#include <cmath>

#include "workload/features.hpp"

namespace heed::dispatch {
namespace {

double log2_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

// Where there are as many queries as keys both alignments are one mask.
bool is_same_mask(const Workload& a, const Workload& b) {
  if (a.window != b.window || a.is_masked() != b.is_masked() || a.has_right_bound() != b.has_right_bound())
    return false;
  return a.mask == b.mask || (a.len_q == a.len_k && b.len_q == b.len_k);
}

// Values of a softcap and of dropout and the sizes of a bias change no time that a program is chosen by; pages and
// ragged rows do.
bool has_same_features(const Workload& a, const Workload& b) {
  return features_of(a) == features_of(b) && a.ragged == b.ragged && a.page_size == b.page_size &&
         a.quantised == b.quantised;
}

}  // namespace

bool is_same_class(const Workload& a, const Workload& b) {
  return a.dtype == b.dtype && a.dim == b.dim && a.dim_v == b.dim_v && a.layout == b.layout &&
         a.heads / a.heads_kv == b.heads / b.heads_kv && is_same_mask(a, b) && has_same_features(a, b) &&
         (a.len_q <= kMostDecodeQueries) == (b.len_q <= kMostDecodeQueries);
}

std::optional<double> neighbour_distance(const Workload& a, const Workload& b) {
  const auto is_empty = [](const Workload& w) { return w.batch * w.heads_kv * w.len_q * w.len_k == 0; };
  if (is_empty(a) || is_empty(b) || !is_same_class(a, b)) return std::nullopt;  // nothing has no ratio
  const double tiles = log2_ratio(a.batch * a.heads_kv, b.batch * b.heads_kv) + log2_ratio(a.len_q, b.len_q);
  const double keys = log2_ratio(a.len_k, b.len_k);
  constexpr double kRounding = 1e-9;  // 1.25 is allowed
  if (tiles > std::log2(kMostTilesRatio) + kRounding || keys > std::log2(kMostKeysRatio) + kRounding)
    return std::nullopt;
  return tiles + keys;
}

}  // namespace heed::dispatch
