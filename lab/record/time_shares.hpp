/// What the time of a run went to, as JSON of its result.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "trial/phases.hpp"

namespace heed::record {

/// Of the process that ended the run; what earlier ones of a resumed run took is not among it.
struct TimeShares {
  bool of_gpu = false;  ///< shares of a GPU's time; else of the wall clock of the phases
  trial::Phases phases;
  double seconds = 0;      ///< of which they are shares
  double elsewhere_s = 0;  ///< not among `seconds`: comparison with PyTorch, counters
  std::string no_records;  ///< why CUPTI's activity records, which were asked for, are not there
};
nlohmann::json to_json(const TimeShares& shares);

}  // namespace heed::record
