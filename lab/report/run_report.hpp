/// A stored run in words and tables, and as evidence. Works on the store's records alone; knows no CUDA.
#pragma once

#include <string>
#include <vector>

#include "store/exchanges.hpp"
#include "store/store.hpp"

namespace heed::report {

/// The table at the end of an evolution: base, champion, PyTorch's backends, what each change bought.
std::string result_text(const store::RunRecord& run);

/// `heed show`: the run, its generations, the champion's lineage, the result.
std::string show_text(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials);

/// One line a run.
std::string runs_text(const std::vector<store::RunRecord>& runs, const std::vector<int>& trial_counts);

/// The champion's ancestors, oldest first.
std::vector<const store::TrialRecord*> lineage(const std::vector<store::TrialRecord>& trials, int number);

/// A finished run in the schema of the evidence folder: a row for each way of launching the champion; none, and why,
/// where there is no champion. @throws Error(usage) when the run has no result
nlohmann::json evidence(const store::RunRecord& run);

/// Everything about a run, for `--json`.
nlohmann::json run_json(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials,
                        const std::vector<store::ComparisonRecord>& comparisons,
                        const std::vector<store::ExchangeRecord>& exchanges = {});
nlohmann::json trial_json(const store::TrialRecord& trial);

}  // namespace heed::report
