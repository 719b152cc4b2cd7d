/// What tokens cost, as data that the user brings: prices change, and a price that is not known is said to be unknown.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "models/model.hpp"

namespace heed::models {

/// A file of prices:
///
///     {"currency": "USD", "models": {"some-model": {"prompt": 0.25, "completion": 2.0, "cached": 0.025}}}
///
/// in units of the currency for a million tokens; "cached", for tokens of a prompt that the service had in a cache, may
/// be left out and is then "prompt".
class Prices {
 public:
  Prices() = default;
  /// @throws Error(usage) for a file that is none, a price that is no number or negative
  static Prices from_file(const std::filesystem::path& path);
  static Prices from_json(const nlohmann::json& json, const std::string& source);

  /// Nothing where the model has no price or the service counted no tokens.
  [[nodiscard]] std::optional<double> cost(const std::string& model, const Usage& usage) const;
  [[nodiscard]] bool knows(const std::string& model) const { return models_.count(model) != 0; }
  [[nodiscard]] const std::string& currency() const { return currency_; }

 private:
  struct Price {
    double prompt = 0;
    double completion = 0;
    double cached = 0;
  };
  std::string currency_ = "USD";
  std::map<std::string, Price> models_;
};

}  // namespace heed::models
