/// Reading stored JSON that may be of an older or newer Heed: what is missing or of another type reads as nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace heed::fields {

/// 0 where there is no such number.
inline double number(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : 0.0;
}

/// Empty where there is no such text.
inline std::string text_of(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : std::string();
}

/// Null where there is no such member.
inline const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json none;
  return object.contains(key) ? object[key] : none;
}

/// The numbers of an array; others are left out.
inline std::vector<double> numbers(const nlohmann::json& object, const char* key) {
  std::vector<double> values;
  for (const nlohmann::json& value : member(object, key))
    if (value.is_number()) values.push_back(value.get<double>());
  return values;
}

}  // namespace heed::fields
