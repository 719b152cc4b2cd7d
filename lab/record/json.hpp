/// How results are written in the store and in `--json` output.
#pragma once

#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "jit/artifact.hpp"
#include "measure/floor.hpp"
#include "measure/pair.hpp"
#include "trial/noise.hpp"
#include "verify/gate.hpp"

namespace heed::record {

nlohmann::json to_json(const DeviceFacts& facts);
nlohmann::json to_json(const DeviceState& state);
nlohmann::json to_json(const jit::Resources& resources);
nlohmann::json to_json(const measure::Ratio& ratio);
nlohmann::json to_json(const measure::Floor& floor);
nlohmann::json to_json(const verify::ErrorStats& error);
/// Errors, what is allowed of them and what the unfused computation is off by, where a check has them.
nlohmann::json to_json(const verify::Accuracy& accuracy);
nlohmann::json to_json(const verify::CheckResult& check);
nlohmann::json to_json(const measure::Counts& counts);
nlohmann::json to_json(const trial::Noise& noise);
/// The raw readings of a paired measurement, and of how many quads each process took.
nlohmann::json samples_json(const measure::PairResult& pair);

}  // namespace heed::record
