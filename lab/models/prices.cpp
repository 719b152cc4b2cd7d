#include "models/prices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/files.hpp"
#include "json/text.hpp"

namespace heed::models {
namespace {

constexpr double kTokensAPrice = 1e6;

}  // namespace

Prices Prices::from_file(const std::filesystem::path& path) {
  const std::string text = read_file(path, ErrorCode::usage);
  const nlohmann::json json = parse_json(text);
  if (json.is_discarded())
    throw Error(ErrorCode::usage, fmt::format("the file of prices {} is no JSON", path.string()), path.string());
  return from_json(json, path.string());
}

Prices Prices::from_json(const nlohmann::json& json, const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::usage,
                fmt::format("the file of prices {}: {}; one reads {{\"currency\": \"USD\", \"models\": {{\"NAME\": "
                            "{{\"prompt\": 0.25, \"completion\": 2.0}}}}}}, for a million tokens",
                            source, what),
                source);
  };
  if (!json.is_object() || !json.contains("models") || !json["models"].is_object()) refuse("it names no models");
  Prices prices;
  if (json.contains("currency")) {
    if (!json["currency"].is_string()) refuse("the currency is no text");
    prices.currency_ = json["currency"];
  }
  for (const auto& model : json["models"].items()) {
    const std::string& name = model.key();
    const nlohmann::json& entry = model.value();
    const auto price = [&](const char* kind, std::optional<double> otherwise) {
      if (!entry.is_object() || (!entry.contains(kind) && !otherwise))
        refuse(fmt::format("{} has no price \"{}\"", name, kind));
      if (!entry.contains(kind)) return *otherwise;
      const double value = entry[kind].is_number() ? entry[kind].get<double>() : -1;
      if (!(value >= 0) || !std::isfinite(value))
        refuse(fmt::format("the price \"{}\" of {} is {}", kind, name, entry[kind].dump()));
      return value;
    };
    Price one;
    one.prompt = price("prompt", std::nullopt);
    one.completion = price("completion", std::nullopt);
    one.cached = price("cached", one.prompt);
    prices.models_[name] = one;
  }
  return prices;
}

std::optional<double> Prices::cost(const std::string& model, const Usage& usage) const {
  const auto at = models_.find(model);
  if (at == models_.end() || !usage.prompt_tokens || !usage.completion_tokens) return std::nullopt;
  const auto all = static_cast<double>(*usage.prompt_tokens);
  const double cached = std::min(all, static_cast<double>(usage.cached_tokens.value_or(0)));
  return ((all - cached) * at->second.prompt + cached * at->second.cached +
          static_cast<double>(*usage.completion_tokens) * at->second.completion) /
         kTokensAPrice;
}

}  // namespace heed::models
