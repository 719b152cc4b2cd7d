#ifdef HEED_WITH_CUPTI

#include "worker/cupti.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <type_traits>
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

}  // namespace

Cupti load_cupti(const std::string& asked_for) {
  const std::vector<std::string> candidates =
      asked_for.empty() ? candidate_libraries() : std::vector<std::string>{asked_for};
  void* library = nullptr;
  std::string reason;
  for (const std::string& name : candidates) {
    library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  if (library == nullptr)
    throw Error(ErrorCode::unsupported,
                fmt::format("CUPTI was not found ({}); it comes with the CUDA toolkit, or from PyPI "
                            "(nvidia-cuda-cupti)",
                            reason),
                asked_for);
  Cupti api{};
  const auto bind = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr)
      throw Error(ErrorCode::unsupported,
                  fmt::format("{} lacks {}; Heed reads counters with CUPTI of CUDA 12.6 or newer",
                              asked_for.empty() ? "libcupti" : asked_for, name),
                  asked_for);
  };
  bind("cuptiGetVersion", api.get_version);
  bind("cuptiGetResultString", api.get_result_string);
  bind("cuptiProfilerInitialize", api.initialize);
  bind("cuptiProfilerDeInitialize", api.deinitialize);
  bind("cuptiDeviceGetChipName", api.get_chip_name);
  bind("cuptiProfilerGetCounterAvailability", api.get_counter_availability);
  bind("cuptiProfilerHostInitialize", api.host_initialize);
  bind("cuptiProfilerHostDeinitialize", api.host_deinitialize);
  bind("cuptiProfilerHostGetBaseMetrics", api.host_get_base_metrics);
  bind("cuptiProfilerHostConfigAddMetrics", api.host_add_metrics);
  bind("cuptiProfilerHostGetConfigImageSize", api.host_get_config_size);
  bind("cuptiProfilerHostGetConfigImage", api.host_get_config);
  bind("cuptiProfilerHostGetNumOfPasses", api.host_get_passes);
  bind("cuptiProfilerHostEvaluateToGpuValues", api.host_evaluate);
  bind("cuptiRangeProfilerEnable", api.enable);
  bind("cuptiRangeProfilerDisable", api.disable);
  bind("cuptiRangeProfilerGetCounterDataSize", api.get_counter_data_size);
  bind("cuptiRangeProfilerCounterDataImageInitialize", api.initialize_counter_data);
  bind("cuptiRangeProfilerSetConfig", api.set_config);
  bind("cuptiRangeProfilerStart", api.start);
  bind("cuptiRangeProfilerStop", api.stop);
  bind("cuptiRangeProfilerDecodeData", api.decode);
  bind("cuptiRangeProfilerGetCounterDataInfo", api.get_counter_data_info);
  Dl_info where{};
  api.path = ::dladdr(reinterpret_cast<void*>(api.get_version), &where) != 0 ? where.dli_fname : "libcupti";
  // CUPTI asks the linker for its two helpers by their bare names; those already loaded are found wherever they lie.
  for (const char* helper : {"libnvperf_host.so", "libnvperf_target.so"})
    ::dlopen((fs::path(api.path).parent_path() / helper).c_str(), RTLD_NOW | RTLD_GLOBAL);
  return api;
}

void check(const Cupti& api, CUptiResult result, const char* call) {
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
