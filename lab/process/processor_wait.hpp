/// How long threads wanted a processor and did not get one, as Linux counts it in /proc/PID/task/TID/schedstat:
/// https://docs.kernel.org/scheduler/sched-stats.html
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string_view>

namespace heed {

/// Seconds that a thread waited on a run queue, from the three numbers of its schedstat. None where it is no such line.
std::optional<double> parse_processor_wait(std::string_view schedstat);

/// Seconds on a run queue, by thread.
using ProcessorWaits = std::map<pid_t, double>;

/// Of every thread of a process group, since each was started. Empty where Linux does not count it.
ProcessorWaits processor_waits(pid_t group);

/// The longest wait of one thread between two looks, in seconds; threads of the second look alone began between them.
double longest_wait(const ProcessorWaits& before, const ProcessorWaits& after);

}  // namespace heed
