/// How busy this machine's processors are, as Linux counts it in /proc.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace heed {

/// Times of all processors together since the machine started, in ticks.
struct ProcessorTimes {
  double all = 0;
  double idle = 0;    ///< waiting for files, too
  double stolen = 0;  ///< wanted, and given to other machines by the host
};

/// The first line of /proc/stat. None where it is no such line.
std::optional<ProcessorTimes> parse_processor_times(std::string_view stat);

/// Shares of the time of all processors, from 0 to 1; 0 where Linux does not say.
struct MachineLoad {
  double busy = 0;
  double stolen = 0;
  double load_average = 0;  ///< programs that ran or wanted to, over the last minute; 0 where it is not known
};

MachineLoad load_between(const ProcessorTimes& before, const ProcessorTimes& after);

/// Watches for a moment in which this process does nothing: what is busy then are others.
MachineLoad watch_others(std::chrono::milliseconds moment);

}  // namespace heed
