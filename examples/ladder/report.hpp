/// A measured ladder as a table and as evidence.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ladder/ladder.hpp"

namespace heed::ladder {

/// The table, and a line for each row that has no time.
std::string table_text(const Result& result);

/// In the schema of the evidence folder, the table's text included.
nlohmann::json evidence(const Result& result);

}  // namespace heed::ladder
