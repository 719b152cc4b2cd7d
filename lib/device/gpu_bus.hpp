/// Where a GPU is plugged in.
#pragma once

#include <string>

namespace heed {

/// PCI domain, bus and device of a GPU by its ordinal, "0000:3B:00.0"; empty where the driver does not say.
std::string bus_of_gpu(int ordinal);

}  // namespace heed
