/// Devices of a run, and the processes that searched, in the record of its base (store::RunRecord::base).
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/statistics.hpp"

namespace heed::record {

/// What a device says of itself before its first trial.
struct DeviceReading {
  std::string name;
  double self_spread = 0;                         ///< of the base against itself there
  std::string processors = {};                    ///< of this process, as "2,4-7"
  std::string processors_of_workers = {};         ///< of those that launch on the device
  std::optional<double> us = {};                  ///< of the base; none where it was read before
  std::optional<measure::Ratio> self_ratio = {};  ///< of the base against itself; none where it was read before
};

/// A process that searches.
struct SearchBegin {
  double began_s = 0;             ///< of the run's time, when its first place was handed out
  std::size_t trials_before = 0;  ///< of the run
  std::vector<std::string> devices;
};

/// What was recorded of a device stays where a reading says nothing of it, for decisions rested on it. A device that is
/// read is not lost.
void note_device(nlohmann::json& base, const DeviceReading& reading);
/// The base's own readings are those of this device.
void note_first_device(nlohmann::json& base, const std::string& name);
void note_lost_device(nlohmann::json& base, const std::string& name, const std::string& why);
void note_search(nlohmann::json& base, const SearchBegin& search);

/// What the base showed against itself on a device of that name; none where nothing is recorded.
std::optional<double> self_spread_on(const nlohmann::json& base, const std::string& name);

}  // namespace heed::record
