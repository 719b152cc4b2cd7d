/// A trial of the store as something to build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"
#include "store/store.hpp"
#include "variant/family.hpp"

namespace heed::cli {

struct StoredTrial {
  store::RunRecord run;
  store::TrialRecord trial;
  Workload workload;
};

/// Whether a text that may name a variant names a trial: "t17".
bool is_trial(const std::string& text);

/// 17 of "17" and of "t17". @throws Error(usage) for another text
std::int64_t trial_number(const std::string& text);

/// @throws Error(usage) where there is none of that id
StoredTrial find_trial(store::Store& store, std::int64_t id);

/// Its variant with its edits. @throws Error(unsupported) where the edits do not fit today's sources, or make others of
/// them than were judged
Variant variant_of(const StoredTrial& stored, const DeviceFacts& device);

/// The device that it was measured on, as far as sources and launches depend on it.
DeviceFacts device_of(const StoredTrial& stored);

/// The command that puts a stored trial through the gate on a GPU, for compute-sanitizer's tools.
/// @param database empty: the user's own  @param limit_s for one launch
std::vector<std::string> gate_of_trial(std::int64_t id, const std::string& database, double limit_s);

}  // namespace heed::cli
