/// JSON from text, and as text in which every number is one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace heed {

/// Levels of arrays and objects that a text may have. Copies, destructors and dumps of nlohmann::json call themselves
/// once a level, and run out of stack at some 100,000.
inline constexpr int kMostJsonLevels = 200;

/// What a text says; of a text that is no JSON, or has more levels than kMostJsonLevels, a value of no type, for which
/// is_discarded() holds and neither is_object() nor is_array().
nlohmann::json parse_json(std::string_view text);

/// What nlohmann::json::dump writes, but for numbers that are NaN or infinite, of which it makes null: here they are
/// the strings "nan", "inf" and "-inf". Bytes that are no UTF-8 are replaced.
/// @param indent spaces a level; -1 for one line
std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace heed
