/// What is proposed for a trial, on its way there.
#pragma once

#include <future>
#include <vector>

#include "evolve/strategy.hpp"
#include "jit/build.hpp"
#include "measure/pair.hpp"
#include "trial/trial_runner.hpp"

namespace heed::evolve {

struct Draft {
  Proposal proposal;
  bool is_started = false;               ///< whether its build was asked for
  std::future<jit::BuildOutcome> build;  ///< valid until it was waited for
  jit::BuildOutcome outcome;
  std::vector<measure::PairResult> screenings;
  measure::PairResult pair;  ///< of all screenings together; empty where it cannot be timed
  std::string reason;        ///< why it cannot be timed

  /// One screening more. One that failed counts alone: a variant that cannot always be timed is none to choose.
  void take(const trial::Screening& one);
  /// Not chosen where any other could be timed, whatever it read.
  void give_up(const std::string& reason);
  /// What drafts are ranked by: the ratio less what its few readings disagree by. Up to kSharp all readings disagree,
  /// and that costs nobody anything. 0 where it cannot be timed.
  [[nodiscard]] double certain() const;
  /// Whether it may lead: looked at twice (the fastest of many readings is a lucky one), and oftener where its readings
  /// disagree widely.
  [[nodiscard]] bool is_settled() const;
};

/// One trial of a generation: the proposals for it.
struct Place {
  std::vector<Draft> drafts;  ///< at least one

  /// The one that is certainly the fastest; the first where none could be timed.
  [[nodiscard]] Draft& best();
};

/// @param proposals in the order of their places
std::vector<Place> places_of(std::vector<Proposal> proposals);

}  // namespace heed::evolve
