/// What the emulator said of a variant, as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "emulator/emulate.hpp"

namespace heed::record {

/// The kind of the comparison that holds an outcome in the store: its subject is the variant, "trial_id" in its data
/// the trial.
inline constexpr std::string_view kEmulated = "emulated";

nlohmann::json to_json(const emulator::Report& report);

/// As the store keeps it beside a trial.
nlohmann::json of_trial(const emulator::Report& report, std::int64_t trial_id);

}  // namespace heed::record
