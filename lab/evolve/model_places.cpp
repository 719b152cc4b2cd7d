#include "evolve/model_places.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "evolve/knowledge.hpp"
#include "evolve/model_task.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

ModelPlaces::ModelPlaces(RunContext& run, Planner& planner, std::size_t most,
                         std::function<void(store::TrialRecord)> add)
    : run_(run),
      planner_(planner),
      log_(run.store.database().path()),
      models_(run, log_),
      add_(std::move(add)),
      conversations_(most) {}

ModelPlaces::Division ModelPlaces::division_of(int generation, std::size_t known) const {
  const int all = run_.options.strategy.population;
  Division division{all - models_.places({.known = known}, generation, all, generation * all), 0};
  if (const auto next = divisions_.lower_bound(generation); next != divisions_.begin()) {
    const Division& last = std::prev(next)->second;
    division.before = last.before + all - last.first;
  }
  return division;
}

int ModelPlaces::first_of_models(const Planner::Batch& batch) {
  auto at = divisions_.find(batch.generation);
  if (batch.slots.first == 0 || at == divisions_.end())
    at = divisions_.insert_or_assign(batch.generation, division_of(batch.generation, batch.known)).first;
  return at->second.first;
}

bool ModelPlaces::is_next_of_models() const {
  const int generation = planner_.next_generation();
  const int place = planner_.next_place();
  const auto at = divisions_.find(generation);
  const bool is_divided = place > 0 && at != divisions_.end();
  return place >= (is_divided ? at->second : division_of(generation, run_.trials.size())).first;
}

bool ModelPlaces::may_ask_next() const {
  return !are_given_up() && conversations_.has_room() && is_next_of_models();
}

bool ModelPlaces::are_behind() const {
  return is_any_unasked() || (!are_given_up() && !conversations_.has_room() && is_next_of_models());
}

bool ModelPlaces::is_any_unasked() const {
  if (!repairs_.empty()) return true;
  const std::vector<Job*> all = planner_.awaited();
  return std::any_of(all.begin(), all.end(),
                     [&](const Job* job) { return !asked_.contains({job->generation, job->index}); });
}

bool ModelPlaces::are_awaited() const {
  return conversations_.under_way() > 0 || !ready_.empty() || !ready_repairs_.empty() || is_any_unasked();
}

Job* ModelPlaces::awaited(const At& at) {
  for (Job* job : planner_.awaited())
    if (At{job->generation, job->index} == at) return job;
  HEED_CHECK(false);
  return nullptr;
}

Job* ModelPlaces::next_to_ask() {
  for (Job* job : planner_.awaited())
    if (!asked_.contains({job->generation, job->index})) return job;
  return nullptr;
}

bool ModelPlaces::reserve() {
  if (planner_.reserve()) return true;
  const std::vector<Job*> all = planner_.awaited();
  const auto last = std::find_if(all.rbegin(), all.rend(), [&](const Job* job) {
    return !asked_.contains({job->generation, job->index}) && !models_.has_prompt(job->generation, job->index);
  });
  if (last == all.rend()) return false;
  planner_.drop((*last)->generation, (*last)->index);
  return planner_.reserve();
}

// What is stored of a trial that was refused is enough to go on with its conversation: its replies are kept.
void ModelPlaces::resume() {
  std::set<int> repaired;
  for (const store::TrialRecord& t : run_.trials)
    if (is_repair(t) && !t.parents.empty()) repaired.insert(t.parents.front());
  for (const store::TrialRecord& t : run_.trials) {
    if (!is_of_models(t) || is_repair(t) || t.ok() || t.place < 0 || repaired.contains(t.number)) continue;
    if (!models_.has_reply(t.generation, t.place, "first") || models_.has_failed(t.generation, t.place, "repair") ||
        models_.has_failed(t.generation, t.place, "repair again"))
      continue;
    ModelPlace refused;
    refused.place = t.place;
    if (!t.parents.empty()) refused.parent = static_cast<std::size_t>(t.parents.front());
    std::optional<Request> request = models_.repair_for(refused, t);
    if (!request || !reserve()) continue;
    auto knowledge = std::make_shared<Knowledge>();
    knowledge->spaces = spaces_of(run_, {});
    Job job;
    job.generation = t.generation;
    job.index = Job::index_of_repair(t.place);
    job.knowledge = std::move(knowledge);
    repairs_.push_back({std::move(job), std::move(*request)});
  }
}

void ModelPlaces::begin() {
  if (are_given_up()) {
    while (const Job* job = next_to_ask()) {
      asked_.insert({job->generation, job->index});
      ready_.push_back({{job->generation, job->index}, std::nullopt});
    }
    for (; !repairs_.empty(); repairs_.pop_front()) planner_.release();
    return;
  }
  while (conversations_.has_room()) {
    if (!repairs_.empty()) {
      Repair next = std::move(repairs_.front());
      repairs_.pop_front();
      ask(std::move(next));
    } else if (Job* job = next_to_ask()) {
      ask(*job);
    } else {
      return;
    }
  }
}

// Prompts that are under way together have numbers of their own: equal ones would be answered alike.
void ModelPlaces::ask(Job& job) {
  const At at{job.generation, job.index};
  const int all = run_.options.strategy.population;
  const Division& division = divisions_.at(job.generation);
  const int first = job.place.drafts.empty() ? 0 : division.first;  // knobs have nothing more: all are for models
  const int together = std::max(all - first, static_cast<int>(conversations_.most()));
  const int number = (division.before + job.index - first) % together + 1;
  auto request = std::make_shared<const Request>(
      models_.request_for({.known = job.known}, job.generation, job.index, number, together));
  asked_.insert(at);
  conversations_.begin([this, request, generation = at.first] { return models_.ask(*request, generation); },
                       [this, request, at](propose::Written written) {
                         ModelPlace place = request->place;
                         place.written = std::move(written);
                         take(at, std::move(place));
                       });
}

void ModelPlaces::ask(Repair repair) {
  auto shared = std::make_shared<Repair>(std::move(repair));
  conversations_.begin([this, shared] { return models_.ask(shared->request, shared->job.generation); },
                       [this, shared](propose::Written written) {
                         shared->request.place.written = std::move(written);
                         take_repair(std::move(*shared));
                       });
}

void ModelPlaces::take_replies() {
  conversations_.take_ended();
}

void ModelPlaces::take(const At& at, ModelPlace place) {
  if (!models_.note(place.written)) {
    ready_.push_back({at, std::nullopt});
    return;
  }
  if (place.written.overlay) {
    ready_.push_back({at, std::move(place)});
    return;
  }
  store::TrialRecord trial = models_.unusable(place, static_cast<int>(run_.trials.size()), at.first);
  trial.place = at.second;
  planner_.end(at.first, at.second);
  add_(std::move(trial));
}

void ModelPlaces::take_repair(Repair repair) {
  ModelPlace& place = repair.request.place;
  models_.note(place.written);
  if (place.written.ending != propose::Written::Ending::edits) {
    planner_.release();
    return;
  }
  repair.job.place = std::move(places_of({models_.proposal_of(place, repair.request.refused)}).front());
  repair.job.written = std::make_shared<const ModelPlace>(std::move(place));
  ready_repairs_.push_back(std::move(repair.job));
}

bool ModelPlaces::open() {
  if (ready_.empty() && ready_repairs_.empty()) return false;
  for (auto& [at, written] : ready_) {
    Job* job = awaited(at);
    if (written) {
      job->place = std::move(places_of({models_.proposal_of(*written)}).front());
      job->written = std::make_shared<const ModelPlace>(std::move(*written));
    } else if (job->place.drafts.empty()) {
      planner_.drop(at.first, at.second);
      continue;
    }
    job->is_awaited = false;
  }
  for (Job& job : ready_repairs_) planner_.add_repair(std::move(job));
  ready_.clear();
  ready_repairs_.clear();
  return true;
}

void ModelPlaces::judged(const Job& job, const store::TrialRecord& trial) {
  if (!job.written || job.index < 0 || trial.ok() || interrupted()) return;
  std::optional<Request> request = models_.repair_for(*job.written, trial);
  if (!request || !reserve()) return;
  Job repair;
  repair.generation = job.generation;
  repair.index = Job::index_of_repair(job.index);
  repair.knowledge = job.knowledge;
  repair.known = job.known;
  repairs_.push_back({std::move(repair), std::move(*request)});
  begin();
}

void ModelPlaces::stop() {
  conversations_.stop();
}

}  // namespace heed::evolve
