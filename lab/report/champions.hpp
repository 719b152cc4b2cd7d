/// Champions with their provenance, as the data of tuned/champions.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

/// What finished runs found: for each workload and device the champion of the fastest final comparison, or the base
/// that nothing beat. {"schema": 1, "what": "champions", "champions": [...], "unbeaten": [...]}, ordered by
/// workload; every entry says what was measured, against what, when, and with which sources. Runs of the sources that
/// ran last decide: what an older run found may since be the base. That nothing beat a base says nothing about
/// champions of families that the run did not search.
nlohmann::json champions_of(const std::vector<store::RunRecord>& runs);

/// `earlier` with the entries of `newer`, champions or unbeaten, in place of those for the same workload and device.
/// @throws Error(usage) when `earlier` is no such document
nlohmann::json merge_champions(const nlohmann::json& earlier, const nlohmann::json& newer);

/// A table for people.
std::string champions_text(const nlohmann::json& champions);

}  // namespace heed::report
