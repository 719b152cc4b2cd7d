// Operations and changes in words, as records and reports have them.
#include <fmt/format.h>

#include "base/text.hpp"
#include "evolve/strategy.hpp"

namespace heed::evolve {

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::initial_default:
      return "default";
    case Operation::recall:
      return "recall";
    case Operation::specialise:
      return "specialise";
    case Operation::restart:
      return "restart";
    case Operation::mutate:
      return "mutate";
    case Operation::crossover:
      return "crossover";
    case Operation::migrate:
      return "migrate";
    case Operation::regroup:
      return "regroup";
    case Operation::revert:
      return "revert";
    case Operation::edit:
      return "edit";
    case Operation::repair:
      return "repair";
  }
  return "?";
}

std::string difference(const std::vector<Knob>& knobs, const Config& from, const Config& to) {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < knobs.size(); ++i)
    if (from[i] != to[i])
      changes.push_back(fmt::format("{} {} -> {}", knobs[i].name, knobs[i].text_of(from[i]), knobs[i].text_of(to[i])));
  return changes.empty() ? "no change" : join(changes, ", ");
}

}  // namespace heed::evolve
