/// The tables behind a family's default, measured again: at the workloads that a row's provenance names, the default
/// beside what the other rows of the table would make of it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "trial/trial_runner.hpp"
#include "variant/family.hpp"

namespace heed::trial {

/// One row beside the one that decides, at one workload.
struct RuleReading {
  std::string rule;
  std::size_t row = 0;    ///< that decides
  std::size_t other = 0;  ///< that does not
  Workload workload;
  std::string variant;  ///< of the default with the other row, as parse_variant reads it
  Outcome outcome;
  double self_spread = 0;        ///< of the default against itself
  double base_us = 0;            ///< of the default
  bool other_is_faster = false;  ///< beyond what the default shows against itself
};

/// A workload and the rows that decide for it.
struct RuleWorkload {
  Workload workload;
  std::vector<DecidedRow> rows;
};

/// The workloads that provenances name and the rows with those provenances decide, in the order of tables and rows. A
/// name in a provenance is one of a shape: of it, of it with a causal mask, and where the family takes quantised inputs
/// alone of it with Q, K and V in e4m3 those are taken that the row decides for.
/// @param rule of the family, or empty: all
std::vector<RuleWorkload> workloads_of_rules(const Family& family, const DeviceFacts& device, std::string_view rule);

/// What rows that do not decide are measured as: legal variants other than the default, one for each that differs.
struct OtherRow {
  DecidedRow decided;
  std::size_t other = 0;
  Variant variant;
};
std::vector<OtherRow> other_rows(const Family& family, const RuleWorkload& at, const DeviceFacts& device);

/// Measures the other rows at one workload. @param on_each told every reading as it is there
/// @throws Error(internal) where the default does not pass the gate, Error(interrupted)
void check_rules(TrialRunner& trial_runner, jit::Builder& builder, const Family& family, const RuleWorkload& at,
                 const std::function<void(RuleReading)>& on_each);

}  // namespace heed::trial
