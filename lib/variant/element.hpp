/// Element types of kernels by value and by name, for code that learns of them at run time.
#pragma once

#include <string_view>

#include "heed/heed.hpp"
#include "kernels/element.hpp"

namespace heed {

/// ElementTraits as a value.
struct ElementFacts {
  Element element;
  Dtype dtype;  ///< the workloads' name of it
  std::string_view name;
  int bytes;
  int digits;       ///< of the significand
  double roundoff;  ///< half the distance of numbers next to 1, and so the largest relative error of rounding
  double largest;   ///< finite
  double smallest;  ///< positive: of the subnormal numbers
};

/// @throws Error(internal) for a value that is no element type
const ElementFacts& facts_of(Element element);
const ElementFacts& facts_of(Dtype dtype);
/// @throws Error(usage) with the names there are
const ElementFacts& find_element(std::string_view name);

inline std::string_view to_string(Element element) {
  return facts_of(element).name;
}

std::string_view to_string(MaskKind mask);  ///< throws Error(internal) for a value that is no mask
/// @throws Error(usage) with the names there are
MaskKind parse_mask_kind(std::string_view name);

}  // namespace heed
