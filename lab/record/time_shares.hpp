/// What the time of a run went to, as JSON of its result.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trial/phases.hpp"

namespace heed::record {

/// Builds that were asked for and waited for. Several run at a time beside what the device does.
struct BuildTimes {
  int made = 0;         ///< by a compiler; the others came out of the cache
  double made_s = 0;    ///< the time of each, added up
  double waited_s = 0;  ///< in which whoever asked had to wait; where two places of a device wait, that of both
  BuildTimes& operator+=(const BuildTimes& other);
};

/// Of the process that ended the run; what earlier ones of a resumed run took is not among it.
struct TimeShares {
  bool of_gpu = false;  ///< shares of a GPU's time; else of the wall clock of the phases
  trial::Phases phases;
  double seconds = 0;      ///< of which they are shares
  double elsewhere_s = 0;  ///< not among `seconds`: comparison with PyTorch, counters
  BuildTimes builds;
  /// Wall clock of the run's parts, in order: "base", "search", "finals", "ablation", "alone", "counters", "peers".
  std::vector<std::pair<std::string, double>> parts;
  std::string no_records;  ///< why CUPTI's activity records, which were asked for, are not there
};
nlohmann::json to_json(const TimeShares& shares);

}  // namespace heed::record
