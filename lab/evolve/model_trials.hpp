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

/// A prompt for a place and all that it is made from, so that a thread that asks reads nothing of the run.
struct Request {
  ModelPlace place;
  Variant parent;
  prompts::Task task;
  /// Of a repair: the trial that was refused, its verdict, and the compiler's lines or what the gate found.
  std::optional<int> refused;
  std::string outcome;
  std::string reason;
};

class ModelTrials {
 public:
  /// @param log where conversations are kept: the run's store, or another connection to it where threads talk while
  ///     trials are stored; must outlive it
  /// @throws Error(usage) for options that make no panel. Exchanges of an earlier process of the run are read
  ModelTrials(RunContext& run, store::Store& log);

  /// How many of a generation's places are for models: the last ones. 0 once they are given up. The first trial of a
  /// run is a default.
  /// @param basis by which a bandit divides them @param before how many of the run's places come before the generation
  [[nodiscard]] int places(const Basis& basis, int generation, int all, int before) const;
  /// Whether nothing is asked any more: the limits are reached, or too many prompts in a row got no reply.
  [[nodiscard]] bool are_given_up() const { return given_up_; }
  /// For a place that nothing was written for. @param number which of `of` prompts that are sent about at once
  [[nodiscard]] Request request_for(const Basis& basis, int generation, int place, int number, int of);
  /// After a trial of a place was refused: none where repairs are off, models are given up, or the verdict is none that
  /// edits can mend. @param refused without what was written where an earlier process asked: its replies are read again
  [[nodiscard]] std::optional<Request> repair_for(const ModelPlace& refused, const store::TrialRecord& trial) const;
  /// Asks, or takes the replies that are known. May be called from several threads. @throws as propose::Writer does
  [[nodiscard]] propose::Written ask(const Request& request, int generation);
  /// Says why nothing came, and gives models up after a few in a row.
  /// @return whether the place is a trial of models: something was received. Else knobs take it
  bool note(const propose::Written& written);

  /// Asks for all places at once, in threads, and waits for all replies. Left out are places for which nothing was sent
  /// or received. @throws Error(interrupted)
  std::vector<ModelPlace> write(int generation, const std::vector<int>& places);
  /// The same for a repair. None where nothing came, too.
  std::optional<ModelPlace> repair(int generation, const ModelPlace& refused, const store::TrialRecord& trial);

  /// A place with what was written for it. @param refused of a repair: number of the trial that was
  [[nodiscard]] Proposal proposal_of(const ModelPlace& place, std::optional<int> refused = {}) const;
  /// The trial of a reply that makes no variant.
  [[nodiscard]] store::TrialRecord unusable(const ModelPlace& place, int number, int generation) const;
  /// Whether an earlier process sent a prompt for a place, had a reply to one, or no reply came.
  /// @param purpose store::ExchangeRecord::purpose
  [[nodiscard]] bool has_prompt(int generation, int place) { return log_.find(generation, place, "first").has_value(); }
  [[nodiscard]] bool has_reply(int generation, int place, const std::string& purpose);
  [[nodiscard]] bool has_failed(int generation, int place, const std::string& purpose);

 private:
  [[nodiscard]] Variant parent_variant(const std::optional<std::size_t>& parent) const;

  RunContext& run_;
  propose::Panel panel_;
  models::Spending spending_;
  propose::RunLog log_;
  propose::Writer writer_;
  int in_a_row_ = 0;  ///< prompts without a reply
  bool given_up_ = false;
};

}  // namespace heed::evolve
