/// What a timeline of a GPU says, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "profile/gpu_timeline.hpp"

namespace heed::record {

nlohmann::json to_json(const profile::Gaps& gaps);
nlohmann::json to_json(const profile::TimelineSummary& summary);

}  // namespace heed::record
