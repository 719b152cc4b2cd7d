/// CUPTI, loaded at run time: the functions that hardware counters need, and what their errors mean.
#pragma once

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <cupti_version.h>

#include <string>

namespace heed {

struct Cupti {
  std::string path;
  decltype(&::cuptiGetVersion) get_version;
  decltype(&::cuptiGetResultString) get_result_string;
  decltype(&::cuptiProfilerInitialize) initialize;
  decltype(&::cuptiProfilerDeInitialize) deinitialize;
  decltype(&::cuptiDeviceGetChipName) get_chip_name;
  decltype(&::cuptiProfilerGetCounterAvailability) get_counter_availability;
  decltype(&::cuptiProfilerHostInitialize) host_initialize;
  decltype(&::cuptiProfilerHostDeinitialize) host_deinitialize;
  decltype(&::cuptiProfilerHostGetBaseMetrics) host_get_base_metrics;
  decltype(&::cuptiProfilerHostConfigAddMetrics) host_add_metrics;
  decltype(&::cuptiProfilerHostGetConfigImageSize) host_get_config_size;
  decltype(&::cuptiProfilerHostGetConfigImage) host_get_config;
  decltype(&::cuptiProfilerHostGetNumOfPasses) host_get_passes;
  decltype(&::cuptiProfilerHostEvaluateToGpuValues) host_evaluate;
  decltype(&::cuptiRangeProfilerEnable) enable;
  decltype(&::cuptiRangeProfilerDisable) disable;
  decltype(&::cuptiRangeProfilerGetCounterDataSize) get_counter_data_size;
  decltype(&::cuptiRangeProfilerCounterDataImageInitialize) initialize_counter_data;
  decltype(&::cuptiRangeProfilerSetConfig) set_config;
  decltype(&::cuptiRangeProfilerStart) start;
  decltype(&::cuptiRangeProfilerStop) stop;
  decltype(&::cuptiRangeProfilerDecodeData) decode;
  decltype(&::cuptiRangeProfilerGetCounterDataInfo) get_counter_data_info;
};

/// @param library path of libcupti; empty: the places where toolkits put it
/// @throws Error(unsupported) when it is not there or lacks a function
Cupti load_cupti(const std::string& library);

/// @throws Error(unsupported) naming the call that failed and, where that is the cause, the missing permission
void check(const Cupti& api, CUptiResult result, const char* call);

}  // namespace heed
