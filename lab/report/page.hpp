/// A run as one HTML page: style, figures and tables in one file that asks the network for nothing.
#pragma once

#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

/// Whether the run has a result: a champion, or the statement that there is none.
bool is_finished(const store::RunRecord& run);

/// The page. A run that is not finished gives a page of what there is, which says so. Everything that comes from the
/// database is escaped.
std::string run_page(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials,
                     const std::vector<store::ComparisonRecord>& comparisons);

}  // namespace heed::report
