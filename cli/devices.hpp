/// --devices: which devices a command works on, and which processors serve each.
#pragma once

#include <string>
#include <vector>

#include "device/device.hpp"
#include "evolve/devices.hpp"

namespace heed::cli {

struct DeviceSelection {
  std::vector<evolve::DeviceOfRun> devices;
  DeviceFacts facts;   ///< of the first GPU; of a CPU without its processors, which are known on the device alone
  std::string remark;  ///< what whoever asked should know of it; empty where there is nothing
};

/// The devices of a list (parse_device_list), or with "all" every GPU, or every core of a CPU. From here on processes
/// that are started by whatever thread see the first GPU alone, unless its placement says another.
/// @throws Error(usage) for a list that is none, a device that there is not, GPUs joined by +; Error(no_device) where
///     GPUs are asked for and there is none; Error(unsupported) for devices of different kinds
DeviceSelection select_devices(const std::string& list, DeviceChoice choice);

}  // namespace heed::cli
