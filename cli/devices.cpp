#include "cli/devices.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>

#include "base/text.hpp"
#include "device/device_list.hpp"
#include "device/gpu_bus.hpp"
#include "device/processors.hpp"
#include "heed/heed.hpp"

namespace heed::cli {
namespace {

constexpr const char* kAll = "all";

std::vector<DeviceNumbers> all_gpus() {
  std::vector<DeviceNumbers> all;
  for (int gpu = 0; probe_cuda(gpu).facts; ++gpu) all.push_back({gpu});
  return all;
}

void expect_same_kind(const DeviceFacts& first, const DeviceFacts& other, int first_number, int number) {
  if (first == other) return;
  const auto words = [](const DeviceFacts& f) {
    return fmt::format("{} ({}, {} multiprocessors, {})", f.name, f.arch, f.processors,
                       human_bytes(static_cast<double>(f.memory_bytes)));
  };
  throw Error(ErrorCode::unsupported,
              fmt::format("GPU {} is {} and GPU {} is {}; the devices of a run are of one kind, for a champion of one "
                          "is none of another. Make a run for each kind",
                          first_number, words(first), number, words(other)),
              std::to_string(number));
}

// Among all GPUs of the machine where there are cores for each: other processes may search on those.
ProcessorDivision divide_for(const std::vector<std::string>& buses, const std::vector<std::vector<int>>& cores) {
  const auto among = [&](const std::vector<std::string>& gpus) {
    std::vector<std::vector<int>> near;
    for (const std::string& bus : gpus) near.push_back(processors_near(bus));
    return divide_processors(cores, near);
  };
  const std::vector<std::string> all = buses_of_machine();
  if (const auto part = part_of(among(all), all, buses)) return *part;
  return among(buses);
}

DeviceSelection select_gpus(const std::string& list, const std::vector<DeviceNumbers>& numbers) {
  DeviceSelection chosen;
  std::vector<std::string> buses;
  const char* const visible = ::getenv("CUDA_VISIBLE_DEVICES");
  for (const DeviceNumbers& joined : numbers) {
    if (joined.size() != 1)
      throw Error(ErrorCode::usage,
                  fmt::format("--devices {} joins GPUs by +, which joins processors of a CPU; write a comma", list),
                  list);
    const int gpu = joined.front();
    const CudaProbe probe = probe_cuda(gpu);
    if (!probe.facts) throw Error(ErrorCode::usage, fmt::format("--devices {}: {}", list, probe.reason), list);
    if (chosen.devices.empty())
      chosen.facts = *probe.facts;
    else
      expect_same_kind(chosen.facts, *probe.facts, numbers.front().front(), gpu);
    Placement placement;
    placement.gpu = gpu;
    placement.visible = visible_gpu(gpu, visible);
    chosen.devices.push_back({fmt::format("GPU {}", gpu), placement});
    buses.push_back(bus_of_gpu(gpu));
  }
  const std::vector<int> allowed = allowed_processors();
  const ProcessorDivision division = divide_for(buses, cores_of(allowed));
  for (std::size_t i = 0; i < chosen.devices.size() && division.reserves(); ++i) {
    chosen.devices[i].placement.workers = division.workers[i];
    chosen.devices[i].placement.host = division.shared;
  }
  if (chosen.devices.size() > 1)
    chosen.remark =
        division.reserves()
            ? fmt::format("each GPU has a core for what launches; processors {} compile, and compare outputs",
                          processor_list(division.shared))
            : fmt::format(
                  "{} processors are too few to keep a core for each of {} GPUs: host work for one "
                  "may disturb what another one times",
                  allowed.size(), chosen.devices.size());
  // Before any thread is there. PyTorch and readers of counters then work on the first GPU, too.
  ::setenv("CUDA_VISIBLE_DEVICES", chosen.devices.front().placement.visible.c_str(), 1);
  return chosen;
}

DeviceSelection select_processors(const std::string& list, const std::vector<DeviceNumbers>& groups) {
  DeviceSelection chosen;
  chosen.facts.kind = DeviceKind::cpu;
  const std::vector<int> allowed = allowed_processors();
  for (const DeviceNumbers& group : groups) {
    for (const int processor : group)
      if (std::find(allowed.begin(), allowed.end(), processor) == allowed.end())
        throw Error(ErrorCode::usage,
                    fmt::format("--devices {}: there is no processor {} that this process may run on; it may run on {}",
                                list, processor, processor_list(allowed)),
                    std::to_string(processor));
    if (group.size() != groups.front().size())
      throw Error(
          ErrorCode::unsupported,
          fmt::format("--devices {}: processors {} and {} are devices of {} and {} threads; the devices of a run "
                      "are of one kind. Join as many processors for each",
                      list, processor_list(groups.front()), processor_list(group), groups.front().size(), group.size()),
          processor_list(group));
    Placement placement;
    placement.host = group;
    chosen.devices.push_back(
        {fmt::format("processor{} {}", group.size() > 1 ? "s" : "", processor_list(group)), placement});
  }
  return chosen;
}

}  // namespace

DeviceSelection select_devices(const std::string& list, DeviceChoice choice) {
  const bool is_all = list == kAll;
  std::vector<DeviceNumbers> numbers;
  if (!is_all) numbers = parse_device_list(list);
  if (choose_device(choice).kind == DeviceKind::cuda) return select_gpus(list, is_all ? all_gpus() : numbers);
  return select_processors(list, is_all ? cores_of(allowed_processors()) : numbers);
}

}  // namespace heed::cli
