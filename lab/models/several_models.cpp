#include "models/several_models.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/check.hpp"
#include "base/random.hpp"
#include "heed/heed.hpp"

namespace heed::models {

NamedWeight parse_weight(const std::string& text) {
  NamedWeight result{text, 1};
  const std::size_t at = text.rfind('=');
  if (at != std::string::npos) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data() + at + 1, text.data() + text.size(), weight);
    if (error == std::errc() && end == text.data() + text.size()) result = {text.substr(0, at), weight};
  }
  if (result.name.empty())
    throw Error(ErrorCode::usage, fmt::format("{} names no model; NAME or NAME=WEIGHT does", text), text);
  if (!(result.weight > 0) || !std::isfinite(result.weight))
    throw Error(ErrorCode::usage, fmt::format("the weight in {} is not positive; leave the model out instead", text),
                text);
  return result;
}

Model& choose(const std::vector<WeightedModel>& models, std::uint64_t seed, std::uint64_t n) {
  HEED_CHECK(!models.empty());
  double sum = 0;
  for (const WeightedModel& one : models) sum += one.weight;
  double left = Random(substream(seed, n)).uniform() * sum;
  for (const WeightedModel& one : models)
    if ((left -= one.weight) < 0) return *one.model;
  return *models.back().model;
}

}  // namespace heed::models
