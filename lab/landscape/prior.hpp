/// What may be known of a space before a search: how much more likely a mutation should try one change than another.
///
/// Replayed on landscapes (heed simulate), so that a prior is measured before a run relies on one.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "landscape/landscape.hpp"

namespace heed::landscape {

/// @return how many times as likely a mutation gives knob number `knob` of `parent` this value
using Prior = std::function<double(const Config& parent, std::size_t knob, int value)>;

/// Three times as likely where a knob acts on what bounds the parent (Knob::acts_on, Point::bound).
Prior prior_of_diagnoses(const Landscape& landscape);

/// By what the same change of the same knob did on average in landscapes of other workloads: e times as likely for 5%
/// faster, between a third and three times. Averages are over pairs of points that differ in that change alone, the
/// slower of which is within 20% of the fastest point.
class Insights {
 public:
  /// @param landscapes those of another family than `of`, and `of` itself, say nothing
  Insights(std::span<const Landscape> landscapes, const Landscape& of);
  /// Whether any landscape said anything.
  [[nodiscard]] bool empty() const { return log_ratios_.empty(); }
  [[nodiscard]] Prior prior() const;
  /// Mean of ln(time before / time after) of a change, 0 where nothing is known.
  [[nodiscard]] double log_ratio(const std::string& knob, int from, int to) const;

 private:
  void take(const Landscape& landscape);
  struct Sum {
    double of_logs = 0;
    int pairs = 0;
  };
  const Landscape& of_;
  std::map<std::tuple<std::string, int, int>, Sum> log_ratios_;  ///< of knob, value before, value after
};

}  // namespace heed::landscape
