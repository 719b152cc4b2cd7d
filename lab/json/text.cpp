#include "json/text.hpp"

#include <cmath>

namespace heed {
namespace {

// Whether there is anything to replace: hardly ever, so that nothing is copied for it.
bool all_finite(const nlohmann::json& json) {
  if (json.is_number_float()) return std::isfinite(json.get<double>());
  if (!json.is_structured()) return true;
  for (const auto& element : json)
    if (!all_finite(element)) return false;
  return true;
}

void name_non_finite(nlohmann::json& json) {
  if (json.is_structured()) {
    for (auto& element : json) name_non_finite(element);
  } else if (json.is_number_float()) {
    const double value = json.get<double>();
    if (!std::isfinite(value)) json = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string json_text(const nlohmann::json& json, int indent) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  if (all_finite(json)) return json.dump(indent, ' ', false, kReplace);
  nlohmann::json named = json;
  name_non_finite(named);
  return named.dump(indent, ' ', false, kReplace);
}

}  // namespace heed
