/// Which device of a run did what, where several shared its trials.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/records.hpp"

namespace heed::report {

/// Null where one device judged all. Else `devices`, each with its name, base_us and self_spread (the base as read
/// there, and how far its ratio to itself lay from 1), processors, why it was lost, and the numbers of its trials; and
/// `trials_a_minute` of the search alone, over all processes that worked on it.
nlohmann::json devices_json(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials);

/// The same for people; empty where one device judged all.
std::string devices_text(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials);

}  // namespace heed::report
