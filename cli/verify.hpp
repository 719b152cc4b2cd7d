/// The options of heed verify, and what it runs in place of the gate.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/stored_trial.hpp"

namespace heed::cli {

struct VerifyOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  StoreOptions store;
  std::vector<std::string> variants;
  std::string cases;
  std::vector<std::string> spare;
  int random_configs = 0;
  int random_workloads = 0;
  std::uint64_t seed = 0;
  bool verbose = false;
  bool unfused_bar = false;
  std::string evidence;
  bool sanitize = false;
  bool emulate = false;
  bool timed = false;
  std::string arch;  ///< of an emulated GPU
  double sanitize_limit_s = 600;
};

/// Those of the variants that are trials of the database, by their names.
std::map<std::string, StoredTrial> trials_of(const VerifyOptions& options);

/// compute-sanitizer's four tools around the gate of each variant. Returns the exit code.
int verify_sanitized(const VerifyOptions& options);

/// A variant that passed the gate is timed beside itself for a moment, with spot checks: what they refuse goes into the
/// report.
void verify_timed(trial::TrialRunner& trial_runner, const trial::Built& built, std::uint64_t seed,
                  verify::GateReport& report);

/// Each variant on an emulated GPU. Returns the exit code.
int verify_emulated(const VerifyOptions& options);

}  // namespace heed::cli
