/// What the runs of a model's workloads came to. Works on the store's records alone; knows no CUDA.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/records.hpp"

namespace heed::report {

/// Calls of a model, and the run of their workload.
struct WorkloadRow {
  std::string workload;  ///< empty where no kernel has the form of the calls
  std::int64_t calls = 0;
  double seconds = 0;                        ///< of all calls in the model; 0 where they were not timed
  double gain = 0;                           ///< share of what all workloads could gain
  int trials = 0;                            ///< its part of all trials
  std::optional<store::RunRecord> run = {};  ///< finished
  std::size_t trials_made = 0;               ///< of the run
  bool reused = false;                       ///< the run was there before
  std::string skipped = {};                  ///< why there is no run
  std::string failed = {};                   ///< what ended the run
};

/// Seconds that the champions save in as many calls as were recorded, against their bases.
double saved_s(const std::vector<WorkloadRow>& rows);

/// {"workloads": [...], "saved_s": ...}
nlohmann::json workloads_json(const std::vector<WorkloadRow>& rows);

/// A line for each workload with a run, then what was skipped and why, then what the champions save.
std::string workloads_text(const std::vector<WorkloadRow>& rows);

}  // namespace heed::report
