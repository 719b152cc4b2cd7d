/// Where a GPU is plugged in.
#pragma once

#include <string>
#include <vector>

namespace heed {

/// PCI domain, bus and device of a GPU by its ordinal, "0000:3B:00.0"; empty where the driver does not say.
std::string bus_of_gpu(int ordinal);

/// The same of all GPUs of this machine or container, in NVML's order, whatever CUDA_VISIBLE_DEVICES hides from CUDA.
/// Empty where NVML does not say.
/// https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
std::vector<std::string> buses_of_machine();

}  // namespace heed
