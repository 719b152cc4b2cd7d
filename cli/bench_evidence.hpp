/// Comparisons of heed bench as evidence.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "report/evidence.hpp"

namespace heed::cli {

/// Adds the rows of a comparison to a file of comparisons, or begins one. A file is of one device and of one state of
/// the sources.
/// @param device facts as stored with a run
/// @param comparison what `heed bench --json` prints
/// @throws Error(usage) where the file holds something else, or comparisons of another device or other sources;
/// Error(store) where it cannot be written
void add_comparison(const std::filesystem::path& file, const nlohmann::json& device, const report::Sources& sources,
                    const nlohmann::json& comparison);

}  // namespace heed::cli
