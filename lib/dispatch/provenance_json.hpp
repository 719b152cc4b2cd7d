/// A provenance as JSON, laid out as an entry of tuned/champions.json. For this room alone: no other of lib/ sees JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "dispatch/provenance.hpp"

namespace heed::dispatch {

// What is missing or of another type reads as nothing: files come from other versions, and from elsewhere.
inline std::string text_of(const nlohmann::json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}
/// @param otherwise where there is no whole number that fits
std::int64_t integer_of(const nlohmann::json& object, const char* key, std::int64_t otherwise);

Provenance provenance_of(const nlohmann::json& entry);
nlohmann::json to_json(const Provenance& provenance);

}  // namespace heed::dispatch
