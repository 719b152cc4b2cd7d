/// What is asked of a run, and its JSON in the store.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "record/model_options.hpp"

namespace heed::record {

enum class StrategyKind {
  single,   ///< every proposal is a mutation of the best so far
  elite,    ///< a population of the best so far; mutation, crossover, reversion, restart
  islands,  ///< several elite populations that exchange their best every few generations
};

std::string_view to_string(StrategyKind kind);
StrategyKind parse_strategy(std::string_view text);  ///< @throws Error(usage)

struct StrategyOptions {
  StrategyKind kind = StrategyKind::elite;
  int population = 5;       ///< elites kept, and trials a generation
  int drafts = 1;           ///< proposals for each trial, of which one is chosen: kDraftsARound, then as many more
  int islands = 3;          ///< for StrategyKind::islands
  int migration_every = 3;  ///< generations
  std::uint64_t seed = 1;
};

/// Stands in the options of a run that no search made: replies were judged into it one at a time.
inline constexpr const char* kJudged = "judged";

/// Everything that decides a run; stored with it.
struct RunOptions {
  Workload workload;
  std::vector<std::string> families;  ///< the base's first; empty: every one that runs the workload
  StrategyOptions strategy;
  std::string hold;                ///< "rowsum=mma": knobs that have these values in the base and in every trial
  std::vector<std::string> found;  ///< variants that earlier runs found, tried first
  int trials = 45;
  double budget_s = 0;  ///< wall clock of the whole run, final comparison and ablation included; 0: no limit
  bool peers = true;    ///< compare the champion with PyTorch's SDPA where it can be imported
  std::string python = "python3";
  bool profile = true;  ///< read hardware counters of the best of each generation, where they can be read
  std::vector<std::string>
      tensors;  ///< files of the user's own tensors: one safetensors file or three .npy files; none: random inputs
  std::string tensors_digest;
  ModelOptions models;  ///< that write sources; none: knobs alone
};

nlohmann::json to_json(const RunOptions& options);
/// @throws nlohmann::json::exception where one is missing or of another type, Error for a workload or a strategy that
/// there is none of
RunOptions options_from_json(const nlohmann::json& json);

}  // namespace heed::record
