// What the end of a run compares, as records.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evolve/selection.hpp"
#include "store/store.hpp"
#include "trial/laboratory.hpp"

namespace heed::evolve {

/// A finalist, measured again in fresh processes.
struct FinalComparison {
  Contender contender;
  store::TrialRecord trial;
  std::string variant;       ///< its id
  measure::PairResult pair;  ///< what is quoted, once it is measured in kFinalProcesses
  verify::ErrorStats error;  ///< the last process's
  DeviceState before;
  DeviceState after;
  double dependent_us = 0;  ///< of a dependent launch; 0 where it has none, or nobody asked
  double large_us = 0;      ///< where scores are large
  double base_large_us = 0;
};
nlohmann::json to_json(const FinalComparison& comparison);

/// The end of a search: the one that won, or why each was refused.
struct Finals {
  std::optional<FinalComparison> winner;
  std::vector<std::string> refused;
  trial::Laboratory::SelfComparison yardstick;  ///< the base against itself, measured beside the finalists
};

/// How a run ended.
enum class Ending { faster, not_faster, too_noisy, no_variant };
std::string_view to_string(Ending ending);
/// By the rules of base/faster.hpp.
[[nodiscard]] Ending ending_of(const measure::Ratio& ratio, double self_spread);

}  // namespace heed::evolve
