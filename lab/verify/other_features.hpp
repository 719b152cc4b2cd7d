/// A workload's features with other numbers, and its other layout: what a launch gives a program, and no program may
/// know beforehand.
#pragma once

#include "base/random.hpp"
#include "heed/heed.hpp"

namespace heed::verify {

/// Other numbers of features, and now and then one feature less: caps, pages, which of batch, head, row and key a bias
/// has of its own and in which type, tables of relative positions, norms, gates. Not every draw is valid, or legal for
/// a program.
void draw_features(Random& random, Workload& workload);

/// The workload without the features that a program built for them runs without: all but lengths of ragged batches and
/// quantised tensors, which its layout and its elements are of.
Workload without_features(const Workload& workload);

constexpr Layout other_layout(Layout layout) {
  switch (layout) {
    case Layout::bhld:
      return Layout::blhd;
    case Layout::blhd:
      return Layout::bhld;
  }
  return layout;
}

/// Whether validate() finds nothing wrong.
bool is_valid(const Workload& workload);

}  // namespace heed::verify
