#include "evolve/model_trials.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <future>

#include "evolve/model_task.hpp"
#include "evolve/trials.hpp"
#include "propose/schedule.hpp"

namespace heed::evolve {
namespace {

constexpr int kMostFailuresInARow = 3;  // prompts in a row without a reply, after which knobs go on alone

bool edits_can_mend(Verdict verdict) {
  switch (verdict) {
    case Verdict::build_failed:
    case Verdict::launch_failed:
    case Verdict::timed_out:
    case Verdict::crashed:
    case Verdict::wrong:
    case Verdict::nondeterministic:
    case Verdict::cheating:
      return true;
    default:
      return false;
  }
}

// By which each kind of proposer raised what is certain, and how long that took, before a generation.
std::pair<propose::Record, propose::Record> records_of(const RunContext& run, int generation) {
  propose::Record knobs;
  propose::Record models;
  double best = 1;
  double before_s = 0;
  for (const store::TrialRecord& t : run.trials) {
    if (t.generation >= generation) break;
    propose::Record& record = is_of_models(t) ? models : knobs;
    ++record.trials;
    record.seconds += std::max(0.0, t.run_elapsed_s - before_s);
    before_s = t.run_elapsed_s;
    if (t.ok() && t.ratio_low > best) {
      record.gain += std::log(t.ratio_low / best);
      best = t.ratio_low;
    }
  }
  return {knobs, models};
}

std::string why_of(const propose::Written& written) {
  return written.insight.empty() ? fmt::format("edits of {}", written.model) : written.insight;
}

}  // namespace

ModelTrials::ModelTrials(RunContext& run)
    : run_(run),
      // Called from threads that wait: stderr alone, which needs no order.
      panel_(run.options.models, run.options.strategy.seed,
             [](const std::string& text) { std::fputs(fmt::format("  {}\n", text).c_str(), stderr); }),
      spending_({.tokens = run.options.models.most_tokens, .money = run.options.models.most_money}),
      log_(run.store, run.run, spending_),
      writer_(run.options.models, panel_, spending_, log_) {
  run.observer.message(fmt::format("kernel sources are written by {}", panel_.text()));
}

int ModelTrials::places(int generation, int all) const {
  if (given_up_) return 0;
  int trials = 0;
  for (const store::TrialRecord& t : run_.trials) trials += t.generation < generation ? 1 : 0;
  int count = 0;
  if (run_.options.models.is_bandit) {
    const auto [knobs, models] = records_of(run_, generation);
    count = propose::places_by_bandit(knobs, models, all);
  } else {
    count = propose::places_at_share(run_.options.models.share, all, trials);
  }
  return generation == 0 ? std::min(count, all - 1) : count;
}

Variant ModelTrials::parent_variant(const std::optional<std::size_t>& parent) const {
  return parent ? run_.variant_of(run_.trials[*parent]) : run_.trial_runner.base().variant;
}

void ModelTrials::note(const propose::Written& written) {
  using Ending = propose::Written::Ending;
  if (written.ending == Ending::out_of_budget) {
    if (!given_up_)
      run_.observer.message(
          fmt::format("models are asked no more: {}; {}", written.failure, spending_.text(panel_.prices().currency())));
    given_up_ = true;
    return;
  }
  if (written.ending != Ending::no_reply) {
    in_a_row_ = 0;
    return;
  }
  run_.observer.message(fmt::format("no reply: {}", written.failure));
  if (++in_a_row_ < kMostFailuresInARow || given_up_) return;
  given_up_ = true;
  run_.observer.message(fmt::format("{} prompts in a row got no reply; knobs go on alone", in_a_row_));
}

std::vector<ModelPlace> ModelTrials::write(int generation, const std::vector<int>& places) {
  const prompts::Preset preset = prompts::parse_preset(run_.options.models.preset);
  std::vector<ModelPlace> all;
  std::vector<std::future<propose::Written>> replies;
  for (const int place : places) {
    ModelPlace one;
    one.place = place;
    one.parent = parent_for(run_, preset, generation, place);
    prompts::Task task = task_of(run_, one.parent, generation);
    task.request = static_cast<int>(all.size()) + 1;
    task.requests = static_cast<int>(places.size());
    // What is read of the run is read here, in its own thread.
    replies.push_back(std::async(
        std::launch::async, [this, generation, place, task = std::move(task), parent = parent_variant(one.parent)] {
          return writer_.write(task, parent, generation, place);
        }));
    all.push_back(std::move(one));
  }
  for (const std::future<propose::Written>& reply : replies) reply.wait();  // the first failure must not leave threads
  std::vector<ModelPlace> answered;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].written = replies[i].get();
    note(all[i].written);
    if (all[i].written.ending == propose::Written::Ending::edits ||
        all[i].written.ending == propose::Written::Ending::unusable)
      answered.push_back(std::move(all[i]));
  }
  return answered;
}

std::optional<ModelPlace> ModelTrials::repair(int generation, const ModelPlace& refused,
                                              const store::TrialRecord& trial) {
  if (!run_.options.models.repairs || given_up_ || !edits_can_mend(trial.verdict)) return std::nullopt;
  ModelPlace place = refused;
  const std::string outcome = trial.finding == Finding::none
                                  ? std::string(to_string(trial.verdict))
                                  : fmt::format("{}, {}", to_string(trial.verdict), to_string(trial.finding));
  const std::string reason = trial.check.empty() ? trial.reason : fmt::format("{}: {}", trial.check, trial.reason);
  place.written =
      writer_.repair(refused.written, parent_variant(refused.parent), outcome, reason, generation, refused.place);
  note(place.written);
  if (place.written.ending != propose::Written::Ending::edits) return std::nullopt;
  return place;
}

Proposal ModelTrials::proposal_of(const ModelPlace& place, Operation operation, int parent) const {
  const Variant variant = parent_variant(place.parent);
  Proposal proposal;
  proposal.config = values_of(variant);
  proposal.operation = operation;
  if (parent >= 0) proposal.parents = {parent};
  proposal.why = why_of(place.written);
  proposal.island = place.parent ? run_.trials[*place.parent].island : 0;
  proposal.space = run_.space_of(variant);
  proposal.place = place.place;
  proposal.overlay = place.written.overlay;
  return proposal;
}

store::TrialRecord ModelTrials::unusable(const ModelPlace& place, int number, int generation) const {
  store::TrialRecord record = new_trial(run_.run, number, generation, parent_variant(place.parent),
                                        to_string(Operation::edit), why_of(place.written));
  record.edits = nullptr;  // the parent's are not what was tried
  if (place.parent) {
    record.island = run_.trials[*place.parent].island;
    record.parents = {run_.trials[*place.parent].number};
  }
  record.verdict = Verdict::illegal;
  record.check = "edits";
  record.reason = place.written.failure;
  record.run_elapsed_s = run_.elapsed_s();
  record.finished = store::utc_now();
  return record;
}

}  // namespace heed::evolve
