/// How much the files of a family have to do with one config: what a reader with little room reads first.
#pragma once

#include <map>
#include <string>

#include "variant/family.hpp"

namespace heed::source {

struct Nearness {
  /// Steps from the entry by #include. A file whose name speaks of a value of the config's knobs is no step away from
  /// what includes it.
  int steps = 0;
  /// Whether it is for configs with other values, or not included at all: the config runs none of it, as far as names
  /// tell.
  bool is_of_others = false;
};

/// Of the family's editable sources, by path, with the texts that the variant has. A file is of other values where the
/// name of the file or of a folder below the family's has a value of a knob that the config does not have
/// ("matrix_forward" where unit=vector), or differs in that word alone from a file beside it that speaks of the config
/// ("decode_forward" beside "vector_forward"); and where it is reached by way of such files alone.
std::map<std::string, Nearness> nearness_of(const Variant& variant);

}  // namespace heed::source
