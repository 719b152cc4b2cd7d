/// What is proposed for a trial, on its way there.
#pragma once

#include <future>
#include <vector>

#include "evolve/strategy.hpp"
#include "jit/build.hpp"
#include "trial/laboratory.hpp"

namespace heed::evolve {

struct Draft {
  Proposal proposal;
  std::future<jit::BuildOutcome> build;  ///< valid until it was waited for
  jit::BuildOutcome outcome;
  trial::Look look;  ///< the mean of `looks`, or why it cannot be timed
  int looks = 0;

  /// One look more. One that failed counts alone: a variant that cannot always be timed is none to choose.
  void take(const trial::Look& one);
  /// Not chosen where any other could be timed, whatever it read.
  void give_up(const std::string& reason);
};

/// One trial of a generation: the proposals for it.
struct Place {
  std::vector<Draft> drafts;  ///< at least one

  /// The one that read fastest; the first where none could be timed.
  [[nodiscard]] Draft& best();
};

/// @param proposals in the order of their places
std::vector<Place> places_of(std::vector<Proposal> proposals);

}  // namespace heed::evolve
