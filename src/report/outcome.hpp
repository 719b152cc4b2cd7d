/// How a stored run ended: judged from its numbers, so that a run of an older rule is judged by today's.
#pragma once

#include <nlohmann/json.hpp>

#include "base/faster.hpp"
#include "report/json_fields.hpp"

namespace heed::report {

/// @param result of a finished run
inline bool has_champion(const nlohmann::json& result) {
  return result.is_object() &&
         is_faster(number(member(member(result, "final"), "ratio"), "low"), number(result, "self_spread"));
}

/// "faster", "not_faster", or what kept the run from a final comparison.
inline std::string outcome_of(const nlohmann::json& result) {
  if (!member(result, "final").is_object()) return text_of(result, "outcome");
  return has_champion(result) ? "faster" : "not_faster";
}

}  // namespace heed::report
