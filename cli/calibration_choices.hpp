/// The file that says which precision mode each layer of a model gets (python/heed/precision.py reads it).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace heed::cli {

/// @throws Error(usage) for a layer without a file, Error(store) for a file that cannot be written
void expect_choices(const std::string& path, const std::string& layer);

/// Puts what is said of a layer into the file, which keeps what it says of others. @param layer empty: all calls
/// @throws Error(usage) for a file that is none of choices
void write_choice(const std::string& path, const std::string& layer, nlohmann::json choice);

}  // namespace heed::cli
