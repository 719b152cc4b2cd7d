/// What is known of a change from all observations of it, seen from the place where it might be tried.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "store/observations.hpp"

namespace heed::insights {

/// Where a change might be tried.
struct Place {
  std::string family;
  Workload workload;
  std::string arch;
  std::string bound;  ///< what holds the kernel back there; empty: unknown
};

/// How much an observation says about a place, from 0 to 1: 1 for the same workload, architecture and bound. Each
/// factor of two in a length takes 10% off, in batch times heads, or in query heads a key head, 7%; another layout 10%;
/// another head dim, dtype, quantisation, mask, architecture or bound 30% to 50%, each feature that one of the two
/// lacks 30%; another family leaves a quarter for changes of sources and nothing for knobs. These are rules of thumb,
/// not measurements.
double similarity(const store::ObservationRecord& observation, const Place& place);

struct Insight {
  std::string family;
  std::string change;
  std::string sentence;  ///< for people and models
  /// The expected ratio of times before and after: the geometric mean of the observations by their similarity, drawn
  /// towards 1 as if one observation of no effect were there, too. An observation that contradicts the others lowers
  /// it.
  double expected = 1;
  double weight = 0;                                   ///< the sum of similarities
  int in_favour = 0;                                   ///< observations whose interval is above 1
  int against = 0;                                     ///< whose interval is below 1
  int without = 0;                                     ///< that show no effect
  std::vector<store::ObservationRecord> observations;  ///< the nearest first
};

/// Insights by how much they are expected to change, the largest gain or loss first; none that no observation speaks
/// for.
std::vector<Insight> insights_for(const std::vector<store::ObservationRecord>& observations, const Place& place);

}  // namespace heed::insights
