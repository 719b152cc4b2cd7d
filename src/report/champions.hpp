/// Champions with their provenance, as the data of tuned/champions.json.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

/// The champions of finished runs: for each workload and device the one of the fastest final comparison, if it was
/// faster than its base. {"schema": 1, "what": "champions", "champions": [...]}, ordered by workload; every entry says
/// what was measured, against what, when, and with which sources.
nlohmann::json champions_of(const std::vector<store::RunRecord>& runs);

/// `earlier` with the entries of `newer` in place of those for the same workload and architecture.
/// @throws Error(usage) when `earlier` is no such document
nlohmann::json merge_champions(const nlohmann::json& earlier, const nlohmann::json& newer);

/// A table for people.
std::string champions_text(const nlohmann::json& champions);

}  // namespace heed::report
