/// Places of a search on several devices for which models write.
///
/// While devices judge, conversations of other places are under way, as many as there are devices. A reply becomes a
/// trial of whatever device is free; a conversation without one leaves its place to knobs. What a resumed run needs to
/// do the same is stored by then: conversations with their places, and the trials that were finished when a place was
/// proposed, which are all that its prompt tells of.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "evolve/conversations.hpp"
#include "evolve/model_trials.hpp"
#include "evolve/planner.hpp"
#include "evolve/run_context.hpp"
#include "store/store.hpp"

namespace heed::evolve {

class ModelPlaces {
 public:
  /// @param planner of the search; must outlive it @param most conversations under way at a time
  /// @param add stores a trial that no device judged: of a reply without edits
  /// @throws Error(usage) as ModelTrials does
  ModelPlaces(RunContext& run, Planner& planner, std::size_t most, std::function<void(store::TrialRecord)> add);

  /// From which place of its generation on models write: the last ones, so many as options.models say when the
  /// generation's first place is proposed.
  [[nodiscard]] int first_of_models(const Planner::Batch& batch);
  /// The same of the place that is proposed next, with all trials finished that are.
  [[nodiscard]] bool is_next_of_models() const;
  [[nodiscard]] bool are_given_up() const { return models_.are_given_up(); }
  /// Whether the next place is for models and its conversation may begin.
  [[nodiscard]] bool may_ask_next() const;
  /// Whether no place is proposed before a conversation ends: a prompt waits for it, or that of the next place would.
  /// So the shares of models and knobs stay what they are, and prompts tell of the trials there are when they are sent.
  [[nodiscard]] bool are_behind() const;
  /// Whether places may still come of conversations.
  [[nodiscard]] bool are_awaited() const;

  /// Behind Planner::replay: repairs that an earlier process did not come to.
  void resume();
  /// Begins conversations for places that are proposed, and for repairs, as far as there is room.
  void begin();
  /// Takes the replies that came. Those without edits are trials at once.
  void take_replies();
  /// Opens the places that were written for, or left to knobs: they are built next. @return whether there were any
  bool open();
  /// A place's trial is stored: where it was refused, its repair is asked for.
  void judged(const Job& job, const store::TrialRecord& trial);
  /// Nothing is asked any more, and nothing that is under way is waited for.
  void stop();

 private:
  using At = std::pair<int, int>;  // generation and index
  struct Division {
    int first = 0;   ///< of the generation's places: the first of models
    int before = 0;  ///< places of models in generations before it
  };
  struct Repair {
    Job job;  ///< without a place
    Request request;
  };
  [[nodiscard]] Division division_of(int generation, std::size_t known) const;
  [[nodiscard]] Job* awaited(const At& at);
  [[nodiscard]] bool is_any_unasked() const;
  [[nodiscard]] Job* next_to_ask();
  /// For a repair: that of the last place whose prompt was never sent, where there is no other.
  bool reserve();
  void ask(Job& job);
  void ask(Repair repair);
  void take(const At& at, ModelPlace place);
  void take_repair(Repair repair);

  RunContext& run_;
  Planner& planner_;
  store::Store log_;  ///< a connection of its own: threads write to it while the run stores trials
  ModelTrials models_;
  std::function<void(store::TrialRecord)> add_;
  std::map<int, Division> divisions_;  ///< by generation
  std::set<At> asked_;
  std::deque<Repair> repairs_;  ///< that are not asked for yet
  /// What was written and is not open yet. None: knobs have the place.
  std::vector<std::pair<At, std::optional<ModelPlace>>> ready_;
  std::vector<Job> ready_repairs_;
  Conversations conversations_;  ///< last: it ends first
};

}  // namespace heed::evolve
