/// Runs, trials and measurements in one SQLite file. A trial is one transaction: after any kill, every trial that
/// finished is there and none is there by half. Knows no CUDA.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/sqlite.hpp"

namespace heed::store {

/// Layout of the tables. A file with a higher number was written by a newer Heed and is left alone.
inline constexpr int kSchemaVersion = 5;

enum class RunState { running, interrupted, finished };
std::string_view to_string(RunState state);

/// One evolution.
struct RunRecord {
  std::int64_t id = 0;
  std::string created;      ///< UTC, ISO 8601
  std::string workload;     ///< canonical text
  std::string families;     ///< those searched, the base's first, with commas between
  std::string device_kind;  ///< "cpu" or "cuda"
  nlohmann::json device;    ///< facts of the machine
  nlohmann::json options;   ///< all that decides the search: strategy, seed, population, trials, ...
  std::string heed;         ///< version
  std::string source_digest;
  RunState state = RunState::running;
  nlohmann::json base;    ///< base variant, A/A spread, launch floor: written once, before the first trial
  nlohmann::json result;  ///< champion, final comparison, peers: null until the run is finished
};

/// One variant built, verified and measured. Field names are the columns'.
struct TrialRecord {
  std::int64_t id = 0;
  std::int64_t run = 0;
  int number = 0;  ///< 0, 1, ... within the run
  int generation = 0;
  int island = 0;
  std::string variant;                              ///< id
  std::string config;                               ///< family:knob=value,...
  std::string operation;                            ///< how it was proposed: a name of evolve::Operation
  std::vector<int> parents;                         ///< trial numbers
  std::string why;                                  ///< the change in words
  nlohmann::json drafts = nlohmann::json::array();  ///< it and those that it was chosen from (evolve::Evolution)
  std::string verdict;
  std::string finding;
  std::string reason;
  std::string check;
  double ratio = 0;
  double ratio_low = 0;
  double ratio_high = 0;
  double base_us = 0;
  double trial_us = 0;
  double max_abs = 0;
  double rel_rms = 0;
  double worst_row = 0;
  std::uint64_t seed = 0;  ///< of the gate's inputs
  std::string source_digest;
  std::string machine_code;
  nlohmann::json resources;  ///< registers, spills, ...
  nlohmann::json samples;    ///< raw readings: base_us, trial_us, ratios
  nlohmann::json clocks;     ///< MHz, W and degrees before and after
  nlohmann::json diagnosis;  ///< what bounds the kernel (lab/profile/diagnosis.hpp); null for a trial that did not pass
  double build_ms = 0;
  double verify_ms = 0;
  double measure_ms = 0;
  double run_elapsed_s = 0;  ///< what the run had taken when this trial ended, over all processes that worked on it
  std::string finished;      ///< UTC
};

/// A measurement outside the trials: "final", "peer", "ablation", "cold", "replay".
struct ComparisonRecord {
  std::int64_t id = 0;
  std::int64_t run = 0;
  std::string kind;
  std::string subject;
  std::string against;
  nlohmann::json data;
};

class Store {
 public:
  /// Creates the file and its tables when there are none. @throws Error(store)
  explicit Store(const std::filesystem::path& path, Access access = Access::read_write);

  std::int64_t add_run(const RunRecord& run);
  [[nodiscard]] std::optional<RunRecord> find_run(std::int64_t id);
  [[nodiscard]] std::vector<RunRecord> runs();
  void set_state(std::int64_t run, RunState state);
  void set_base(std::int64_t run, const nlohmann::json& base);
  void set_result(std::int64_t run, const nlohmann::json& result, RunState state);

  /// Makes this process the one that works on a run. @throws Error(store) when another living process does
  void claim(std::int64_t run);
  void release(std::int64_t run);

  /// One transaction. @return its id
  std::int64_t add_trial(const TrialRecord& trial);
  /// Replaces the diagnosis of a stored trial by one that rests on more.
  void set_diagnosis(std::int64_t trial, const nlohmann::json& diagnosis);
  [[nodiscard]] std::vector<TrialRecord> trials(std::int64_t run);
  [[nodiscard]] std::optional<TrialRecord> find_trial(std::int64_t id);

  void add_comparison(const ComparisonRecord& comparison);
  [[nodiscard]] std::vector<ComparisonRecord> comparisons(std::int64_t run);
  void remove_comparisons(std::int64_t run);

  [[nodiscard]] Database& database() { return database_; }

 private:
  void create_tables();
  Database database_;
};

/// Now, in UTC, ISO 8601.
std::string utc_now();

}  // namespace heed::store
