/// What tables, charts and pages of a run share.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::report {

/// Microseconds with two digits below 1000; "-" for none.
inline std::string us_text(double us) {
  return us <= 0 ? "-" : us < 1000 ? fmt::format("{:.2f}", us) : fmt::format("{:.0f}", us);
}

/// Null where no trial has the number.
inline const store::TrialRecord* trial_of(const std::vector<store::TrialRecord>& trials, int number) {
  for (const store::TrialRecord& t : trials)
    if (t.number == number) return &t;
  return nullptr;
}

}  // namespace heed::report
