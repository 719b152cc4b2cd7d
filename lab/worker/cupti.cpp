#ifdef HEED_WITH_CUPTI

#include "worker/cupti.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/text.hpp"
#include "heed/heed.hpp"

#ifndef HEED_CUPTI_FOLDERS
#define HEED_CUPTI_FOLDERS ""  // found when the build was configured, separated by colons
#endif

namespace heed {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> candidate_libraries() {
  std::vector<std::string> names;
  std::vector<std::string> folders = split(HEED_CUPTI_FOLDERS, ':');
  folders.insert(folders.end(), {"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64",
                                 "/usr/local/cuda/targets/x86_64-linux/lib"});
  for (const std::string& folder : folders)
    for (const char* name : {"libcupti.so.13", "libcupti.so.12"})
      if (!folder.empty() && fs::exists(fs::path(folder) / name)) names.push_back((fs::path(folder) / name).string());
  names.insert(names.end(), {"libcupti.so.13", "libcupti.so.12"});  // the dynamic linker's own search
  return names;
}

// The NVIDIA kernel module may keep counters for administrators.
// https://developer.nvidia.com/nvidia-development-tools-solutions-err_nvgpuctrperm-permission-issue-performance-counters
std::string permission_hint() {
  std::ifstream file("/proc/driver/nvidia/params");
  std::string line;
  while (std::getline(file, line))
    if (line == "RmProfilingAdminOnly: 1") return "; the NVIDIA kernel module keeps counters for administrators";
  return {};
}

class Library {
 public:
  explicit Library(const std::string& asked_for) : asked_for_(asked_for) {
    const std::vector<std::string> candidates =
        asked_for.empty() ? candidate_libraries() : std::vector<std::string>{asked_for};
    std::string reason;
    for (const std::string& name : candidates) {
      handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      if (reason.empty()) reason = ::dlerror();
    }
    throw Error(ErrorCode::unsupported,
                fmt::format("CUPTI was not found ({}); it comes with the CUDA toolkit, or from PyPI "
                            "(nvidia-cuda-cupti)",
                            reason),
                asked_for);
  }

  template <typename Function>
  void bind(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr)
      throw Error(ErrorCode::unsupported,
                  fmt::format("{} lacks {}; Heed uses CUPTI of CUDA 12.6 or newer",
                              asked_for_.empty() ? "libcupti" : asked_for_, name),
                  asked_for_);
  }

  void bind_common(CuptiCommon& common) const {
    bind("cuptiGetVersion", common.get_version);
    bind("cuptiGetResultString", common.get_result_string);
    Dl_info where{};
    common.path = ::dladdr(reinterpret_cast<void*>(common.get_version), &where) != 0 ? where.dli_fname : "libcupti";
  }

 private:
  std::string asked_for_;
  void* handle_ = nullptr;
};

}  // namespace

Cupti load_cupti(const std::string& asked_for) {
  const Library library(asked_for);
  Cupti api{};
  library.bind_common(api);
  library.bind("cuptiProfilerInitialize", api.initialize);
  library.bind("cuptiProfilerDeInitialize", api.deinitialize);
  library.bind("cuptiDeviceGetChipName", api.get_chip_name);
  library.bind("cuptiProfilerGetCounterAvailability", api.get_counter_availability);
  library.bind("cuptiProfilerHostInitialize", api.host_initialize);
  library.bind("cuptiProfilerHostDeinitialize", api.host_deinitialize);
  library.bind("cuptiProfilerHostGetBaseMetrics", api.host_get_base_metrics);
  library.bind("cuptiProfilerHostConfigAddMetrics", api.host_add_metrics);
  library.bind("cuptiProfilerHostGetConfigImageSize", api.host_get_config_size);
  library.bind("cuptiProfilerHostGetConfigImage", api.host_get_config);
  library.bind("cuptiProfilerHostGetNumOfPasses", api.host_get_passes);
  library.bind("cuptiProfilerHostEvaluateToGpuValues", api.host_evaluate);
  library.bind("cuptiRangeProfilerEnable", api.enable);
  library.bind("cuptiRangeProfilerDisable", api.disable);
  library.bind("cuptiRangeProfilerGetCounterDataSize", api.get_counter_data_size);
  library.bind("cuptiRangeProfilerCounterDataImageInitialize", api.initialize_counter_data);
  library.bind("cuptiRangeProfilerSetConfig", api.set_config);
  library.bind("cuptiRangeProfilerStart", api.start);
  library.bind("cuptiRangeProfilerStop", api.stop);
  library.bind("cuptiRangeProfilerDecodeData", api.decode);
  library.bind("cuptiRangeProfilerGetCounterDataInfo", api.get_counter_data_info);
  // CUPTI asks the linker for its two helpers by their bare names; those already loaded are found wherever they lie.
  for (const char* helper : {"libnvperf_host.so", "libnvperf_target.so"})
    ::dlopen((fs::path(api.path).parent_path() / helper).c_str(), RTLD_NOW | RTLD_GLOBAL);
  return api;
}

CuptiActivity load_cupti_activity(const std::string& asked_for) {
  const Library library(asked_for);
  CuptiActivity api{};
  library.bind_common(api.common);
  library.bind("cuptiActivityRegisterCallbacks", api.register_callbacks);
  library.bind("cuptiActivityEnable", api.enable);
  library.bind("cuptiActivityDisable", api.disable);
  library.bind("cuptiActivityFlushAll", api.flush_all);
  library.bind("cuptiActivityGetNextRecord", api.next_record);
  library.bind("cuptiActivityGetNumDroppedRecords", api.dropped_records);
  return api;
}

void check(const CuptiCommon& api, CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  api.get_result_string(result, &text);
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("no permission to read hardware counters ({}: {}){}; run as root, or load the kernel module "
                    "with NVreg_RestrictProfilingToAdminUsers=0",
                    call, text == nullptr ? "?" : text, permission_hint()));
  throw Error(ErrorCode::unsupported,
              fmt::format("{} failed: {} ({}){}", call, text == nullptr ? "unknown error" : text,
                          static_cast<int>(result), permission_hint()));
}

}  // namespace heed

#endif
