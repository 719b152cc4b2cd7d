/// Data-parallel loops over the processors this process may run on.
#pragma once

#include <cstdint>
#include <functional>

namespace heed {

/// Processors in this process's affinity mask that its control group's quota can keep busy; at least 1.
int available_processors();

/// Calls `body(index)` for every index in [0, count), on up to `threads` threads (0: available_processors(), 16 at
/// most), the calling thread among them. The first exception is rethrown after every thread has stopped.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace heed
