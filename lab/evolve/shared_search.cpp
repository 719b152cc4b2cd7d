#include "evolve/shared_search.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/processors.hpp"
#include "evolve/knowledge.hpp"
#include "evolve/model_task.hpp"
#include "evolve/search_end.hpp"
#include "evolve/trials.hpp"
#include "process/interrupt.hpp"
#include "record/run_devices.hpp"

namespace heed::evolve {
namespace {

constexpr int kMostDevicesAPlace = 2;  // that fail while they judge it: the second says that it is the place's doing

// Generation and place of each stored trial of a run whose trials were made one after the other, and what each of its
// generations rested on: all before it.
std::vector<Planner::Batch> note_places(std::vector<Planner::Taken>& taken,
                                        const std::vector<store::TrialRecord>& trials) {
  std::vector<Planner::Batch> batches;
  int index = 0;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (trials[i].generation >= static_cast<int>(batches.size())) {
      batches.push_back({static_cast<int>(batches.size()), {}, i});
      index = 0;
    }
    if (is_repair(trials[i])) continue;
    taken[i] = std::pair{trials[i].generation, index++};
  }
  return batches;
}

// Before those of later places, so that a device is not kept waiting.
std::int64_t turn_of(const Job& job) {
  return build_turn(job.generation, job.index);
}

// Screenings of a device that is lost are no part of those of another.
void forget_looks(Job& job) {
  for (Draft& draft : job.place.drafts) draft.give_up("");
}

}  // namespace

void expect_shareable(const record::RunOptions& options, DeviceKind kind, std::size_t devices) {
  if (kind == DeviceKind::cpu && devices > 1 && options.strategy.drafts > kMostDraftsOnProcessors)
    throw Error(ErrorCode::usage,
                fmt::format("--drafts {} on several groups of processors would have compilers run beside what is "
                            "timed; at most {} are built before",
                            options.strategy.drafts, kMostDraftsOnProcessors),
                std::to_string(options.strategy.drafts));
}

DeviceOfRun only_device(const DeviceFacts& device) {
  return {device.kind == DeviceKind::cuda ? "GPU 0" : "processors " + processor_list(allowed_processors()), {}};
}

Pace pace_of(DeviceKind kind, std::size_t devices) {
  if (kind != DeviceKind::cuda) return {};
  return {.lanes = devices == 1 ? kPlacesOfOneGpu : kPlacesOfAGpu, .is_steady = true};
}

SharedSearch::SharedSearch(RunContext& run, std::vector<DeviceOfRun> devices, double floor_us)
    : SharedSearch(run, devices, floor_us, pace_of(run.device.kind, devices.size())) {}

SharedSearch::SharedSearch(RunContext& run, std::vector<DeviceOfRun> devices, double floor_us, Pace pace)
    : run_(run),
      floor_us_(floor_us),
      pace_(pace),
      known_trials_(run),
      planner_(run.options.trials, run.options.strategy.population,
               [this](const Planner::Batch& batch, const std::vector<Proposal>& under_way) {
                 return places_for(batch, under_way);
               }),
      trials_before_(run.trials.size()) {
  const trial::Built base = run.trial_runner.base();
  const std::optional<store::RunRecord> stored = run.store.find_run(run.run);
  const nlohmann::json known = stored ? stored->base : nlohmann::json();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::optional<double> self_spread = record::self_spread_on(known, devices[i].name);
    if (i == 0 && !self_spread && known.is_object()) {  // the base was prepared there
      self_spread = run.self_spread;
      note_in_base([&](nlohmann::json& noted) { record::note_first_device(noted, devices[i].name); });
    }
    statuses_.push_back({.name = devices[i].name});
    auto station = std::make_unique<Station>(
        run, std::move(devices[i]), base, self_spread, [this, i](const std::string& text) { say(i, text); },
        pace_.lanes);
    stations_.push_back(station.get());
    judges_.push_back(std::move(station));
  }
  if (run.options.models.any())
    models_ = std::make_unique<ModelPlaces>(run, planner_, stations_.size(),
                                            [this](store::TrialRecord trial) { add(std::move(trial)); });
}

void SharedSearch::run() {
  run_.observer.message(fmt::format("verifying the base on {} device{}, and comparing it with itself there",
                                    stations_.size(), stations_.size() == 1 ? "" : "s"));
  const double begin_s = run_.elapsed_s();
  judge_on(judges_, *this);
  tell_devices();
  for (const Station* station : stations_) {
    run_.draft_phases += station->phases();
    run_.builds.add(station->builds());
    run_.beside_s += station->seconds();
  }
  run_.beside_s -= run_.elapsed_s() - begin_s;
}

void SharedSearch::replay() {
  std::vector<Planner::Taken> taken(run_.trials.size());
  std::vector<Planner::Batch> batches;
  const std::vector<store::GenerationRecord> generations = run_.store.generations(run_.run);
  if (generations.empty()) {
    batches = note_places(taken, run_.trials);
    for (const Planner::Batch& one : batches)
      run_.store.set_generation({run_.run, one.generation, static_cast<int>(one.known)});
  } else {
    for (const store::GenerationRecord& one : generations)
      batches.push_back({one.generation,
                         {one.place, one.places > 0 ? one.places : Slots{}.count},
                         static_cast<std::size_t>(one.known)});
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (const store::TrialRecord& t = run_.trials[i]; t.place >= 0 && !is_repair(t))
        taken[i] = std::pair{t.generation, t.place};
  }
  planner_.replay(batches, taken);
}

Planner::Generation SharedSearch::places_for(const Planner::Batch& batch, const std::vector<Proposal>& under_way) {
  auto knowledge = std::make_shared<Knowledge>();
  const Basis basis{.known = batch.known};
  knowledge->spaces = spaces_of(run_, basis);
  knowledge->individuals = known_trials_.first(batch.known, basis);
  for (const Proposal& p : under_way)
    knowledge->individuals.push_back({-1, batch.generation, p.island, p.config, false, 0, p.space, true, true});
  Planner::Generation proposed;
  proposed.places = places_of(
      evolve::propose(run_.options.strategy, knowledge->spaces, batch.generation, knowledge->individuals, batch.slots));
  proposed.knowledge = std::move(knowledge);
  if (!models_) return proposed;
  proposed.first_of_models = models_->first_of_models(batch);
  if (proposed.places.empty() && !models_->are_given_up()) {  // knobs have nothing more to propose
    proposed.first_of_models = 0;
    proposed.places.resize(static_cast<std::size_t>(
        std::clamp(run_.options.strategy.population - batch.slots.first, 0, batch.slots.count)));
  }
  return proposed;
}

void SharedSearch::prepared(std::size_t device, const PreparedDevice& about) {
  statuses_[device].doing = DeviceStatus::Doing::waiting;
  note_in_base([&](nlohmann::json& noted) { record::note_device(noted, about.reading); });
  if (!about.can_draft) run_.options.strategy.drafts = 1;
}

void SharedSearch::all_prepared() {
  replay();
  if (models_) {
    models_->resume();
    models_->begin();
  }
  build_open();
  began_s_ = run_.elapsed_s();
  record::SearchBegin search{.began_s = began_s_, .trials_before = trials_before_, .devices = {}};
  for (const DeviceStatus& status : statuses_)
    if (status.doing != DeviceStatus::Doing::lost) search.devices.push_back(status.name);
  note_in_base([&](nlohmann::json& noted) { record::note_search(noted, search); });
}

std::optional<Job> SharedSearch::next(std::size_t device) {
  if (is_over_) return std::nullopt;
  open_written();
  if (!planner_.has_open() || has_idle_devices()) propose();
  if (!planner_.has_open() && !is_awaiting()) return std::nullopt;
  if (is_out_of_time(run_, planner_.under_way())) {
    end();
    return std::nullopt;
  }
  if (!planner_.has_open()) return std::nullopt;
  DeviceStatus& status = statuses_[device];
  ++status.under_way;
  status.doing = DeviceStatus::Doing::judging;
  return planner_.take();
}

void SharedSearch::end() {
  is_over_ = true;
  if (models_) models_->stop();
}

bool SharedSearch::is_awaiting() const {
  return models_ && !is_over_ && models_->are_awaited();
}

void SharedSearch::open_written() {
  if (models_ && (pace_.is_steady || planner_.under_way() == 0) && models_->open()) build_open();
}

// On a CPU, where nothing is built while anything is timed: what was written alone leaves some devices without a place.
bool SharedSearch::has_idle_devices() {
  return models_ && !pace_.is_steady && planner_.under_way() == 0 && planner_.open().size() < stations_.size() &&
         !models_->is_next_of_models();
}

void SharedSearch::ask_ahead() {
  while (pace_.is_steady && models_->may_ask_next() && propose()) {
  }
}

bool SharedSearch::propose() {
  if (is_over_ || !planner_.has_room() || (models_ && models_->are_behind())) return false;
  if (!pace_.is_steady && planner_.under_way() > 0) return false;  // compilers would disturb what is timed
  if (!run_.trials.empty() && has_reached_the_floor(run_, floor_us_)) {
    end();
    return false;
  }
  const int generation = planner_.next_generation();
  const int place = planner_.next_place();
  const int places = pace_.is_steady ? 1 : 0;  // 0: all to the generation's end
  const std::size_t known = run_.trials.size();
  if (!(places > 0 ? planner_.propose(known, places) : planner_.propose(known))) {
    if (planner_.under_way() == 0 && !planner_.has_open() && !is_awaiting())
      run_.observer.message("the space holds no variant that was not tried; stopping");
    return false;
  }
  run_.store.set_generation({run_.run, generation, static_cast<int>(known), place, places});
  if (place == 0) run_.observer.generation_started(generation, static_cast<int>(known), run_.options.trials);
  tell_devices();
  if (models_) models_->begin();
  build_open();
  return true;
}

void SharedSearch::build_open() {
  const std::vector<Job*> open = planner_.open();
  for (Job* job : open)
    for (Draft& draft : job->place.drafts) start_build(run_, draft, turn_of(*job));
  if (pace_.is_steady) return;
  for (Job* job : open)
    for (Draft& draft : job->place.drafts) wait_for_build(run_, draft);
}

void SharedSearch::finished(std::size_t device, const Job& job, store::TrialRecord trial) {
  DeviceStatus& status = statuses_[device];
  if (--status.under_way == 0 && status.doing == DeviceStatus::Doing::judging)
    status.doing = DeviceStatus::Doing::waiting;
  ++status.trials;
  if (trial.ok())  // two devices may have been at one program at a time
    if (const store::TrialRecord* duplicate = duplicate_of(run_, run_.variant_of(trial), trial.machine_code)) {
      trial.verdict = Verdict::duplicate;
      trial.reason = as_duplicate_of(*duplicate) + ", which another device judged meanwhile";
    }
  planner_.finish(job.generation, job.index);
  pass_on_messages();
  add(std::move(trial));
  if (models_ && !is_over_) models_->judged(job, run_.trials.back());
}

void SharedSearch::add(store::TrialRecord trial) {
  trial.number = static_cast<int>(run_.trials.size());
  trial.run_elapsed_s = run_.elapsed_s();
  run_.add_trial(std::move(trial), run_.options.trials);
  for (Station* station : stations_) station->learn(run_.trials.back());
}

void SharedSearch::lost(std::size_t device, std::optional<Job> job, const std::string& why) {
  DeviceStatus& status = statuses_[device];
  status.doing = DeviceStatus::Doing::lost;
  pass_on_messages();
  run_.observer.message(fmt::format("{} is lost, the run goes on without it: {}", status.name, why));
  note_in_base([&](nlohmann::json& noted) { record::note_lost_device(noted, status.name, why); });
  tell_devices();
  if (!job) return;
  if (job->devices_lost < kMostDevicesAPlace) {
    put_back(device, std::move(*job));
    return;
  }
  const Proposal& proposal = job->place.drafts.front().proposal;
  store::TrialRecord trial =
      new_trial(run_.run, 0, job->generation, run_.variant_of(proposal), to_string(proposal.operation), proposal.why);
  trial.island = proposal.island;
  trial.parents = proposal.parents;
  trial.place = job->place_number();
  trial.device = status.name;
  trial.verdict = Verdict::crashed;
  trial.reason = fmt::format("{} devices were lost while they judged it; the last: {}", job->devices_lost, why);
  trial.check = "judging";
  trial.finished = store::utc_now();
  finished(device, *job, std::move(trial));
}

void SharedSearch::put_back(std::size_t device, Job job) {
  --statuses_[device].under_way;
  forget_looks(job);
  planner_.put_back(std::move(job));
}

void SharedSearch::say(std::size_t device, const std::string& text) {
  const std::lock_guard lock(said_mutex_);
  said_.push_back(fmt::format("{}: {}", statuses_[device].name, text));
}

void SharedSearch::tick() {
  pass_on_messages();
  if (!models_ || began_s_ <= 0 || is_over_) return;
  models_->take_replies();
  models_->begin();
  ask_ahead();
}

void SharedSearch::pass_on_messages() {
  std::deque<std::string> said;
  {
    const std::lock_guard lock(said_mutex_);
    said.swap(said_);
  }
  for (const std::string& text : said) run_.observer.message(text);
}

void SharedSearch::tell_devices() {
  const double minutes = (run_.elapsed_s() - began_s_) / 60;
  const std::size_t trials = run_.trials.size() - trials_before_;
  const bool can_tell = began_s_ > 0 && trials > 0 && minutes > 0;
  run_.observer.devices_changed(statuses_, can_tell ? static_cast<double>(trials) / minutes : 0);
}

// Beside the base as the run's first device read it.
void SharedSearch::note_in_base(const std::function<void(nlohmann::json&)>& note) {
  const std::optional<store::RunRecord> stored = run_.store.find_run(run_.run);
  nlohmann::json base = stored && stored->base.is_object() ? stored->base : nlohmann::json::object();
  note(base);
  run_.store.set_base(run_.run, base);
}

}  // namespace heed::evolve
