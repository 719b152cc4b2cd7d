/// What single changes of kernels were seen to do: rows that insights are made of (lab/insights).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/store.hpp"

namespace heed::store {

/// One change of one kernel, measured before and after.
struct ObservationRecord {
  std::int64_t id = 0;
  std::string family;
  std::string change;    ///< what equal changes share: "tile_rows 4 -> 8", or "source " and a digest of the edits
  std::string diff;      ///< of a change of sources; empty for knobs
  std::string sentence;  ///< what its proposer said of it; empty for knobs
  std::string workload;  ///< canonical text
  std::string arch;      ///< "sm_90a", "x86-64-v4", ...
  std::string device;    ///< its name
  std::string bound_before;
  std::string bound_after;
  double ratio = 0;  ///< time before / time after
  double low = 0;    ///< of the 95% interval
  double high = 0;
  std::string
      origin;  ///< where it was measured, the same for the same measurement: "run 3 trial 7 of 2026-01-02T03:04:05Z"
  std::string created;  ///< UTC
  bool operator==(const ObservationRecord&) const = default;
};

/// Says whether it is new: none of the same origin and change is there.
bool add_observation(Store& store, const ObservationRecord& observation);
/// All of a family, or of all families, in the order in which they came.
std::vector<ObservationRecord> observations(Store& store, const std::optional<std::string>& family = std::nullopt);

nlohmann::json to_json(const ObservationRecord& observation);
/// @throws Error(usage) for what to_json never wrote
ObservationRecord observation_from_json(const nlohmann::json& json);

}  // namespace heed::store
