#include "worker/hardware_counters.hpp"

#include <fmt/format.h>

#include "heed/heed.hpp"

#ifdef HEED_WITH_CUPTI

#include <cmath>
#include <cstdint>
#include <set>

#include "worker/cupti.hpp"

namespace heed {
namespace {

// Every call takes a struct that begins with its own size and is zero where nothing is said.
#define HEED_CUPTI_PARAMS(type, name) \
  type name{};                        \
  (name).structSize = type##_STRUCT_SIZE

// The host's side of the profiler: knows a chip's metrics and makes the image that the hardware is set up from.
class Host {
 public:
  Host(const Cupti& api, const std::string& chip, const std::vector<std::uint8_t>& availability) : api_(api) {
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_Initialize_Params, params);
    params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    params.pChipName = chip.c_str();
    params.pCounterAvailabilityImage = availability.empty() ? nullptr : availability.data();
    check(api_, api_.host_initialize(&params), "cuptiProfilerHostInitialize");
    object_ = params.pHostObject;
  }
  ~Host() {
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, params);
    params.pHostObject = object_;
    api_.host_deinitialize(&params);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] CUpti_Profiler_Host_Object* object() const { return object_; }

  [[nodiscard]] std::set<std::string> base_metrics() const {
    std::set<std::string> names;
    for (const CUpti_MetricType type :
         {CUPTI_METRIC_TYPE_COUNTER, CUPTI_METRIC_TYPE_RATIO, CUPTI_METRIC_TYPE_THROUGHPUT}) {
      HEED_CUPTI_PARAMS(CUpti_Profiler_Host_GetBaseMetrics_Params, params);
      params.pHostObject = object_;
      params.metricType = type;
      check(api_, api_.host_get_base_metrics(&params), "cuptiProfilerHostGetBaseMetrics");
      for (std::size_t i = 0; i < params.numMetrics; ++i) names.insert(params.ppMetricNames[i]);
    }
    return names;
  }

  // @return the configuration for the hardware; sets `passes`
  std::vector<std::uint8_t> configure(std::vector<const char*>& metrics, std::size_t& passes) {
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = object_;
    add.ppMetricNames = metrics.data();
    add.numMetrics = metrics.size();
    check(api_, api_.host_add_metrics(&add), "cuptiProfilerHostConfigAddMetrics");
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = object_;
    check(api_, api_.host_get_config_size(&size), "cuptiProfilerHostGetConfigImageSize");
    std::vector<std::uint8_t> image(size.configImageSize);
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, get);
    get.pHostObject = object_;
    get.configImageSize = image.size();
    get.pConfigImage = image.data();
    check(api_, api_.host_get_config(&get), "cuptiProfilerHostGetConfigImage");
    HEED_CUPTI_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, count);
    count.configImageSize = image.size();
    count.pConfigImage = image.data();
    check(api_, api_.host_get_passes(&count), "cuptiProfilerHostGetNumOfPasses");
    passes = count.numOfPasses;
    return image;
  }

 private:
  const Cupti& api_;
  CUpti_Profiler_Host_Object* object_ = nullptr;
};

// One unknown metric makes a host object useless, so the choice is made from the list of those the chip has.
MetricSchedule choose(const Host& host, const std::string& chip, const std::vector<MetricChoice>& choices) {
  const std::set<std::string> known = host.base_metrics();
  MetricSchedule schedule;
  schedule.chip = chip;
  for (const MetricChoice& choice : choices) {
    std::string chosen;
    for (const std::string& name : choice.names)
      if (chosen.empty() && known.count(name.substr(0, name.find('.'))) != 0) chosen = name;
    if (chosen.empty())
      schedule.missing.push_back(choice.key);
    else
      schedule.metrics[choice.key] = chosen;
  }
  if (schedule.metrics.empty())
    throw Error(ErrorCode::unsupported, fmt::format("{} has none of the metrics that Heed reads", chip), chip);
  return schedule;
}

std::vector<const char*> names_of(const MetricSchedule& schedule) {
  std::vector<const char*> names;
  for (const auto& [key, metric] : schedule.metrics) names.push_back(metric.c_str());
  return names;
}

// Switches the profiler of a context off when it goes out of scope, whatever happened.
class RangeProfiler {
 public:
  RangeProfiler(const Cupti& api, CUcontext context) : api_(api) {
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_Enable_Params, params);
    params.ctx = context;
    check(api_, api_.enable(&params), "cuptiRangeProfilerEnable");
    object_ = params.pRangeProfilerObject;
  }
  ~RangeProfiler() {
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_Disable_Params, params);
    params.pRangeProfilerObject = object_;
    api_.disable(&params);
  }
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;
  [[nodiscard]] CUpti_RangeProfiler_Object* object() const { return object_; }

 private:
  const Cupti& api_;
  CUpti_RangeProfiler_Object* object_ = nullptr;
};

std::vector<std::uint8_t> make_counter_data(const Cupti& api, CUpti_RangeProfiler_Object* profiler,
                                            std::vector<const char*>& metrics) {
  HEED_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
  size.pRangeProfilerObject = profiler;
  size.pMetricNames = metrics.data();
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  check(api, api.get_counter_data_size(&size), "cuptiRangeProfilerGetCounterDataSize");
  std::vector<std::uint8_t> data(size.counterDataSize);
  HEED_CUPTI_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, init);
  init.pRangeProfilerObject = profiler;
  init.counterDataSize = data.size();
  init.pCounterData = data.data();
  check(api, api.initialize_counter_data(&init), "cuptiRangeProfilerCounterDataImageInitialize");
  return data;
}

}  // namespace

std::string describe_cupti(const std::string& library) {
  const Cupti api = load_cupti(library);
  std::uint32_t version = 0;
  check(api, api.get_version(&version), "cuptiGetVersion");
  // Since CUDA 13.0 the number is xxyyzz of the toolkit; before, it only counted up.
  return version >= 130000 ? fmt::format("{}.{} ({})", version / 10000, version % 10000 / 100, api.path)
                           : fmt::format("API {} ({})", version, api.path);
}

MetricSchedule schedule_metrics(const std::string& library, const std::string& chip,
                                const std::vector<MetricChoice>& choices) {
  const Cupti api = load_cupti(library);
  Host host(api, chip, {});
  MetricSchedule schedule = choose(host, chip, choices);
  std::vector<const char*> metrics = names_of(schedule);
  (void)host.configure(metrics, schedule.passes);
  return schedule;
}

CounterReading read_counters(const std::string& library, const std::vector<MetricChoice>& choices, void* context,
                             const std::function<void()>& launch) {
  const Cupti api = load_cupti(library);
  HEED_CUPTI_PARAMS(CUpti_Profiler_Initialize_Params, initialize);
  check(api, api.initialize(&initialize), "cuptiProfilerInitialize");
  HEED_CUPTI_PARAMS(CUpti_Device_GetChipName_Params, name);
  name.deviceIndex = 0;
  check(api, api.get_chip_name(&name), "cuptiDeviceGetChipName");
  const std::string chip = name.pChipName;

  // Only needed for chips newer than the library; without it the library's own list of the chip's counters holds.
  HEED_CUPTI_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, available);
  available.ctx = static_cast<CUcontext>(context);
  std::vector<std::uint8_t> availability;
  CUptiResult result = api.get_counter_availability(&available);
  if (result == CUPTI_SUCCESS) {
    availability.resize(available.counterAvailabilityImageSize);
    available.pCounterAvailabilityImage = availability.data();
    result = api.get_counter_availability(&available);
  }
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) check(api, result, "cuptiProfilerGetCounterAvailability");
  if (result != CUPTI_SUCCESS) availability.clear();

  CounterReading reading;
  Host host(api, chip, availability);
  reading.schedule = choose(host, chip, choices);
  std::vector<const char*> metrics = names_of(reading.schedule);
  const std::vector<std::uint8_t> config = host.configure(metrics, reading.schedule.passes);

  std::vector<std::uint8_t> data;
  {
    const RangeProfiler profiler(api, static_cast<CUcontext>(context));
    data = make_counter_data(api, profiler.object(), metrics);
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_SetConfig_Params, set);
    set.pRangeProfilerObject = profiler.object();
    set.configSize = config.size();
    set.pConfig = config.data();
    set.counterDataImageSize = data.size();
    set.pCounterDataImage = data.data();
    set.range = CUPTI_AutoRange;          // a range is a kernel
    set.replayMode = CUPTI_KernelReplay;  // CUPTI runs it once a pass and puts memory back in between
    set.maxRangesPerPass = 1;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.passIndex = 0;
    set.targetNestingLevel = 1;
    check(api, api.set_config(&set), "cuptiRangeProfilerSetConfig");
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_Start_Params, start);
    start.pRangeProfilerObject = profiler.object();
    check(api, api.start(&start), "cuptiRangeProfilerStart");
    launch();
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = profiler.object();
    check(api, api.stop(&stop), "cuptiRangeProfilerStop");
    HEED_CUPTI_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = profiler.object();
    check(api, api.decode(&decode), "cuptiRangeProfilerDecodeData");
    if (decode.numOfRangeDropped != 0)
      throw Error(ErrorCode::unsupported,
                  fmt::format("cuptiRangeProfilerDecodeData dropped {} ranges", decode.numOfRangeDropped));
  }

  HEED_CUPTI_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info);
  info.pCounterDataImage = data.data();
  info.counterDataImageSize = data.size();
  check(api, api.get_counter_data_info(&info), "cuptiRangeProfilerGetCounterDataInfo");
  if (info.numTotalRanges != 1)
    throw Error(ErrorCode::unsupported, fmt::format("CUPTI counted {} launches instead of 1", info.numTotalRanges));

  std::vector<double> values(metrics.size());
  HEED_CUPTI_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, evaluate);
  evaluate.pHostObject = host.object();
  evaluate.pCounterDataImage = data.data();
  evaluate.counterDataImageSize = data.size();
  evaluate.rangeIndex = 0;
  evaluate.ppMetricNames = metrics.data();
  evaluate.numMetrics = metrics.size();
  evaluate.pMetricValues = values.data();
  check(api, api.host_evaluate(&evaluate), "cuptiProfilerHostEvaluateToGpuValues");
  std::size_t index = 0;
  for (const auto& [key, metric] : reading.schedule.metrics) {
    const double value = values[index++];
    if (std::isfinite(value)) reading.values[key] = value;
  }
  HEED_CUPTI_PARAMS(CUpti_Profiler_DeInitialize_Params, deinitialize);
  api.deinitialize(&deinitialize);
  return reading;
}

#undef HEED_CUPTI_PARAMS

}  // namespace heed

#else

namespace heed {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unsupported,
              "this Heed was built without CUPTI (cupti_range_profiler.h was not found when it was configured)");
}

}  // namespace

std::string describe_cupti(const std::string&) {
  refuse();
}

MetricSchedule schedule_metrics(const std::string&, const std::string&, const std::vector<MetricChoice>&) {
  refuse();
}

CounterReading read_counters(const std::string&, const std::vector<MetricChoice>&, void*,
                             const std::function<void()>&) {
  refuse();
}

}  // namespace heed

#endif
