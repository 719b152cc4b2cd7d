/// How results are written in the store and in `--json` output.
#pragma once

#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "jit/artifact.hpp"
#include "measure/floor.hpp"
#include "measure/pair.hpp"
#include "verify/compare.hpp"

namespace heed::evolve {

nlohmann::json to_json(const DeviceFacts& facts);
nlohmann::json to_json(const DeviceState& state);
nlohmann::json to_json(const jit::Resources& resources);
nlohmann::json to_json(const measure::Ratio& ratio);
nlohmann::json to_json(const measure::Floor& floor);
nlohmann::json to_json(const verify::ErrorStats& error);
/// The raw readings of a paired measurement.
nlohmann::json samples_json(const measure::PairResult& pair);
measure::Ratio ratio_from_json(const nlohmann::json& json);

}  // namespace heed::evolve
