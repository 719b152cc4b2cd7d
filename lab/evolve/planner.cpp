#include "evolve/planner.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace heed::evolve {

Planner::Entries::const_iterator Planner::first_open() const {
  return std::find_if(entries_.begin(), entries_.end(),
                      [](const auto& entry) { return entry.second.job.has_value() && !entry.second.job->is_awaited; });
}

void Planner::replay(const std::vector<Batch>& batches, const std::vector<Taken>& taken) {
  places_ = static_cast<int>(std::count(taken.begin(), taken.end(), std::nullopt));
  std::size_t finished = 0;
  const auto finish_until = [&](std::size_t count) {
    for (; finished < std::min(count, taken.size()); ++finished) {
      // One that an ablation added to a run of one device may be beyond what is proposed.
      if (taken[finished] && entries_.erase(*taken[finished]) == 0) ++places_;
    }
  };
  for (const Batch& batch : batches) {
    finish_until(batch.known);
    add(batch, propose_whole(batch));
  }
  finish_until(taken.size());
  // Another number of trials may leave more open than it has room for; none of a later generation was proposed then.
  for (auto at = entries_.end(); places_ > trials_ && at != entries_.begin();)
    if (--at; at->second.job) {
      at = entries_.erase(at);
      --places_;
    }
}

Planner::Generation Planner::propose_whole(const Batch& batch) const {
  std::vector<Proposal> under_way;
  for (const auto& [at, entry] : entries_)
    under_way.insert(under_way.end(), entry.proposals.begin(), entry.proposals.end());
  return propose_(batch, under_way);
}

bool Planner::propose(std::size_t known, int places) {
  const Batch batch = {generation_, {slot_, std::min(places, population_ - slot_)}, known};
  Generation generation = propose_whole(batch);
  if (static_cast<int>(generation.places.size()) > trials_ - places_)
    generation.places.resize(static_cast<std::size_t>(std::max(0, trials_ - places_)));
  if (generation.places.empty()) return false;
  add(batch, std::move(generation));
  return true;
}

// A generation that yields fewer places than it was asked for has no others.
void Planner::add(const Batch& batch, Generation generation) {
  const auto count = static_cast<int>(generation.places.size());
  for (int i = 0; i < count; ++i) {
    Place& place = generation.places[static_cast<std::size_t>(i)];
    const int index = batch.slots.first + i;
    Entry& entry = entries_[{batch.generation, index}];
    for (const Draft& draft : place.drafts) entry.proposals.push_back(draft.proposal);
    entry.job = Job{.generation = batch.generation,
                    .index = index,
                    .place = std::move(place),
                    .knowledge = generation.knowledge,
                    .known = batch.known,
                    .is_awaited = index >= generation.first_of_models,
                    .written = nullptr};
  }
  places_ += count;
  const bool is_over = count < batch.slots.count || batch.slots.first + count >= population_;
  generation_ = batch.generation + (is_over ? 1 : 0);
  slot_ = is_over ? 0 : batch.slots.first + count;
}

std::vector<Job*> Planner::open() {
  std::vector<Job*> all;
  for (auto& [at, entry] : entries_)
    if (entry.job && !entry.job->is_awaited) all.push_back(&*entry.job);
  return all;
}

std::vector<Job*> Planner::awaited() {
  std::vector<Job*> all;
  for (auto& [at, entry] : entries_)
    if (entry.job && entry.job->is_awaited) all.push_back(&*entry.job);
  return all;
}

void Planner::drop(int generation, int index) {
  end(generation, index);
  --places_;
}

void Planner::end(int generation, int index) {
  const auto at = entries_.find({generation, index});
  HEED_CHECK(at != entries_.end() && at->second.job && at->second.job->is_awaited);
  entries_.erase(at);
}

bool Planner::reserve() {
  if (!has_room()) return false;
  ++places_;
  return true;
}

void Planner::add_repair(Job job) {
  HEED_CHECK(job.index < 0);
  const std::pair at{job.generation, job.index};
  HEED_CHECK(entries_.emplace(at, Entry{std::move(job), {}}).second);
}

Job Planner::take() {
  const auto at = entries_.find(first_open()->first);
  HEED_CHECK(at != entries_.end());
  Job job = std::move(*at->second.job);
  at->second.job.reset();
  ++under_way_;
  return job;
}

void Planner::put_back(Job job) {
  const auto at = entries_.find({job.generation, job.index});
  HEED_CHECK(at != entries_.end() && !at->second.job);
  at->second.job = std::move(job);
  --under_way_;
}

void Planner::finish(int generation, int index) {
  HEED_CHECK(entries_.erase({generation, index}) == 1);
  --under_way_;
}

}  // namespace heed::evolve
