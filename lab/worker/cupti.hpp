/// CUPTI, loaded at run time: the functions that hardware counters and activity records need, and what their errors
/// mean.
#pragma once

#include <cupti_activity.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <cupti_version.h>

#include <string>

namespace heed {

/// What every user of it needs.
struct CuptiCommon {
  std::string path;
  decltype(&::cuptiGetVersion) get_version;
  decltype(&::cuptiGetResultString) get_result_string;
};

/// Of hardware counters.
struct Cupti : CuptiCommon {
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

/// Of activity records.
struct CuptiActivity {
  CuptiCommon common;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&::cuptiActivityEnable) enable;
  decltype(&::cuptiActivityDisable) disable;
  decltype(&::cuptiActivityFlushAll) flush_all;
  decltype(&::cuptiActivityGetNextRecord) next_record;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped_records;
};

/// @param library path of libcupti; empty: the places where toolkits put it
/// @throws Error(unsupported) when it is not there or lacks a function
Cupti load_cupti(const std::string& library);
CuptiActivity load_cupti_activity(const std::string& library);

/// @throws Error(unsupported) naming the call that failed and, where that is the cause, the missing permission
void check(const CuptiCommon& api, CUptiResult result, const char* call);

}  // namespace heed
