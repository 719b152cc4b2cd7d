/// Several models, each asked as often as its weight says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.hpp"

namespace heed::models {

struct WeightedModel {
  std::shared_ptr<Model> model;
  double weight = 1;
};

/// "NAME" or "NAME=WEIGHT". A name may hold '=' where no number follows the last one.
/// @throws Error(usage) for an empty name, a weight that is negative or 0
struct NamedWeight {
  std::string name;
  double weight = 1;
};
NamedWeight parse_weight(const std::string& text);

/// Which model is asked the n-th prompt of a run: a function of the seed and n alone, so that a resumed run asks the
/// same.
/// @param models at least one
Model& choose(const std::vector<WeightedModel>& models, std::uint64_t seed, std::uint64_t n);

}  // namespace heed::models
