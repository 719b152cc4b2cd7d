/// What bounds a kernel: counters, where there are any, put against the floors and the launch plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jit/artifact.hpp"
#include "measure/floor.hpp"
#include "profile/counters.hpp"
#include "variant/family.hpp"

namespace heed::profile {

/// How a launch fills a device.
struct Occupancy {
  double blocks = 0;               ///< of the launch
  int blocks_per_processor = 0;    ///< that registers, shared memory and threads allow at once; on a CPU 1
  std::string limit;               ///< what allows no more: "registers", "shared memory", "threads", "blocks"
  double warps_per_processor = 0;  ///< resident when the device is full, or as many as the launch has; 0 on a CPU
  double rounds = 0;               ///< blocks / all places; below 1 some multiprocessors may stay empty
  double idle_share = 0;           ///< share of the processors' time that equal blocks leave unused, 0 to 1
};

/// Limits: CUDA C++ programming guide, "Technical specifications per compute capability".
Occupancy occupancy_of(const LaunchPlan& plan, const jit::Resources& resources, const DeviceFacts& device);

/// Everything a diagnosis rests on.
struct Evidence {
  double us = 0;  ///< measured, never under the profiler
  measure::Floor floor;
  LaunchPlan plan;
  jit::Resources resources;
  DeviceFacts device;
  double bytes = 0;  ///< of the workload's tensors: whether they fit the cache
  std::optional<Counters> counters;
};

/// How much of its limit one thing used, 0 to 1.
struct Share {
  Bound bound = Bound::unknown;
  double value = 0;
};

struct Diagnosis {
  Bound bound = Bound::unknown;
  bool with_counters = false;
  std::vector<Share> shares;  ///< of every bound there are numbers for, largest first
  Occupancy occupancy;
  std::vector<Stall> stalls;       ///< the largest few
  std::vector<std::string> knobs;  ///< that act on the bound
  std::string text;                ///< one paragraph
};

/// A pure function of its arguments.
Diagnosis diagnose(const Evidence& evidence, const std::vector<Knob>& knobs);

}  // namespace heed::profile
