#include "evolve/source_judge.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/faster.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "compile/embedded.hpp"
#include "evolve/trials.hpp"
#include "insights/harvest.hpp"
#include "process/interrupt.hpp"
#include "profile/diagnosis.hpp"
#include "record/diagnosis.hpp"
#include "record/json.hpp"
#include "record/run_options.hpp"
#include "record/run_result.hpp"
#include "source/apply.hpp"
#include "source/refusals.hpp"
#include "source/stored.hpp"
#include "store/observations.hpp"
#include "trial/noise.hpp"

namespace heed::evolve {
namespace {

bool is_run_of(const store::RunRecord& run, const store::RunRecord& wanted) {
  return run.options.is_object() && run.options.value(record::kJudged, false) && run.workload == wanted.workload &&
         run.families == wanted.families && run.device == wanted.device && run.heed == wanted.heed &&
         run.source_digest == wanted.source_digest && run.options.value("referee", 0) == kReferee;
}

}  // namespace

SourceJudge::SourceJudge(store::Store& store, jit::Builder& builder, const DeviceFacts& device,
                         const Workload& workload, const Variant& parent, const trial::Options& options)
    : store_(store),
      builder_(builder),
      device_(device),
      parent_(parent),
      trial_runner_(workload, device, builder, nullptr, options) {
  parent_.overlay.reset();
  const Family& family = *parent.family;
  trial_runner_.set_base(trial_runner_.build(make_variant(family, family.default_config(workload, device), workload)));
  const trial::TrialRunner::SelfComparison& self = trial_runner_.base_against_itself();
  base_us_ = self.pair.base_median_us;
  self_spread_ = self.spread;
  open_run();
}

SourceJudge::~SourceJudge() {
  try {
    store_.set_state(run_, store::RunState::judged);
    store_.release(run_);
  } catch (const Error&) {
    // Its trials are stored; a run whose process has ended is claimed by the next.
  }
}

void SourceJudge::open_run() {
  const Family& family = *parent_.family;
  record::RunOptions options;
  options.workload = trial_runner_.workload();
  options.families = {std::string(family.name())};
  options.trials = 0;
  options.peers = false;
  options.profile = false;
  store::RunRecord wanted;
  wanted.created = store::utc_now();
  wanted.workload = to_string(options.workload);
  wanted.families = std::string(family.name());
  wanted.device_kind = to_string(device_.kind);
  wanted.device = record::to_json(device_);
  wanted.options = record::to_json(options);
  wanted.options["referee"] = kReferee;
  wanted.options[record::kJudged] = true;
  wanted.heed = kVersion;
  wanted.source_digest = compile::source_digest();
  for (const store::RunRecord& run : store_.runs())
    if (is_run_of(run, wanted)) try {
        store_.claim(run.id);
        run_ = run.id;
        record_ = store_.find_run(run_).value();
        trials_ = store_.trials(run_);
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::store) throw;  // another process judges into it
      }
  run_ = store_.add_run(wanted);
  const trial::Built& base = trial_runner_.base();
  const trial::TrialRunner::SelfComparison& self = trial_runner_.base_against_itself();
  store_.set_base(run_, record::to_json(record::RunBase{.variant = base.variant.id(),
                                                        .describe = describe(base.variant),
                                                        .self = self,
                                                        .noise = trial::noise_of(self),
                                                        .resources = base.artifact.resources,
                                                        .floor = trial_runner_.floor(device_.processors)}));
  record_ = store_.find_run(run_).value();
}

store::TrialRecord SourceJudge::new_record(const Variant& variant, std::string_view operation,
                                           const std::string& why) const {
  const int number = trials_.empty() ? 0 : trials_.back().number + 1;
  return new_trial(run_, number, number, variant, operation, why);
}

std::optional<SourceJudge::Twin> SourceJudge::token_twin(const store::TrialRecord& record) const {
  const auto tokens = [](const store::TrialRecord& one) {
    return one.edits.is_object() ? one.edits.value("tokens", std::string()) : std::string();
  };
  for (const store::TrialRecord& earlier : trials_)
    if (earlier.verdict != Verdict::duplicate && earlier.config == record.config && tokens(earlier) == tokens(record))
      return Twin{earlier,
                  fmt::format("the same {} as trial {}, which ended {}", record.edits.is_object() ? "tokens" : "knobs",
                              earlier.id, to_string(earlier.verdict))};
  return std::nullopt;
}

// Edits leave the launch plan as it is, so that of one config equal code is launched alike.
std::optional<SourceJudge::Twin> SourceJudge::code_twin(const Variant& variant, const jit::BuildOutcome& build) const {
  if (!build.artifact) return std::nullopt;
  const trial::Built& base = trial_runner_.base();
  if (base.artifact.machine_code == build.artifact->machine_code && describe(base.variant) == describe(variant)) {
    store::TrialRecord as_fast;
    as_fast.ratio = as_fast.ratio_low = as_fast.ratio_high = 1;
    return Twin{std::move(as_fast), "the same machine code as the base: nothing that is run has changed"};
  }
  for (const store::TrialRecord& earlier : trials_)
    if (earlier.verdict != Verdict::duplicate && earlier.config == describe(variant) &&
        earlier.machine_code == build.artifact->machine_code)
      return Twin{earlier, fmt::format("the same machine code as trial {}, which ended {}", earlier.id,
                                       to_string(earlier.verdict))};
  return std::nullopt;
}

void SourceJudge::judge_variant(const Variant& variant, Judgement& judgement) {
  trial::Outcome outcome;
  outcome.seed = judgement.trial.seed;
  const auto refuse_as = [&](Twin twin) {
    outcome.verdict = Verdict::duplicate;
    outcome.reason = std::move(twin.reason);
    judgement.earlier = std::move(twin.earlier);
  };
  if (const auto refusal = variant.overlay ? source::refusal_of(*variant.overlay) : std::nullopt) {
    outcome.verdict = Verdict::cheating;
    outcome.finding = Finding::breaks_contract;
    outcome.check = "source";
    outcome.reason = *refusal;
  } else if (std::optional<Twin> twin = token_twin(judgement.trial)) {
    refuse_as(std::move(*twin));
  } else {
    const jit::BuildOutcome build = builder_.build(trial_runner_.request_for(variant));
    check_interrupt();
    judgement.log = trim(build.artifact ? build.artifact->log : build.log);
    if (std::optional<Twin> same = code_twin(variant, build)) {
      refuse_as(std::move(*same));
      outcome.artifact = build.artifact;
    } else {
      outcome = trial_runner_.judge(variant, build, judgement.trial.seed);
    }
  }
  if (outcome.artifact) judgement.resources = outcome.artifact->resources;
  record_outcome(outcome, judgement.trial);
  judgement.faster = outcome.ok() && is_faster(judgement.trial.ratio_low, self_spread_);
}

Judgement SourceJudge::judge(std::string_view reply) {
  return judge(reply, parent_);
}

Judgement SourceJudge::judge(std::string_view reply, const Variant& parent) {
  HEED_CHECK(parent.family == parent_.family);
  Judgement judgement;
  Variant variant = parent;
  std::string insight;
  try {
    const source::Edits edits = source::parse_edits(reply);
    insight = edits.insight;
    variant.overlay = std::make_shared<const Overlay>(source::apply(edits, parent));
  } catch (const source::EditError& error) {
    judgement.trial.run = run_;
    judgement.trial.config = describe(parent);
    judgement.trial.verdict = Verdict::illegal;
    judgement.trial.check = "edits";
    judgement.trial.reason = error.what();
    return judgement;
  }
  judge_and_store(variant, new_record(variant, "edit", insight), judgement);
  return judgement;
}

Judgement SourceJudge::judge_knobs(const Variant& variant, const std::string& why) {
  HEED_CHECK(variant.family == parent_.family);
  Judgement judgement;
  judge_and_store(variant, new_record(variant, "knobs", why), judgement);
  return judgement;
}

void SourceJudge::judge_and_store(const Variant& variant, store::TrialRecord record, Judgement& judgement) {
  judgement.trial = std::move(record);
  judge_variant(variant, judgement);
  if (judgement.trial.ok()) {
    profile::Evidence evidence;
    evidence.us = judgement.trial.trial_us;
    evidence.plan = variant.plan(trial_runner_.workload(), device_);
    evidence.floor = trial_runner_.floor(static_cast<int>(evidence.plan.threads));
    evidence.resources = judgement.resources;
    evidence.device = device_;
    evidence.bytes = trial_runner_.workload().bytes();
    judgement.trial.diagnosis =
        record::to_json(profile::diagnose(evidence, variant_knobs(*variant.family)), std::nullopt);
  }
  judgement.trial.finished = store::utc_now();
  judgement.trial.id = store_.add_trial(judgement.trial);
  trials_.push_back(judgement.trial);
  harvest(judgement.trial);
}

// It has no parent, so that the base, whatever other trials there are, is what it is compared with.
void SourceJudge::harvest(const store::TrialRecord& trial) {
  for (const store::ObservationRecord& one : insights::harvest(record_, {trial})) store::add_observation(store_, one);
}

}  // namespace heed::evolve
