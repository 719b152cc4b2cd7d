/// The threads of CPU plans.
#pragma once

#include <memory>

#include "api/plan.hpp"
#include "launch/cpu_threads.hpp"

namespace heed::api {

/// Threads of the library's own, which plans of as many share, or those of the caller. @throws std::bad_alloc
std::shared_ptr<CpuLauncher> cpu_launcher(const Options& options, const DeviceFacts& device, long long scratch_bytes);

}  // namespace heed::api
