/// Rows of the store's tables as records.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "store/records.hpp"
#include "store/sqlite.hpp"

namespace heed::store {

/// What the functions below read, in their order.
inline constexpr const char* kRunColumns =
    "id, created, workload, families, device_kind, device, options, heed, source_digest, state, base, result";
inline constexpr const char* kTrialColumns =
    "id, run, number, generation, island, place, device, variant, config, edits, operation, parents, why, drafts, "
    "verdict, finding, "
    "reason, "
    "\"check\", ratio, ratio_low, "
    "ratio_high, base_us, trial_us, max_abs, rel_rms, worst_row, seed, source_digest, machine_code, gate_checks, "
    "resources, "
    "samples, clocks, diagnosis, build_ms, "
    "verify_ms, measure_ms, run_elapsed_s, finished";

/// As SQLite and JSON hold it: SQLite stores no NaN and JSON no infinity, which the error of a wrong kernel may be.
inline double storable(double value) {
  return std::isfinite(value) ? value : std::copysign(std::numeric_limits<double>::max(), value);
}
std::string drafts_text(const std::vector<DraftRecord>& drafts);

// All throw Error(store) for a row that no Heed has written: a database may have been damaged where SQLite's own check
// sees nothing, in the middle of a text. @param path of the database, for the error
RunRecord run_of(const Statement& row, const std::string& path);
TrialRecord trial_of(const Statement& row, const std::string& path);
ComparisonRecord comparison_of(const Statement& row, const std::string& path);

}  // namespace heed::store
