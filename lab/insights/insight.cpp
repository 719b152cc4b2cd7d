#include "insights/insight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "workload/features.hpp"

namespace heed::insights {
namespace {

using store::ObservationRecord;

constexpr double kALength = 0.90;     // for each factor of two
constexpr double kHeads = 0.93;       // for each factor of two in batch times heads
constexpr double kADim = 0.5;         // for each factor of two
constexpr double kAnotherKind = 0.7;  // of dtype, of mask, of bound
constexpr double kGroup = 0.93;       // for each factor of two in query heads a key head
constexpr double kAnotherLayout = 0.9;
constexpr double kAnotherArch = 0.6;
constexpr double kAnotherFamily = 0.25;
constexpr double kPrior = 1;  // observations of no effect that nobody made

double octaves(std::int64_t a, std::int64_t b) {
  return std::abs(
      std::log2(static_cast<double>(std::max<std::int64_t>(1, a)) / static_cast<double>(std::max<std::int64_t>(1, b))));
}

// Features that one has and the other lacks. What values they have, a softcap or a bias, changes no program.
int differing(const Features& a, const Features& b) {
  return count_of(without(a, b)) + count_of(without(b, a));
}

double similarity_of(const Workload& a, const Workload& b) {
  double s = std::pow(kALength, octaves(a.len_q, b.len_q) + octaves(a.len_k, b.len_k)) *
             std::pow(kHeads, octaves(a.batch * a.heads, b.batch * b.heads)) *
             std::pow(kGroup, octaves(a.heads * b.heads_kv, b.heads * a.heads_kv)) *
             std::pow(kADim, std::max(octaves(a.dim, b.dim), octaves(a.dim_v, b.dim_v))) *
             std::pow(kAnotherKind, differing(features_of(a), features_of(b)));
  if (a.dtype != b.dtype) s *= kAnotherKind;
  if (a.quantised.has_value() != b.quantised.has_value() ||
      (a.quantised && (a.dtype_q() != b.dtype_q() || a.dtype_k() != b.dtype_k() || a.dtype_v() != b.dtype_v())))
    s *= kAnotherKind;
  if (a.layout != b.layout) s *= kAnotherLayout;
  if (a.mask != b.mask) s *= kAnotherKind;
  return s;
}

bool is_of_sources(const ObservationRecord& o) {
  return !o.diff.empty();
}

std::string sentence_of(const Insight& insight) {
  const ObservationRecord& nearest = insight.observations.front();
  const auto all = insight.in_favour + insight.against + insight.without;
  std::string text = insight.change;
  if (!nearest.sentence.empty()) text = nearest.sentence;
  const double percent = 100 * (nearest.ratio - 1);
  text += fmt::format(": {:+.1f}% [{:+.1f}, {:+.1f}] of speed at {} on {}", percent, 100 * (nearest.low - 1),
                      100 * (nearest.high - 1), nearest.workload, nearest.arch);
  if (!nearest.bound_before.empty() && nearest.bound_before != "unknown")
    text += fmt::format(", where {} bounded it", nearest.bound_before);
  if (all > 1)
    text += fmt::format("; of {} observations {} faster, {} slower, {} without effect", all, insight.in_favour,
                        insight.against, insight.without);
  return text;
}

}  // namespace

double similarity(const ObservationRecord& observation, const Place& place) {
  double s = 1;
  try {
    s = similarity_of(parse_workload(observation.workload), place.workload);
  } catch (const Error&) {
    return 0;  // imported from a Heed that knows other workloads
  }
  if (observation.family != place.family) s *= is_of_sources(observation) ? kAnotherFamily : 0;
  if (observation.arch != place.arch) s *= kAnotherArch;
  const bool is_known = !place.bound.empty() && place.bound != "unknown" && !observation.bound_before.empty() &&
                        observation.bound_before != "unknown";
  if (is_known && observation.bound_before != place.bound) s *= kAnotherKind;
  return s;
}

std::vector<Insight> insights_for(const std::vector<ObservationRecord>& observations, const Place& place) {
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<double, const ObservationRecord*>>> groups;
  for (const ObservationRecord& one : observations)
    if (const double s = similarity(one, place); s > 0) groups[{one.family, one.change}].emplace_back(s, &one);
  std::vector<Insight> all;
  for (auto& [key, group] : groups) {
    std::stable_sort(group.begin(), group.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    Insight insight;
    insight.family = key.first;
    insight.change = key.second;
    double logs = 0;
    for (const auto& [s, one] : group) {
      insight.weight += s;
      logs += s * std::log(one->ratio);
      (one->low > 1 ? insight.in_favour : one->high < 1 ? insight.against : insight.without) += 1;
      insight.observations.push_back(*one);
    }
    insight.expected = std::exp(logs / (insight.weight + kPrior));
    insight.sentence = sentence_of(insight);
    all.push_back(std::move(insight));
  }
  std::stable_sort(all.begin(), all.end(), [](const Insight& a, const Insight& b) {
    return std::abs(std::log(a.expected)) > std::abs(std::log(b.expected));
  });
  return all;
}

}  // namespace heed::insights
