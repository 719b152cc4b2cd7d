/// What the store keeps, as it is decided by: verdicts and drafts typed, raw readings as the JSON that lab/record
/// wrote.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "verdict/verdict.hpp"

namespace heed::store {

enum class RunState {
  running,
  interrupted,
  finished,
  judged,  ///< no search: edits are judged into it one at a time
};
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

/// Places of a generation that were proposed together, in a run whose devices share its places: when that many trials
/// were finished, which with the seed and the places before them decides what was proposed.
struct GenerationRecord {
  std::int64_t run = 0;
  int generation = 0;
  int known = 0;
  int place = 0;   ///< the first of them
  int places = 0;  ///< how many were asked for; 0: all to the generation's end
};

/// A proposal for a trial that was looked at.
struct DraftRecord {
  std::string config = {};     ///< family:knob=value,...
  std::string edits = {};      ///< the digest of its edited sources; empty where they are as carried
  std::string operation = {};  ///< as a trial's
  std::string why = {};
  double ratio = 0;    ///< base time / draft time, of all screenings; 0 where it could not be timed
  double certain = 0;  ///< what drafts are ranked by (evolve::Draft::certain)
  double us = 0;
  int screenings = 0;
  std::string reason = {};  ///< why it could not be timed
  bool operator==(const DraftRecord&) const = default;
};
nlohmann::json to_json(const DraftRecord& draft);

/// One variant built, verified and measured. Field names are the columns'.
struct TrialRecord {
  std::int64_t id = 0;
  std::int64_t run = 0;
  int number = 0;  ///< 0, 1, ... within the run
  int generation = 0;
  int island = 0;
  int place = -1;         ///< of the generation's; -1 where trials are one after the other, and for what has no place
  std::string device;     ///< that judged it, where the run was given several to choose from
  std::string variant;    ///< id
  std::string config;     ///< family:knob=value,...
  nlohmann::json edits;   ///< of its sources, as lab/source wrote them; null where they are as carried
  std::string operation;  ///< how it was proposed: a name of evolve::Operation
  std::vector<int> parents;         ///< trial numbers
  std::string why;                  ///< the change in words
  std::vector<DraftRecord> drafts;  ///< it and those that it was chosen from; none where it was proposed alone
  Verdict verdict = Verdict::ok;
  Finding finding = Finding::none;
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
  nlohmann::json gate_checks = nlohmann::json::array();  ///< errors of every check of the gate, what is allowed of them
                                                         ///< and what the unfused computation is off by
  nlohmann::json resources;                              ///< registers, spills, ...
  nlohmann::json samples;                                ///< raw readings: base_us, trial_us, ratios
  nlohmann::json clocks;                                 ///< MHz, W and degrees before and after
  nlohmann::json diagnosis;  ///< what bounds the kernel (lab/profile/diagnosis.hpp); null for a trial that did not pass
  double build_ms = 0;
  double verify_ms = 0;
  double measure_ms = 0;
  double run_elapsed_s = 0;  ///< what the run had taken when this trial ended, over all processes that worked on it
  std::string finished;      ///< UTC

  [[nodiscard]] bool ok() const { return verdict == Verdict::ok; }
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

}  // namespace heed::store
