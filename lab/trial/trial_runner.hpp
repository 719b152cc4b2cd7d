/// One workload on one device: building, verifying and timing variants against a base.
///
/// A trial goes: admit, build, verify, measure, re-verify, judge; the cheapest refusal comes first. Everything a
/// candidate does happens in a worker process; whatever becomes of that process is a verdict, and the next trial gets a
/// fresh one.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "measure/floor.hpp"
#include "measure/pair.hpp"
#include "measure/spot_check.hpp"
#include "measure/timed_sets.hpp"
#include "trial/phases.hpp"
#include "verify/gate.hpp"

namespace heed::trial {

struct Options {
  double build_limit_s = 120;
  double launch_limit_s = 20;  ///< for one launch, and for one block of timed launches
  measure::PairOptions pair;   ///< of a trial
  /// Of a finalist in its fresh process: more readings, for this is the number that is quoted.
  measure::PairOptions final_pair{
      .least_quads = 12, .most_quads = 60, .target_uncertainty = 0.0015, .hopeless_below = 0, .limit_s = 5};
  /// How many times as slow as the base a champion may be where scores are large (measure_large). Timed inputs are
  /// normal: a kernel could gain by being slow on all others. Two times of one kernel on a busy CPU are nearer
  /// than 1.5.
  double most_slowdown = 1.5;
  /// Whether what a GPU does in gates is told by CUPTI's activity records. The library then stays in the process that
  /// also times; that it leaves times alone was never shown, so nobody gets it unasked.
  bool activity_records = false;
};

/// What became of one variant.
struct Outcome {
  Verdict verdict = Verdict::ok;
  Finding finding = Finding::none;
  std::string reason;
  std::string check;
  verify::ErrorStats error;
  std::vector<verify::CheckResult> checks;  ///< the gate's, in order
  measure::PairResult pair;                 ///< against the base; empty unless it was measured
  std::optional<jit::Artifact> artifact;
  std::uint64_t seed = 0;  ///< of the gate's inputs
  DeviceState before;
  DeviceState after;
  double verify_ms = 0;
  double measure_ms = 0;
  [[nodiscard]] bool ok() const { return verdict == Verdict::ok; }
};

/// What a few readings say of a variant that nobody has verified.
struct Screening {
  measure::PairResult pair;  ///< a few quads beside the base; empty where it could not be timed
  std::string reason;        ///< why it could not be timed
};

/// How long a screening may take.
struct ScreeningOptions {
  int most_replays = std::numeric_limits<int>::max();  ///< of a block; fewer are enough to choose by
  /// Base time / its time: a first quad below that is the last.
  double hopeless_below = 0;
  /// When another trial runner last timed something on the device: a GPU has rested since then, not for longer.
  std::chrono::steady_clock::time_point timed_at = {};
};

/// A variant with its binary.
struct Built {
  Variant variant;
  jit::Artifact artifact;
};

/// Times of one variant by itself.
struct Absolute {
  double warm_us = 0;
  double cold_us = 0;
  double eager_us = 0;  ///< per call back to back, host included; 0 on a CPU
  double eager_synchronised_us = 0;
  /// Warm, each launch a programmatic dependent of the one before it: its beginning overlaps that one's end. 0 where
  /// the plan does not allow it. No score or ratio uses it.
  double dependent_us = 0;
};

/// A variant that passed the gate and whose outputs or memory are wrong where its time is taken.
class WrongWhenTimed : public Error {
 public:
  WrongWhenTimed(const Variant& variant, const verify::Comparison& comparison);
  [[nodiscard]] Finding finding() const { return finding_; }

 private:
  Finding finding_;
};

class TrialRunner {
 public:
  /// @param done a trial runner of the same device whose worker, if it still lives, this one goes on with: many
  /// workloads
  ///     in a row then share one GPU context, which takes half a second to make. It has none afterwards
  TrialRunner(const Workload& workload, const DeviceFacts& device, jit::Builder& builder, const QkvTensors* tensors,
              const Options& options, TrialRunner* done = nullptr);
  ~TrialRunner();
  TrialRunner(const TrialRunner&) = delete;
  TrialRunner& operator=(const TrialRunner&) = delete;

  [[nodiscard]] const Workload& workload() const { return workload_; }
  [[nodiscard]] const DeviceFacts& device() const { return device_; }
  [[nodiscard]] const Options& options() const { return options_; }
  /// What its time has gone to so far; standalone_block's is not among it.
  [[nodiscard]] const Phases& phases() const { return clock_.times; }
  /// Why there are no activity records, where they were asked for; empty where there are.
  [[nodiscard]] const std::string& no_records() const { return no_records_; }

  /// Why a variant is not worth a build: refused workload or illegal config. Empty when it is.
  [[nodiscard]] std::optional<std::string> refuses(const Variant& variant) const;
  [[nodiscard]] jit::BuildRequest request_for(const Variant& variant) const;
  /// Builds now. @throws Error(build_failed) with the compiler's words
  Built build(const Variant& variant, bool fresh = false);

  /// The variant all others are measured against. Gates it first, where this trial runner has not. @throws
  /// Error(internal) with the gate's reason when the base itself is refused
  void set_base(const Built& base);
  [[nodiscard]] const Built& base() const { return *base_; }

  /// The base against itself, in several fresh processes: what no difference looks like here.
  struct SelfComparison {
    measure::PairResult pair;  ///< all processes together
    double spread = 0;         ///< how far from 1 the interval of any one process reached
  };
  /// Measured on the first call.
  const SelfComparison& base_against_itself();
  /// Measured now, a process as `pair` says: what else runs on a machine comes and goes.
  SelfComparison compare_with_itself(const measure::PairOptions& pair);

  /// The base against itself, `comparisons` times, spread over a few fresh processes. @param on_each told every ratio
  std::vector<measure::Ratio> compare_base_with_itself(int comparisons, const measure::PairOptions& pair,
                                                       const std::function<void(const measure::Ratio&)>& on_each);

  /// Gate only.
  verify::GateReport verify(const Built& built, std::uint64_t seed,
                            const std::function<void(const std::string&)>& on_check = {});

  /// Gate, paired measurement against the base with spot checks of both, floor. Never throws for anything the candidate
  /// did. A worker that something outside killed is replaced and the trial begun anew. @param fresh in a worker process
  /// of its own
  Outcome judge(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
                const measure::PairOptions& pair, bool fresh = false);
  Outcome judge(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed) {
    return judge(variant, build, seed, options_.pair);
  }

  /// What judge() does after the gate, in a worker process of its own: once more for a variant that passed.
  Outcome measure_again(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair);

  /// A few readings beside the base, without a gate: enough to choose by which of several variants is worth a trial,
  /// and no verdict. Whatever they do to this trial runner's worker is its own: who judges needs another trial runner.
  /// Never throws for anything the candidate did. The device is warmed up for as long as it has rested since
  /// something was timed on it, as for a measurement at most.
  Screening screen(const Variant& variant, const jit::BuildOutcome& build, const ScreeningOptions& options = {});

  /// Warm, cold and eager times of one variant, and as dependent launches where its plan allows them, in fresh workers
  /// and with spot checks. @throws WrongWhenTimed, here and in the next three
  Absolute measure_absolute(const Built& built);

  /// us, warm, with scores of up to +-60 before the softmax (verify::InputClass::large_logits): what a reference below
  /// which probabilities overflow, and must be taken again, costs where that happens everywhere.
  double measure_large(const Built& built);

  /// Absolute::dependent_us alone.
  double measure_dependent(const Built& built);

  /// A block for measure_pair that times `built` in a worker of its own, which lives as long as the block, and checks
  /// it in some of its calls. For comparisons with something outside, such as PyTorch.
  measure::Block standalone_block(const Built& built);
  [[nodiscard]] const measure::TimingPlan& timing() const { return sets_->plan(); }

  /// Bounds for a variant on `threads` processors (CPU) or the whole GPU. The launch bound is measured once.
  measure::Floor floor(int threads);
  [[nodiscard]] double peak_flops() const;

 private:
  worker::Worker& worker_for(const Built& base, const Built& trial, bool fresh);
  void drop_worker();
  /// A worker whose device time counts among the phases.
  [[nodiscard]] std::unique_ptr<worker::Worker> start_worker(const std::shared_ptr<worker::Arena>& arena);
  void record_activities();
  void ensure_arena(std::uint64_t bytes);
  void ensure_sets(const LaunchMemory& memory);
  [[nodiscard]] LaunchPlan plan_of(const Variant& variant) const;
  [[nodiscard]] static std::string name_of(const Built& built);
  struct Blocks {
    measure::Block base;
    measure::Block trial;
  };
  Blocks warm_blocks(const Built& trial, bool fresh, double warm_up_ms,
                     int most_replays = std::numeric_limits<int>::max());
  /// The least quads of a comparison take about as long as it may, or less.
  [[nodiscard]] measure::TimingPlan plan_timing(measure::Caches caches) const;
  [[nodiscard]] double warm_up_ms() const;
  void measure_and_check(const Built& trial, const measure::PairOptions& pair, bool fresh, Outcome& outcome);
  void check_base_alone(const verify::Comparison& beside_trial);
  Outcome measure_again_once(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair, bool is_last);
  Outcome judge_once(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
                     const measure::PairOptions& pair, bool fresh, bool is_last);
  Blocks watched(const Blocks& blocks, measure::SpotChecks& checks) const;
  void load(worker::Worker& worker, int slot, const Built& built);
  /// Does `work` again when something outside has killed its worker.
  /// @param attempts in all; a candidate is given up sooner
  /// @throws Error (worker) when that does not help
  template <typename Work>
  auto undisturbed(const Work& work, int attempts = 20);
  /// undisturbed() of the base's own timing: what a candidate would be refused for ends the command with a sentence.
  template <typename Work>
  auto of_base(const Work& work);
  double measure_launch_floor();
  /// Median us of a launch in a fresh worker; `eager`, if not null, gets the times of eager launches.
  double time_alone(const Built& built, measure::TimedSets& sets, worker::Follow follow, Absolute* eager = nullptr);
  double time_alone_once(const Built& built, measure::TimedSets& sets, worker::Follow follow, Absolute* eager);

  static constexpr int kBaseSlot = 0;
  static constexpr int kTrialSlot = 1;
  static constexpr int kEmptySlot = 2;

  Workload workload_;
  DeviceFacts device_;
  jit::Builder& builder_;
  const QkvTensors* tensors_;
  Options options_;
  std::optional<Built> base_;
  std::set<std::string> passed_;  ///< binaries, each with the variant that it is of
  std::optional<SelfComparison> self_;
  std::shared_ptr<worker::Arena> arena_;
  std::unique_ptr<worker::Worker> worker_;
  std::string base_in_worker_;  ///< binary in slot 0 of the living worker
  std::unique_ptr<measure::TimedSets> sets_;
  std::optional<double> launch_us_;
  PhaseClock clock_;
  std::chrono::steady_clock::time_point screened_at_ = {};  ///< the end of the last screening
  std::string no_records_;
};

template <typename Work>
auto TrialRunner::undisturbed(const Work& work, int attempts) {
  for (int attempt = 1;; ++attempt) try {
      return work();
    } catch (const worker::WorkerFailure& failure) {
      drop_worker();
      if (failure.kind() != worker::WorkerFailure::Kind::killed) throw;
      if (attempt == attempts)
        throw Error(ErrorCode::worker,
                    fmt::format("something outside kills the workers of this run, {} times in a row: {}. The system "
                                "does it where memory runs out: free some, or choose a smaller workload",
                                attempts, failure.what()));
    }
}

template <typename Work>
auto TrialRunner::of_base(const Work& work) {
  const auto refuse = [&](const std::exception& failure) {
    return Error(ErrorCode::worker,
                 fmt::format("the base {} cannot be timed here: {}. Where other programs take the processors, stop "
                             "them, or allow more time with --launch-limit",
                             describe(base_->variant), failure.what()));
  };
  try {
    return undisturbed(work);
  } catch (const worker::WorkerFailure& failure) {
    throw refuse(failure);
  } catch (const measure::ForgedTime& failure) {
    throw refuse(failure);
  }
}

}  // namespace heed::trial
