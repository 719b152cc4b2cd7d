/// What the parts of a run share: what was asked for, the trial runner, the trials so far, and the time that is left.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "emulator/emulate.hpp"
#include "evolve/budget.hpp"
#include "evolve/observer.hpp"
#include "evolve/strategy.hpp"
#include "evolve/turns.hpp"
#include "jit/build.hpp"
#include "record/run_options.hpp"
#include "record/time_shares.hpp"
#include "store/store.hpp"
#include "trial/trial_runner.hpp"

namespace heed::evolve {

/// The families that a run goes through: those that its options name, else every one that runs the workload.
/// @throws Error(usage) for a name that is unknown or there twice, Error(unsupported) where one cannot run the workload
std::vector<const Family*> families_for(const record::RunOptions& options, const DeviceFacts& device);

/// The trials that a proposal or a prompt may rest on; by itself, all.
struct Basis {
  int generation = std::numeric_limits<int>::max();             ///< those of generations before it,
  std::size_t known = std::numeric_limits<std::size_t>::max();  ///< and of them the first that finished
  /// @param number of the trial
  [[nodiscard]] bool holds(int of_generation, int number) const {
    return of_generation < generation && static_cast<std::size_t>(number) < known;
  }
  [[nodiscard]] bool holds(const store::TrialRecord& trial) const { return holds(trial.generation, trial.number); }
};

/// A set of edits of a family's sources that passed.
struct EditedSources {
  Variant variant;     ///< of the first trial that brought them
  std::string digest;  ///< of its overlay
  int generation = 0;  ///< of that trial
  int trial = 0;       ///< its number
};

/// Adds up what threads of a device waited for builds.
class BuildClock {
 public:
  void add(const record::BuildTimes& times) {
    const std::lock_guard lock(mutex_);
    times_ += times;
  }
  [[nodiscard]] record::BuildTimes times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  mutable std::mutex mutex_;
  record::BuildTimes times_;
};

struct RunContext {
  /// @throws Error(usage, unsupported) for families, variants or options that make no run on this device
  RunContext(store::Store& store, jit::Builder& builder, const DeviceFacts& device, const record::RunOptions& options,
             const trial::Options& trial_options, const QkvTensors* tensors, Observer& observer);
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  store::Store& store;
  jit::Builder& builder;
  DeviceFacts device;
  record::RunOptions options;
  Observer& observer;
  const QkvTensors* tensors;            ///< the user's own; null: random inputs
  std::vector<const Family*> families;  ///< those searched; the default of the first is the base
  std::vector<Variant> found;           ///< by earlier runs
  /// Knobs are searched with edits that passed as they are without, in a space behind those of the families.
  std::vector<EditedSources> edited;
  trial::TrialRunner trial_runner;
  /// Of the id of a stored trial with edited sources, before it is champion: what a tool objects to; empty: nothing.
  /// Null: no tool looks.
  std::function<std::string(std::int64_t)> sanitize;
  /// Runs a variant with edited sources on the emulated GPU, before it is champion. Null: there is none of its device.
  std::function<emulator::Report(const Variant&)> emulate;
  std::int64_t run = 0;
  std::vector<store::TrialRecord> trials;
  double self_spread = 0;         ///< how far from 1 the base's ratio to itself lay before the search
  double prepared_s = 0;          ///< what building, verifying and measuring the base took
  double earlier_s = 0;           ///< taken by the processes before this one
  bool counters_readable = true;  ///< until a reading fails
  nlohmann::json base_diagnosis;  ///< of the base, as trials have theirs; null: none was made
  trial::Phases draft_phases;     ///< of the trial runner that screens drafts
  BuildClock builds;
  std::vector<std::pair<std::string, double>> parts;  ///< TimeShares::parts
  /// The end of the last measurement of a trial. Of who has the device.
  std::chrono::steady_clock::time_point timed_at = {};
  Turns turns;             ///< on the device, of threads that share this trial runner and that of drafts
  double beside_s = 0;     ///< that other devices worked for the search
  double elsewhere_s = 0;  ///< in which PyTorch or a reader of counters had the device
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();

  /// What the time of this process went to so far.
  [[nodiscard]] record::TimeShares time_shares() const;
  /// Of the run, over all processes that worked on it.
  [[nodiscard]] double elapsed_s() const;
  [[nodiscard]] Budget budget() const { return {options.budget_s}; }
  [[nodiscard]] bool has_time_for(double seconds) const { return budget().left_s(elapsed_s()) >= seconds; }
  /// What the gate takes, as far as is known.
  [[nodiscard]] double gate_s() const;
  /// A trial takes about as long as those before it; the first as long as the base took.
  [[nodiscard]] int trials_that_fit() const;
  /// Of a finalist in a fresh process. Longer than a trial's: this is the number that is quoted.
  [[nodiscard]] measure::PairOptions final_pair() const;
  [[nodiscard]] double final_process_s() const { return gate_s() + final_pair().limit_s; }
  /// An interval much narrower than what the base shows against itself on this machine decides nothing more; one that
  /// is wide decides nothing either.
  [[nodiscard]] measure::PairOptions as_sharp_as_useful(measure::PairOptions options) const;

  [[nodiscard]] Variant variant_of(const Proposal& proposal) const;
  [[nodiscard]] Variant variant_of(const store::TrialRecord& trial) const;
  /// The place of a variant's edits among those that trials of the basis brought, behind the families; else that of its
  /// family among those searched.
  [[nodiscard]] int space_of(const Variant& variant, const Basis& basis = {}) const;
  /// @param digest of the variant's overlay; empty where it has none
  [[nodiscard]] int space_of(const Family& family, std::string_view digest, const Basis& basis) const;
  /// Takes the trials of a stored run over.
  void take_trials(std::vector<store::TrialRecord> stored);
  /// The highest lower end of an interval so far; 0 where no trial passed.
  [[nodiscard]] double best_certain() const;
  [[nodiscard]] std::size_t drafts_looked_at() const;
  /// Of the variant's dependent launches; 0 where its plan does not allow them.
  [[nodiscard]] double dependent_us(const Variant& variant);
  /// Stores a finished trial and tells the observer. @param trials_in_all as far as is known
  void add_trial(store::TrialRecord trial, int trials_in_all);
  /// Of a trial that passed: its edits are a space from here on. For runs that learn of trials of others, from any
  /// thread, in the order in which they were stored.
  void note_edits(const store::TrialRecord& trial);

 private:
  mutable std::mutex edited_mutex_;
};

/// A part of a run, from here to the end of the scope. Parts of one name are one.
class PartOfRun {
 public:
  PartOfRun(RunContext& run, std::string name) : run_(run), name_(std::move(name)), begin_s_(run.elapsed_s()) {}
  ~PartOfRun();
  PartOfRun(const PartOfRun&) = delete;
  PartOfRun& operator=(const PartOfRun&) = delete;

 private:
  RunContext& run_;
  std::string name_;
  double begin_s_;
};

/// From here to the end of the scope the device is not the trial runner's.
class Elsewhere {
 public:
  explicit Elsewhere(RunContext& run) : run_(run), begin_s_(run.elapsed_s()) {}
  ~Elsewhere() { run_.elsewhere_s += run_.elapsed_s() - begin_s_; }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

 private:
  RunContext& run_;
  double begin_s_;
};

}  // namespace heed::evolve
