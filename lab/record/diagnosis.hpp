/// Diagnoses as they are stored with trials, and what is read of them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "profile/diagnosis.hpp"

namespace heed::record {

nlohmann::json to_json(const profile::Counters& counters);
nlohmann::json to_json(const profile::Diagnosis& diagnosis, const std::optional<profile::Counters>& counters);
/// `unknown` when there is none.
Bound bound_of(const nlohmann::json& diagnosis);
/// Whether a stored diagnosis rests on counters.
bool has_counters(const nlohmann::json& diagnosis);

}  // namespace heed::record
