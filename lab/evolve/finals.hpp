/// The final comparison of a run: its best few once more, in fresh processes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "evolve/run_context.hpp"
#include "evolve/selection.hpp"
#include "record/run_result.hpp"

namespace heed::evolve {

/// What the final comparison came to: the one that won, or why each was refused.
struct FinalOutcome {
  std::optional<record::Champion> champion;  ///< without its resources
  std::vector<std::string> refused;
  trial::TrialRunner::SelfComparison yardstick;  ///< the base against itself, measured beside the finalists
};

class Finals {
 public:
  explicit Finals(RunContext& run) : run_(run) {}

  /// What won among many by luck falls back here. Where plain launches do not tell some apart, dependent ones do. One
  /// that a fresh process refuses makes room for the next best.
  /// @param called_up numbers of trials that take part whatever the search measured of them
  FinalOutcome compare(const std::set<std::size_t>& called_up);
  /// Numbers of the trials in the last comparison.
  [[nodiscard]] const std::set<std::size_t>& finalists() const { return finalists_; }

 private:
  struct Finalist {
    Contender contender;
    record::Champion champion;  ///< its numbers, should it win
  };

  trial::TrialRunner::SelfComparison measure_yardstick();
  void prefer_short_dependents(std::vector<Finalist>& finalists);
  bool keeps_pace(record::Champion& finalist, std::vector<std::string>& refused);
  /// Of edited sources: whether no tool objects to them.
  bool passes_tools(const store::TrialRecord& trial, std::vector<std::string>& refused);
  /// And whether the emulated GPU runs them right; what it cannot run passes. The outcome is stored.
  bool passes_emulator(const store::TrialRecord& trial, std::vector<std::string>& refused);
  /// Notes why in `refused` where that process refused it.
  std::optional<record::FinalComparison> compare_in_fresh_process(const store::TrialRecord& trial,
                                                                  std::vector<std::string>& refused);
  void store_comparison(const record::FinalComparison& comparison);
  void refuse(const std::string& why, std::vector<std::string>& refused);

  /// A program that passed the gate in a fresh process of this comparison or an earlier one.
  struct Verified {
    std::string machine_code;
    verify::ErrorStats error;
  };

  RunContext& run_;
  std::set<std::size_t> finalists_;
  // What a round measured is as good in the next one, which an ablation begins some seconds later.
  std::optional<trial::TrialRunner::SelfComparison> yardstick_;
  std::map<std::size_t, std::vector<record::FinalComparison>> measured_;  ///< of each trial, in fresh processes
  std::map<int, double> large_us_;
  std::map<std::size_t, double> dependent_us_;
  std::map<int, Verified> verified_;  ///< by the trial's number
  std::map<int, emulator::Report> emulated_;
  std::map<int, std::string> objections_;  ///< of tools, to trials with edited sources; "" where there is none
  double base_large_us_ = 0;               ///< of the base where scores are large; 0 before it is asked for
};

}  // namespace heed::evolve
