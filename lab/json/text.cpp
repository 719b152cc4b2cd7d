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

// Counts brackets outside strings, before anything is built of them: of what is no JSON any answer will do.
bool is_too_deep(std::string_view text) {
  int level = 0;
  bool is_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_string) {
      if (c == '\\')
        ++i;
      else
        is_string = c != '"';
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      if (++level > kMostJsonLevels) return true;
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return false;
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
  if (is_too_deep(text)) return nlohmann::json(nlohmann::json::value_t::discarded);
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
