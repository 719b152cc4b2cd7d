/// JSON from text, and as text in which every number is one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace heed {

/// What a text says; of a text that is no JSON a value of no type, for which is_discarded() holds and neither
/// is_object() nor is_array().
nlohmann::json parse_json(std::string_view text);

/// What nlohmann::json::dump writes, but for numbers that are NaN or infinite, of which it makes null: here they are
/// the strings "nan", "inf" and "-inf". Bytes that are no UTF-8 are replaced.
/// @param indent spaces a level; -1 for one line
std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace heed
