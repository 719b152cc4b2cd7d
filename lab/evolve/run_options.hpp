/// What is asked of a run, and who is told how it goes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evolve/strategy.hpp"
#include "store/records.hpp"

namespace heed::evolve {

/// Everything that decides a run; stored with it.
struct RunOptions {
  Workload workload;
  std::vector<std::string> families;  ///< the base's first; empty: every one that runs the workload
  StrategyOptions strategy;
  std::vector<std::string> found;  ///< variants that earlier runs found, tried first
  int trials = 45;
  double budget_s = 0;  ///< wall clock of the whole run, final comparison and ablation included; 0: no limit
  bool peers = true;    ///< compare the champion with PyTorch's SDPA where it can be imported
  std::string python = "python3";
  bool profile = true;  ///< read hardware counters of the best of each generation, where they can be read
  std::vector<std::string>
      tensors;  ///< files of the user's own tensors: one safetensors file or three .npy files; none: random inputs
  std::string tensors_digest;
};

nlohmann::json to_json(const RunOptions& options);
RunOptions options_from_json(const nlohmann::json& json);

/// Told what happens, in order. All calls come from the thread that runs the evolution.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void message(const std::string& text) = 0;
  virtual void generation_started(int generation, int first_trial, int trials_in_all) = 0;
  /// `best_certain` is the highest lower end of an interval so far, this trial's included.
  virtual void trial_finished(const store::TrialRecord& trial, double best_certain, int trials_in_all) = 0;
};

}  // namespace heed::evolve
