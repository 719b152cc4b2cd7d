/// Which places are to be judged next where several devices judge a run's trials.
///
/// No device waits for another one, and none for the end of a generation: where no place is left, the next ones are
/// proposed from the trials that are finished, and what is under way counts as known. So proposals are a function of
/// the seed and of the order in which trials finished. How many were finished when places were proposed is stored, and
/// a resumed run proposes all of them again, whatever devices it has.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "evolve/draft.hpp"
#include "evolve/knowledge.hpp"

namespace heed::evolve {

struct ModelPlace;

/// A place of a generation on its way to a trial.
struct Job {
  int generation = 0;
  int index = 0;  ///< which of its places; below 0 a repair, which has none of its own
  Place place;    ///< while models write for it what knobs propose there; no drafts where they have nothing more
  std::shared_ptr<const Knowledge> knowledge;  ///< from which it was proposed
  std::size_t known = 0;                       ///< the trials that were finished then
  bool is_awaited = false;                     ///< models write for it: no device may have it yet
  std::shared_ptr<const ModelPlace> written;   ///< what models wrote for it; null: it is of knobs
  int devices_lost = 0;                        ///< that failed while they judged it

  /// Of the repair of what was written for a place, which is judged before others.
  [[nodiscard]] static constexpr int index_of_repair(int place) { return -1 - place; }
  /// The place of a generation that it is for, or that it repairs.
  [[nodiscard]] int place_number() const { return index < 0 ? -1 - index : index; }
};

class Planner {
 public:
  struct Generation {
    std::vector<Place> places;
    std::shared_ptr<const Knowledge> knowledge;
    int first_of_models = std::numeric_limits<int>::max();  ///< from this place on models write
  };
  /// Places of one generation that are proposed together.
  struct Batch {
    int generation = 0;
    Slots slots;
    std::size_t known = 0;  ///< how many trials, in the order in which they finished, they may rest on
  };
  /// @param under_way the first proposals of all places before these that are not among the trials they rest on
  using Propose = std::function<Generation(const Batch& batch, const std::vector<Proposal>& under_way)>;
  /// Generation and place of a finished trial; none of one that had no place, as those that an ablation adds.
  using Taken = std::optional<std::pair<int, int>>;

  /// @param trials of the run in all
  /// @param population places of a generation
  Planner(int trials, int population, Propose propose)
      : trials_(trials), population_(population), propose_(std::move(propose)) {}

  /// Proposes the places of a stored run again; those without a trial are open then.
  /// @param batches in their order
  /// @param taken of each trial, in the order in which they finished; a place that is not proposed counts as none
  void replay(const std::vector<Batch>& batches, const std::vector<Taken>& taken);

  /// Proposes the next places of a generation. @param places at most, or all to its end. @return whether there is one
  bool propose(std::size_t known, int places = Slots{}.count);

  /// Those for which models write, the next one first.
  [[nodiscard]] std::vector<Job*> awaited();
  /// An awaited place ends without a trial, and another one may have its room.
  void drop(int generation, int index);
  /// An awaited place ends as a trial that no device judged.
  void end(int generation, int index);
  /// Keeps room for the trial of a repair. @return whether there is any
  bool reserve();
  /// The repair for which room was kept will be none.
  void release() { --places_; }
  /// The repair for which room was kept: open.
  void add_repair(Job job);

  [[nodiscard]] bool has_open() const { return first_open() != entries_.end(); }
  /// Open places, the next one first, for builds ahead.
  [[nodiscard]] std::vector<Job*> open();
  /// The first open place, which is under way from now on.
  Job take();
  /// A place that was under way is open again.
  void put_back(Job job);
  /// The trial of a place that was under way is stored.
  void finish(int generation, int index);

  [[nodiscard]] int under_way() const { return under_way_; }
  /// Where the places lie that will be proposed next.
  [[nodiscard]] int next_generation() const { return generation_; }
  [[nodiscard]] int next_place() const { return slot_; }
  /// Whether the run's trials leave another generation a place.
  [[nodiscard]] bool has_room() const { return places_ < trials_; }

 private:
  struct Entry {
    std::optional<Job> job;  ///< while it is open
    std::vector<Proposal> proposals;
  };
  using Entries = std::map<std::pair<int, int>, Entry>;
  [[nodiscard]] Entries::const_iterator first_open() const;
  [[nodiscard]] Generation propose_whole(const Batch& batch) const;
  void add(const Batch& batch, Generation generation);

  int trials_;
  int population_;
  Propose propose_;
  int generation_ = 0;
  int slot_ = 0;
  int places_ = 0;  ///< proposed so far, and trials without one
  int under_way_ = 0;
  Entries entries_;  ///< without those that are finished
};

}  // namespace heed::evolve
