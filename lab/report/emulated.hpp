/// Outcomes of the emulator among the stored comparisons of a run, as text.
#pragma once

#include <string>
#include <vector>

#include "store/records.hpp"

namespace heed::report {

/// A line a trial that the emulator ran or could not run, its last outcome; empty where there is none.
std::string emulated_text(const std::vector<store::ComparisonRecord>& comparisons);

}  // namespace heed::report
