/// A workload's mask as kernels see it.
#pragma once

#include "heed/heed.hpp"
#include "kernels/attention/mask.hpp"

namespace heed {

constexpr bool is_window(Mask mask) {
  switch (mask) {
    case Mask::none:
    case Mask::causal_top_left:
    case Mask::causal_bottom_right:
      return false;
    case Mask::window_top_left:
    case Mask::window_bottom_right:
      return true;
  }
  return false;
}

/// Whether a query's own key counts from the end of its entry's lengths.
constexpr bool is_aligned_to_the_end(Mask mask) {
  switch (mask) {
    case Mask::none:
    case Mask::causal_top_left:
    case Mask::window_top_left:
      return false;
    case Mask::causal_bottom_right:
    case Mask::window_bottom_right:
      return true;
  }
  return false;
}

/// The bounds that kernels need: a window without a left bound is a causal mask with another right offset. Bounds that
/// hide nothing count, so that the same program runs a window's neighbours, some of which it covers.
MaskKind mask_kind(const Workload& workload);

/// The numbers of the whole problem, no key cut off. An offset without a bound is 0; one of a bound that is wider than
/// the sequence is such that no sum with a row leaves an int.
MaskBounds mask_bounds(const Workload& workload);

/// What a workload's text says of its mask: "" or, each with its colon, ":causal_top_left:window=255".
std::string mask_text(const Workload& workload);

}  // namespace heed
