/// How many trials of a generation knobs propose, and how many models do.
#pragma once

#include <cstdint>
#include <span>

namespace heed::propose {

/// What became of a proposer's trials so far.
struct Record {
  int trials = 0;
  /// The sum of logarithms by which its trials raised what the search was certain of, each against what was there
  /// before.
  double gain = 0;
  double seconds = 0;  ///< that its trials took, waiting for replies included
};

/// Places for models where their share is fixed: the n-th place of a run is theirs where the share of n crosses a whole
/// number, so that any share is kept over several generations.
int places_at_share(double share, int places, int trials_before);

/// Places for models by a bandit: each place goes to the proposer with the higher upper confidence bound of gain a
/// second (UCB1: Auer, Cesa-Bianchi, Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning
/// 47, 2002), gains a second scaled so that the larger of both is 1. Each proposer has a trial first; none is left out
/// for ever.
int places_by_bandit(const Record& knobs, const Record& models, int places);

}  // namespace heed::propose
