/// What a run ends with: the numbers it decides by, and their JSON in the store.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profile/diagnosis.hpp"
#include "record/time_shares.hpp"
#include "trial/noise.hpp"
#include "trial/trial_runner.hpp"

namespace heed::record {

/// How a run ended.
enum class Ending { faster, not_faster, too_noisy, no_variant };
std::string_view to_string(Ending ending);
/// By the rules of base/faster.hpp.
[[nodiscard]] Ending ending_of(const measure::Ratio& ratio, double self_spread);

/// The base of a run: what all its trials are measured against.
struct RunBase {
  std::string variant;   ///< its id
  std::string describe;  ///< family:knob=value,...
  trial::TrialRunner::SelfComparison self;
  trial::Noise noise;
  jit::Resources resources;
  measure::Floor floor;
};
nlohmann::json to_json(const RunBase& base);
/// RunBase::self.spread of a stored base, on which a resumed run's decisions rest, too.
/// @throws nlohmann::json::exception where there is none
[[nodiscard]] double self_spread_of(const nlohmann::json& base);

/// A finalist: a finished trial that was measured again in fresh processes.
struct FinalComparison {
  int trial = 0;              ///< its number within the run
  std::int64_t trial_id = 0;  ///< of the store
  std::string variant;        ///< its id
  std::string config;         ///< family:knob=value,...
  double search_ratio = 0;    ///< what the search measured
  Verdict verdict = Verdict::ok;
  std::string reason;        ///< of any other verdict
  measure::PairResult pair;  ///< of one process; of the winner what is quoted
  verify::ErrorStats error;  ///< the last process's
  DeviceState before;
  DeviceState after;
};
/// Of one process.
nlohmann::json to_json(const FinalComparison& comparison);

/// The finalist that won.
struct Champion {
  FinalComparison comparison;
  jit::Resources resources;
  std::size_t measured_processes = 0;  ///< of which comparison.pair has the narrowest
  double dependent_us = 0;             ///< of a dependent launch; 0 where it has none, or nobody asked
  double large_us = 0;                 ///< where scores are large
  double base_large_us = 0;
};
nlohmann::json to_json(const Champion& champion);

/// What one of a champion's changes bought.
struct AblationRow {
  std::string knob;
  std::string of_default;   ///< value
  std::string of_champion;  ///< value
  std::string config;       ///< the champion with this change taken back
  Verdict verdict = Verdict::ok;
  std::string reason;
  std::optional<measure::Ratio> bought;  ///< time without the change / time with it; none where it cannot be taken back
  double without_us = 0;
  double dependent_us = 0;  ///< the champion's dependent launch; 0 where there is none, or nobody asked
  double without_dependent_us = 0;
};
nlohmann::json to_json(const AblationRow& row);

/// A backend of PyTorch beside the champion.
struct PeerRow {
  std::string backend;
  std::vector<std::string> kernels;
  std::string refused;                      ///< why it has no time; empty when it has one
  std::optional<measure::PairResult> pair;  ///< the backend as the base, the champion as the trial
  double max_abs = 0;                       ///< its largest error against float64
};
nlohmann::json to_json(const PeerRow& row);

struct PeerComparison {
  std::string reason;  ///< why there was none; empty when there was one
  std::string torch;
  std::string cudnn;
  std::vector<PeerRow> rows;
  /// The backend that comes nearest to the champion; null where none has a time.
  [[nodiscard]] const PeerRow* best() const;
};
nlohmann::json to_json(const PeerComparison& peers);

/// Base or champion by itself.
struct Alone {
  trial::Absolute times;
  double large_us = 0;  ///< where scores are large
  profile::Diagnosis diagnosis;
  std::optional<profile::Counters> counters;
};

/// Of a run with a champion.
struct MeasuredChampion {
  Champion champion;
  Alone base_alone;
  Alone champion_alone;
  measure::Floor floor;
  double flops = 0;       ///< of the workload
  double peak_flops = 0;  ///< of the device, a second
  std::vector<AblationRow> ablation;
  PeerComparison peers;
};

/// What a run came to.
struct RunResult {
  std::size_t trials = 0;
  std::size_t drafts = 0;  ///< looked at
  double self_spread = 0;  ///< of the base against itself beside the finalists
  trial::Noise noise;
  Ending ending = Ending::no_variant;
  std::string summary;
  double elapsed_s = 0;
  TimeShares time;
  std::vector<std::string> refused;  ///< finalists, where there is no champion: why

  std::optional<MeasuredChampion> measured;
};
nlohmann::json to_json(const RunResult& result);

}  // namespace heed::record
