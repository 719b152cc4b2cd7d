/// Observations out of finished runs: what single changes did.
#pragma once

#include <vector>

#include "store/observations.hpp"
#include "store/records.hpp"

namespace heed::insights {

/// A knob in which two configs of a family differ.
struct KnobChange {
  std::string knob;
  std::string from;
  std::string to;
};

/// Of two configs "family:knob=value,..." with every knob written out. Knobs that one of them lacks are left out.
std::vector<KnobChange> changes_between(std::string_view from, std::string_view to);
/// "fwd_cpu" of "fwd_cpu:tile_rows=4".
std::string family_of(std::string_view config);

/// Every trial that differs from a trial it was made from, or where it was made from none from the base, in one knob or
/// in edits alone; and every row of the ablation. Where both were measured against the base, the ratio is that of their
/// ratios, and its interval spans what theirs allow. Left out is what decides nothing: an interval around 1 that is
/// wider than 2%.
std::vector<store::ObservationRecord> harvest(const store::RunRecord& run,
                                              const std::vector<store::TrialRecord>& trials);

}  // namespace heed::insights
