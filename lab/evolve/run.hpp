/// One evolution from start to result: generations of trials, the final comparison in fresh processes, the ablation.
///
/// Most of a trial is its gate. So several drafts are proposed for each trial, built, and timed for a moment without
/// one, in rounds that begin with the fastest so far; the fastest of all is the trial. What a draft read decides that
/// alone: whatever is called faster was verified first and measured after.
///
/// The ablation is part of the search: where the champion is faster with one of its changes put back, that variant is
/// one more trial, and the final comparison begins again.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "evolve/budget.hpp"
#include "evolve/draft.hpp"
#include "evolve/final_comparison.hpp"
#include "evolve/noise.hpp"
#include "evolve/strategy.hpp"
#include "profile/collect.hpp"
#include "profile/diagnosis.hpp"
#include "record/json.hpp"
#include "store/store.hpp"
#include "trial/laboratory.hpp"

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

class Evolution {
 public:
  /// A new run, or `resume` to go on with a stored one (which then must be for this device and these sources).
  /// @throws Error(usage, unsupported) when it cannot be
  Evolution(store::Store& store, jit::Builder& builder, const DeviceFacts& device, const RunOptions& options,
            const trial::Options& trial_options, const QkvTensors* tensors, Observer& observer,
            std::optional<std::int64_t> resume);
  ~Evolution();

  [[nodiscard]] std::int64_t run_id() const { return run_; }
  /// Those searched; the default of the first is the base.
  [[nodiscard]] const std::vector<const Family*>& families() const { return families_; }

  /// Runs to the end. On Error(interrupted) the run is marked so and can be resumed; every finished trial is stored.
  /// @return the run's result, as stored
  nlohmann::json run();

 private:
  void prepare_base();
  void evolve();
  nlohmann::json finish();
  void profile_elites(int generation);
  [[nodiscard]] std::size_t drafts_looked_at() const;
  [[nodiscard]] Budget budget() const;
  [[nodiscard]] double gate_s() const;  ///< what the gate takes, as far as is known
  [[nodiscard]] int trials_that_fit() const;
  [[nodiscard]] bool has_time_for(double seconds) const;
  [[nodiscard]] double best_certain() const;
  [[nodiscard]] bool may_read_counters() const;
  std::optional<profile::Counters> read_counters(const trial::Built& built, std::uint64_t seed);
  Finals compare_finalists();
  trial::Laboratory::SelfComparison measure_yardstick();
  [[nodiscard]] measure::PairOptions final_pair() const;
  [[nodiscard]] double final_process_s() const;
  /// Of the variant's dependent launches; 0 where its plan does not allow them.
  double dependent_us(const Variant& variant);
  void prefer_short_dependents(std::vector<FinalComparison>& finalists);
  bool keeps_pace(FinalComparison& finalist, std::vector<std::string>& refused);
  /// Notes why in `refused` where that process refused it.
  std::optional<trial::Outcome> compare_in_fresh_process(const store::TrialRecord& trial,
                                                         std::vector<std::string>& refused);
  nlohmann::json compare_with_peers(const trial::Built& champion);
  nlohmann::json ablate(const trial::Built& champion);
  bool try_ablation_winner(const nlohmann::json& ablation, int champion_trial);
  void draft(int generation, const std::vector<Space>& where, std::vector<Individual> history,
             std::vector<Place>& places);
  void start(Draft& draft);
  static void wait_for(Draft& draft);
  void look_at(Draft& draft);
  store::TrialRecord run_best_of(int number, int generation, Place& place);
  void measure_until_settled(trial::Outcome& judged, const trial::Built& built, int island,
                             const measure::PairOptions& pair);
  store::TrialRecord run_trial(int number, int generation, const Proposal& proposal, const jit::BuildOutcome& outcome);
  static std::string as_twin_of(const store::TrialRecord& twin);
  [[nodiscard]] const store::TrialRecord* twin_of(const Variant& variant, const jit::BuildOutcome& build) const;
  [[nodiscard]] profile::Diagnosis diagnose(const Variant& variant, const jit::Resources& resources, double us,
                                            const std::optional<profile::Counters>& counters);
  [[nodiscard]] measure::PairOptions as_sharp_as_useful(measure::PairOptions options) const;
  /// As they were known when `generation` was proposed.
  [[nodiscard]] std::vector<Individual> individuals(int generation) const;
  [[nodiscard]] std::vector<Space> spaces() const;
  [[nodiscard]] Variant variant_of(const Proposal& proposal) const;
  [[nodiscard]] Variant variant_of(const store::TrialRecord& trial) const;
  [[nodiscard]] int space_of(const Variant& variant) const;
  /// Of the run, over all processes that worked on it.
  [[nodiscard]] double elapsed_s() const;

  store::Store& store_;
  jit::Builder& builder_;
  DeviceFacts device_;
  RunOptions options_;
  Observer& observer_;
  std::vector<const Family*> families_;
  std::vector<Variant> found_;
  trial::Laboratory laboratory_;
  /// Looks at drafts, which nobody has verified, in a worker of its own: what one of them leaves there reaches no
  /// trial.
  std::optional<trial::Laboratory> drafting_;
  std::int64_t run_ = 0;
  std::vector<store::TrialRecord> trials_;
  std::set<std::size_t> in_final_;   ///< numbers of the trials in the last final comparison
  std::set<std::size_t> called_up_;  ///< of those that the ablation wants in the next one
  double self_spread_ = 0;           ///< how far from 1 the base's ratio to itself lay before the search
  double prepared_s_ = 0;            ///< what building, verifying and measuring the base took
  double base_large_us_ = 0;         ///< of the base where scores are large; 0 before it is asked for
  double floor_us_ = 0;
  bool counters_readable_ = true;  ///< until a reading fails
  double earlier_s_ = 0;           ///< taken by the processes before this one
  std::chrono::steady_clock::time_point started_;
};

}  // namespace heed::evolve
