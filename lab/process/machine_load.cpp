#include "process/machine_load.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace heed {
namespace {

std::optional<ProcessorTimes> processor_times() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  return parse_processor_times(line);
}

double load_average() {
  std::ifstream file("/proc/loadavg");
  double minute = 0;
  file >> minute;
  return file ? minute : 0;
}

}  // namespace

// "cpu  user nice system idle iowait irq softirq steal ..."; guest times are in user and nice already.
std::optional<ProcessorTimes> parse_processor_times(std::string_view stat) {
  std::istringstream words{std::string(stat.substr(0, stat.find('\n')))};
  std::string name;
  std::array<double, 8> ticks{};
  words >> name;
  for (double& value : ticks) words >> value;
  if (!words || name != "cpu") return std::nullopt;
  ProcessorTimes times;
  for (const double value : ticks) times.all += value;
  times.idle = ticks[3] + ticks[4];
  times.stolen = ticks[7];
  return times;
}

MachineLoad load_between(const ProcessorTimes& before, const ProcessorTimes& after) {
  MachineLoad load;
  const double all = after.all - before.all;
  if (all <= 0) return load;
  load.stolen = std::clamp((after.stolen - before.stolen) / all, 0.0, 1.0);
  load.busy = std::clamp(1 - (after.idle - before.idle) / all, 0.0, 1.0);
  return load;
}

MachineLoad watch_others(std::chrono::milliseconds moment) {
  const std::optional<ProcessorTimes> before = processor_times();
  std::this_thread::sleep_for(moment);
  const std::optional<ProcessorTimes> after = processor_times();
  MachineLoad load = before && after ? load_between(*before, *after) : MachineLoad{};
  load.load_average = load_average();
  return load;
}

}  // namespace heed
