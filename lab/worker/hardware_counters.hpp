/// Hardware counters of an NVIDIA GPU through CUPTI's range profiler, loaded at run time.
/// https://docs.nvidia.com/cupti/main/main.html, "CUPTI Range Profiling API" and "CUPTI Profiler Host API"
///
/// Reading counters replays a kernel many times, so it happens in a process that times nothing. Every function takes
/// the path of libcupti; empty means the places where toolkits put it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace heed {

/// One quantity and the metrics that stand for it, best first: chips differ in which of them they have.
struct MetricChoice {
  std::string key;                 ///< what the quantity is called here
  std::vector<std::string> names;  ///< CUPTI's, with roll-up, e.g. "lts__t_bytes.sum"
};

/// What a chip can count of what was asked for.
struct MetricSchedule {
  std::string chip;                            ///< CUPTI's name, e.g. "GH100"
  std::map<std::string, std::string> metrics;  ///< key -> metric
  std::vector<std::string> missing;            ///< keys that this chip has no metric for
  std::size_t passes = 0;                      ///< times a kernel is run to read them all
};

struct CounterReading {
  MetricSchedule schedule;
  std::map<std::string, double> values;  ///< by key; a value that is no finite number is left out
};

/// Version and place of CUPTI, e.g. "13.0 (/usr/local/cuda/lib64/libcupti.so.13)".
/// @throws Error(unsupported) when it is not there, lacks a function, or Heed was built without its headers
std::string describe_cupti(const std::string& library = {});

/// Needs no GPU: which metrics `chip` has and how many passes they take.
/// @throws Error(unsupported) naming the call of CUPTI that failed
MetricSchedule schedule_metrics(const std::string& library, const std::string& chip,
                                const std::vector<MetricChoice>& choices);

/// Counts one launch of one kernel.
/// @param context the current CUcontext, of device 0
/// @param launch launches the kernel once and waits for its end; CUPTI replays it
/// @throws Error(unsupported) naming the call of CUPTI that failed and, where that is the cause, the missing permission
CounterReading read_counters(const std::string& library, const std::vector<MetricChoice>& choices, void* context,
                             const std::function<void()>& launch);

}  // namespace heed
