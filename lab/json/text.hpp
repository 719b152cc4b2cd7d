/// JSON as text in which every number is one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace heed {

/// What nlohmann::json::dump writes, but for numbers that are NaN or infinite, of which it makes null: here they are
/// the strings "nan", "inf" and "-inf". Bytes that are no UTF-8 are replaced.
/// @param indent spaces a level; -1 for one line
std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace heed
