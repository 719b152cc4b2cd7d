#include "landscape/prior.hpp"

#include <algorithm>
#include <cmath>

namespace heed::landscape {
namespace {

constexpr double kDiagnosedWeight = 3;
constexpr double kNearTheBest = 1.2;  // times the fastest point's: what a search's parents are like
constexpr double kLogOfOneE = 0.05;   // ln(before / after) that makes a change e times as likely
constexpr double kMostWeight = 3;

}  // namespace

Prior prior_of_diagnoses(const Landscape& landscape) {
  return [&landscape](const Config& parent, std::size_t knob, int) {
    const auto point = landscape.points.find(parent);
    const Bound bound = point == landscape.points.end() ? Bound::unknown : point->second.bound;
    return landscape.knobs[knob].acts(bound) ? kDiagnosedWeight : 1;
  };
}

Insights::Insights(std::span<const Landscape> landscapes, const Landscape& of) : of_(of) {
  for (const Landscape& one : landscapes)
    if (&one != &of && one.family == of.family && one.workload != of.workload) take(one);
}

void Insights::take(const Landscape& landscape) {
  const double most_us = kNearTheBest * landscape.best_us();
  for (const auto& [before, point] : landscape.points) {
    if (!point.ok()) continue;
    for (std::size_t i = 0; i < landscape.knobs.size(); ++i) {
      const Knob& knob = landscape.knobs[i];
      Config after = before;
      for (const int value : knob.values) {
        if (value == before[i]) continue;
        after[i] = value;
        const auto other = landscape.points.find(after);
        if (other == landscape.points.end() || !other->second.ok()) continue;
        if (std::max(point.us, other->second.us) > most_us) continue;
        Sum& sum = log_ratios_[{knob.name, before[i], value}];
        sum.of_logs += std::log(point.us / other->second.us);
        ++sum.pairs;
      }
    }
  }
}

double Insights::log_ratio(const std::string& knob, int from, int to) const {
  const auto found = log_ratios_.find({knob, from, to});
  return found == log_ratios_.end() ? 0 : found->second.of_logs / found->second.pairs;
}

Prior Insights::prior() const {
  return [this](const Config& parent, std::size_t knob, int value) {
    const double log = log_ratio(of_.knobs[knob].name, parent[knob], value);
    return std::clamp(std::exp(log / kLogOfOneE), 1 / kMostWeight, kMostWeight);
  };
}

}  // namespace heed::landscape
