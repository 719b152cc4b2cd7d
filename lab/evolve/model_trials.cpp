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
    case Verdict::ok:
    case Verdict::illegal:
    case Verdict::duplicate:
    case Verdict::faster_than_floor:
      return false;
  }
  return false;
}

// By which each kind of proposer raised what is certain, and how long that took, in trials of the basis.
std::pair<propose::Record, propose::Record> records_of(const RunContext& run, const Basis& basis) {
  propose::Record knobs;
  propose::Record models;
  double best = 1;
  double before_s = 0;
  for (const store::TrialRecord& t : run.trials) {
    if (!basis.holds(t)) break;
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

ModelTrials::ModelTrials(RunContext& run, store::Store& log)
    : run_(run),
      // Called from threads that wait: stderr alone, which needs no order.
      panel_(run.options.models, run.options.strategy.seed,
             [](const std::string& text) { std::fputs(fmt::format("  {}\n", text).c_str(), stderr); }),
      spending_({.tokens = run.options.models.most_tokens, .money = run.options.models.most_money}),
      log_(log, run.run, spending_, panel_.prices()),
      writer_(run.options.models, panel_, spending_, log_) {
  run.observer.message(fmt::format("kernel sources are written by {}", panel_.text()));
}

int ModelTrials::places(const Basis& basis, int generation, int all, int before) const {
  if (given_up_) return 0;
  int count = 0;
  if (run_.options.models.is_bandit) {
    const auto [knobs, models] = records_of(run_, basis);
    count = propose::places_by_bandit(knobs, models, all);
  } else {
    count = propose::places_at_share(run_.options.models.share, all, before);
  }
  return generation == 0 ? std::min(count, all - 1) : count;
}

Variant ModelTrials::parent_variant(const std::optional<std::size_t>& parent) const {
  return parent ? run_.variant_of(run_.trials[*parent]) : run_.trial_runner.base().variant;
}

bool ModelTrials::note(const propose::Written& written) {
  using Ending = propose::Written::Ending;
  if (written.ending == Ending::out_of_budget) {
    if (!given_up_)
      run_.observer.message(
          fmt::format("models are asked no more: {}; {}", written.failure, spending_.text(panel_.prices().currency())));
    given_up_ = true;
    return false;
  }
  if (written.ending != Ending::no_reply) {
    in_a_row_ = 0;
    return true;
  }
  run_.observer.message(fmt::format("no reply: {}", written.failure));
  if (++in_a_row_ < kMostFailuresInARow || given_up_) return false;
  given_up_ = true;
  run_.observer.message(fmt::format("{} prompts in a row got no reply; knobs go on alone", in_a_row_));
  return false;
}

Request ModelTrials::request_for(const Basis& basis, int generation, int place, int number, int of) {
  Request request;
  request.place.place = place;
  request.place.parent = parent_for(run_, prompts::parse_preset(run_.options.models.preset), basis, generation, place);
  request.parent = parent_variant(request.place.parent);
  request.task = task_of(run_, request.place.parent, basis);
  request.task.request = number;
  request.task.requests = of;
  return request;
}

std::optional<Request> ModelTrials::repair_for(const ModelPlace& refused, const store::TrialRecord& trial) const {
  if (!run_.options.models.repairs || given_up_ || !edits_can_mend(trial.verdict)) return std::nullopt;
  Request request;
  request.place = refused;
  request.parent = parent_variant(refused.parent);
  // What an earlier process wrote is read again by the prompts that are kept, whatever a new one would say.
  if (refused.written.asked.empty()) request.task = task_of(run_, refused.parent, {});
  request.refused = trial.number;
  request.outcome = trial.finding == Finding::none
                        ? std::string(to_string(trial.verdict))
                        : fmt::format("{}, {}", to_string(trial.verdict), to_string(trial.finding));
  request.reason = trial.check.empty() ? trial.reason : fmt::format("{}: {}", trial.check, trial.reason);
  return request;
}

propose::Written ModelTrials::ask(const Request& request, int generation) {
  const int place = request.place.place;
  if (!request.refused) return writer_.write(request.task, request.parent, generation, place);
  propose::Written refused = request.place.written;
  if (refused.asked.empty()) refused = writer_.write(request.task, request.parent, generation, place);
  return writer_.repair(refused, request.parent, request.outcome, request.reason, generation, place);
}

bool ModelTrials::has_reply(int generation, int place, const std::string& purpose) {
  const std::optional<store::ExchangeRecord> known = log_.find(generation, place, purpose);
  return known && known->reply.is_object();
}

bool ModelTrials::has_failed(int generation, int place, const std::string& purpose) {
  const std::optional<store::ExchangeRecord> known = log_.find(generation, place, purpose);
  return known && !known->failure.empty();
}

std::vector<ModelPlace> ModelTrials::write(int generation, const std::vector<int>& places) {
  std::vector<Request> requests;
  requests.reserve(places.size());
  for (const int place : places)
    requests.push_back(request_for({.generation = generation}, generation, place, static_cast<int>(requests.size()) + 1,
                                   static_cast<int>(places.size())));
  std::vector<std::future<propose::Written>> replies;
  for (const Request& request : requests)
    replies.push_back(
        std::async(std::launch::async, [this, generation, &request] { return ask(request, generation); }));
  for (const std::future<propose::Written>& reply : replies) reply.wait();  // the first failure must not leave threads
  std::vector<ModelPlace> answered;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].place.written = replies[i].get();
    if (note(requests[i].place.written)) answered.push_back(std::move(requests[i].place));
  }
  return answered;
}

std::optional<ModelPlace> ModelTrials::repair(int generation, const ModelPlace& refused,
                                              const store::TrialRecord& trial) {
  std::optional<Request> request = repair_for(refused, trial);
  if (!request) return std::nullopt;
  request->place.written = ask(*request, generation);
  note(request->place.written);
  if (request->place.written.ending != propose::Written::Ending::edits) return std::nullopt;
  return std::move(request->place);
}

Proposal ModelTrials::proposal_of(const ModelPlace& place, std::optional<int> refused) const {
  const Variant variant = parent_variant(place.parent);
  Proposal proposal;
  proposal.config = values_of(variant);
  proposal.operation = refused ? Operation::repair : Operation::edit;
  if (refused)
    proposal.parents = {*refused};
  else if (place.parent)
    proposal.parents = {run_.trials[*place.parent].number};
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
