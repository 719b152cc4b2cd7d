#include "evolve/search.hpp"

#include <algorithm>
#include <iterator>

#include "evolve/knowledge.hpp"
#include "evolve/model_task.hpp"
#include "evolve/run_diagnosis.hpp"
#include "evolve/search_end.hpp"
#include "evolve/trials.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
Search::Search(RunContext& run, double floor_us) : run_(run), drafting_(run), floor_us_(floor_us) {
  if (run.options.models.any()) models_.emplace(run, run.store);
}

std::vector<ModelPlace> Search::write_by_models(int generation, int before, std::vector<Place>& places, int first) {
  if (!models_) return {};
  // Where knobs have nothing more to propose, all are for models.
  int count = static_cast<int>(places.size());
  if (!places.empty() && !places.front().drafts.empty())
    count = models_->places({.generation = generation}, generation, count, before);
  std::vector<int> wanted;
  for (int place = static_cast<int>(places.size()) - count; place < static_cast<int>(places.size()); ++place)
    if (place >= first) wanted.push_back(place);  // those before are stored
  return models_->write(generation, wanted);
}

// Replies take time of the budget. What was paid for is tried first of what is left: knobs give way, the last places
// first. Emptied places have no trial. The first trial of a run is the default whatever is left.
void Search::leave_out_knobs(const std::vector<ModelPlace>& written, int done, std::vector<Place>& places) const {
  if (written.empty()) return;
  auto over = static_cast<int>(places.size()) - std::max(1, run_.trials_that_fit());
  for (int i = static_cast<int>(places.size()) - 1; i >= (run_.trials.empty() ? 1 : 0) && over > 0; --i) {
    const bool is_of_model =
        std::any_of(written.begin(), written.end(), [&](const ModelPlace& one) { return one.place == done + i; });
    if (is_of_model) continue;
    places[static_cast<std::size_t>(i)].drafts.clear();
    --over;
  }
}

void Search::run_model_place(int generation, const ModelPlace& written, Place& place) {
  const auto number = [&] { return static_cast<int>(run_.trials.size()); };
  if (!written.written.overlay) {
    run_.add_trial(models_->unusable(written, number(), generation), run_.options.trials);
    return;
  }
  run_.add_trial(run_best_of(run_, number(), generation, place), run_.options.trials);
  if (number() < run_.options.trials && !is_out_of_time(run_)) repair(generation, written);
}

void Search::repair(int generation, ModelPlace refused) {
  const store::TrialRecord& trial = run_.trials.back();
  if (trial.ok()) return;
  const int number = trial.number;
  const std::optional<ModelPlace> mended = models_->repair(generation, refused, trial);
  if (!mended) return;
  Place place = std::move(places_of({models_->proposal_of(*mended, number)}).front());
  start_build(run_, place.drafts.front());
  run_.add_trial(run_best_of(run_, static_cast<int>(run_.trials.size()), generation, place), run_.options.trials);
}

void Search::run() {
  const record::RunOptions& options = run_.options;
  const auto trials_done = [&] { return static_cast<int>(run_.trials.size()); };
  if (models_) profile_base(run_);
  // A generation's number is fixed by the trials of those before it, so a resumed run finds its place again.
  int generation = run_.trials.empty() ? 0 : run_.trials.back().generation;
  while (trials_done() < options.trials) {
    if (is_out_of_time(run_)) return;
    if (models_) profile_elites(run_, generation);
    const auto before = static_cast<int>(std::count_if(run_.trials.begin(), run_.trials.end(),
                                                       [&](const auto& t) { return t.generation < generation; }));
    // Repairs have no place of their own.
    const auto done = static_cast<int>(std::count_if(run_.trials.begin(), run_.trials.end(), [&](const auto& t) {
      return t.generation == generation && !is_repair(t);
    }));
    const std::vector<Space> where = spaces_of(run_, {.generation = generation});
    std::vector<Individual> known = individuals_of(run_, {.generation = generation});
    std::vector<Individual> earlier;
    std::copy_if(known.begin(), known.end(), std::back_inserter(earlier),
                 [&](const Individual& individual) { return individual.generation < generation; });
    std::vector<Place> places = places_of(propose(options.strategy, where, generation, earlier));
    // Places that have no time are cut off before models, which have the last ones, are asked.
    const int room = std::min(options.trials - before, done + std::max(1, run_.trials_that_fit()));
    if (static_cast<int>(places.size()) > room) places.resize(static_cast<std::size_t>(room));
    if (places.empty() && (!models_ || models_->are_given_up())) {
      run_.observer.message("the space holds no variant that was not tried; stopping");
      return;
    }
    if (places.empty()) places.resize(static_cast<std::size_t>(std::min(options.strategy.population, room)));
    run_.observer.generation_started(generation, before, options.trials);
    std::vector<ModelPlace> written = write_by_models(generation, before, places, done);
    for (const ModelPlace& one : written) {
      Place& place = places[static_cast<std::size_t>(one.place)];
      place.drafts.clear();
      if (one.written.overlay) place = std::move(places_of({models_->proposal_of(one)}).front());
    }
    places.erase(places.begin(), places.begin() + std::min(done, static_cast<int>(places.size())));
    leave_out_knobs(written, done, places);
    drafting_.draft(generation, where, std::move(known), places);
    for (std::size_t i = 0; i < places.size() && trials_done() < options.trials; ++i) {
      check_interrupt();
      if (is_out_of_time(run_)) return;
      const auto one = std::find_if(written.begin(), written.end(),
                                    [&](const ModelPlace& w) { return w.place == done + static_cast<int>(i); });
      if (one != written.end())
        run_model_place(generation, *one, places[i]);
      else if (!places[i].drafts.empty())
        run_.add_trial(run_best_of(run_, trials_done(), generation, places[i]), options.trials);
    }
    ++generation;
    if (has_reached_the_floor(run_, floor_us_)) return;
  }
}

}  // namespace heed::evolve
