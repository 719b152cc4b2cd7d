/// The trials of a run that models write.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "evolve/draft.hpp"
#include "evolve/run_context.hpp"
#include "propose/writer.hpp"

namespace heed::evolve {

/// A place of a generation that a model has written for.
struct ModelPlace {
  int place = 0;                      ///< within the generation
  std::optional<std::size_t> parent;  ///< index of a trial; none: the base
  propose::Written written;
};

class ModelTrials {
 public:
  /// @throws Error(usage) for options that make no panel. Exchanges of an earlier process of the run are read
  explicit ModelTrials(RunContext& run);

  /// How many of a generation's places are for models: the last ones. 0 once they are given up. The first trial of a
  /// run is a default.
  [[nodiscard]] int places(int generation, int all) const;
  /// Whether nothing is asked any more: the limits are reached, or too many prompts in a row got no reply.
  [[nodiscard]] bool are_given_up() const { return given_up_; }
  /// Asks for all places at once, in threads. Left out are places for which nothing was sent or received: knobs take
  /// them. @throws Error(interrupted)
  std::vector<ModelPlace> write(int generation, const std::vector<int>& places);
  /// After a trial of a place was refused. None where repairs are off, the verdict is none that edits can mend, or
  /// nothing came.
  std::optional<ModelPlace> repair(int generation, const ModelPlace& refused, const store::TrialRecord& trial);

  [[nodiscard]] Proposal proposal_of(const ModelPlace& place, Operation operation, int parent_number) const;
  /// The trial of a reply that makes no variant.
  [[nodiscard]] store::TrialRecord unusable(const ModelPlace& place, int number, int generation) const;

 private:
  [[nodiscard]] Variant parent_variant(const std::optional<std::size_t>& parent) const;
  /// Says why nothing came, and gives models up after a few in a row.
  void note(const propose::Written& written);

  RunContext& run_;
  propose::Panel panel_;
  models::Spending spending_;
  propose::RunLog log_;
  propose::Writer writer_;
  int in_a_row_ = 0;  ///< prompts without a reply
  bool given_up_ = false;
};

}  // namespace heed::evolve
