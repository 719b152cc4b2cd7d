/// Comparisons of heed bench as evidence.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "report/evidence.hpp"

namespace heed::cli {

/// The evidence that a comparison is added to: that of the file, or without one a new one. A file is of one device and
/// of one state of the sources. To be called before anything is measured.
/// @param device facts as stored with a run
/// @throws Error(usage) where the file holds something else, or comparisons of another device or other sources;
/// Error(store) where it cannot be written
nlohmann::json comparisons_in(const std::filesystem::path& file, const nlohmann::json& device,
                              const report::Sources& sources);

/// Adds the rows of a comparison and writes the file.
/// @param comparison what `heed bench --json` prints
void write_comparison(const std::filesystem::path& file, nlohmann::json comparisons, const nlohmann::json& comparison);

}  // namespace heed::cli
