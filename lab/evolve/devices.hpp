/// The devices that a run's trials are judged on.
#pragma once

#include <string>

#include "device/placement.hpp"

namespace heed::evolve {

/// One of several of a kind. Ratios are of the base and a trial on the same device; times of two are never compared.
struct DeviceOfRun {
  std::string name;  ///< "GPU 1", "processors 2-3"
  Placement placement;
};

}  // namespace heed::evolve
