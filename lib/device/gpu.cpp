#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/text.hpp"
#include "device/device.hpp"
#include "device/gpu_bus.hpp"
#include "device/placement.hpp"
#include "heed/heed.hpp"

#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#endif

namespace heed {

std::string arch_of(int compute_capability) {
  return compute_capability == 90 ? "sm_90a" : fmt::format("sm_{}", compute_capability);
}

DeviceFacts gpu_limits(std::string_view arch) {
  struct Limits {
    std::string_view arch;
    int compute_capability;
    std::int64_t per_block;
    std::int64_t per_processor;
  };
  // PTX is for GPUs that are not known yet: the least shared memory of those that are.
  constexpr Limits kLimits[] = {{"compute_80", 80, 99 * 1024, 100 * 1024}, {"sm_80", 80, 163 * 1024, 164 * 1024},
                                {"sm_86", 86, 99 * 1024, 100 * 1024},      {"sm_89", 89, 99 * 1024, 100 * 1024},
                                {"sm_90", 90, 227 * 1024, 228 * 1024},     {"sm_90a", 90, 227 * 1024, 228 * 1024}};
  for (const Limits& limits : kLimits) {
    if (limits.arch != arch) continue;
    DeviceFacts facts;
    facts.kind = DeviceKind::cuda;
    facts.name = arch;
    facts.arch = arch;
    facts.compute_capability = limits.compute_capability;
    facts.shared_bytes_per_block = limits.per_block;
    facts.shared_bytes_per_processor = limits.per_processor;
    return facts;
  }
  throw Error(ErrorCode::usage,
              fmt::format("unknown GPU architecture \"{}\"; {}", arch,
                          one_of(arch, {kGpuArchitectures.begin(), kGpuArchitectures.end()})),
              std::string(arch));
}

#ifdef HEED_WITH_CUDA

CudaProbe probe_cuda(int ordinal) {
  try {
    const CudaDriver& cuda = cuda_driver();
    int count = 0;
    if (cuda.device_get_count(&count) != CUDA_SUCCESS || count == 0) return {std::nullopt, "the driver sees no GPU"};
    if (ordinal < 0 || ordinal >= count)
      return {std::nullopt, fmt::format("there is no GPU {}; the driver sees {}", ordinal, count)};
    CUdevice device = 0;
    if (const CUresult result = cuda.device_get(&device, ordinal); result != CUDA_SUCCESS)
      return {std::nullopt, cuda_error_text(result)};
    const auto attribute = [&](CUdevice_attribute which) {
      int value = 0;
      cuda.device_get_attribute(&value, which, device);
      return value;
    };
    DeviceFacts facts;
    facts.kind = DeviceKind::cuda;
    char name[128] = {};
    cuda.device_get_name(name, sizeof name, device);
    facts.name = name;
    int version = 0;
    cuda.driver_get_version(&version);
    facts.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    facts.processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    std::size_t memory = 0;
    cuda.device_total_mem(&memory, device);
    facts.memory_bytes = static_cast<std::int64_t>(memory);
    facts.cache_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    facts.clock_mhz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000.0;
    facts.compute_capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                               attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    facts.arch = arch_of(facts.compute_capability);
    facts.shared_bytes_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    facts.shared_bytes_per_processor = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    // Double data rate: two transfers a clock over the whole bus.
    facts.memory_bandwidth = 2.0 * attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * 1e3 *
                             attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
    return {facts, {}};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

std::string bus_of_gpu(int ordinal) {
  try {
    const CudaDriver& cuda = cuda_driver();
    CUdevice device = 0;
    char bus[32] = {};
    const bool is_known = cuda.device_get(&device, ordinal) == CUDA_SUCCESS &&
                          cuda.device_get_pci_bus_id(bus, sizeof bus, device) == CUDA_SUCCESS;
    return is_known ? bus : "";
  } catch (const Error&) {
    return {};
  }
}

#else

std::string bus_of_gpu(int) {
  return {};
}

CudaProbe probe_cuda(int) {
  return {std::nullopt, "this build has no CUDA support (cuda.h was not found when it was configured)"};
}

#endif

namespace {

// A GPU of the driver as NVML knows it, which counts all GPUs, whatever CUDA_VISIBLE_DEVICES says: by its place on the
// bus. Null where it is not found.
void* find_nvml_handle(void* library, int gpu) {
  void* handle = nullptr;
#ifdef HEED_WITH_CUDA
  const auto init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto handle_by_bus =
      reinterpret_cast<int (*)(const char*, void**)>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  if (init == nullptr || handle_by_bus == nullptr || init() != 0) return nullptr;
  const std::string bus = bus_of_gpu(gpu);
  if (bus.empty() || handle_by_bus(bus.c_str(), &handle) != 0) return nullptr;
#else
  (void)library;
  (void)gpu;
#endif
  return handle;
}

// NVML: https://docs.nvidia.com/deploy/nvml-api/. Null where it is not there.
void* nvml_library() {
  static void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// Found once for each GPU: threads of several ask between their blocks.
void* nvml_handle(void* library, int gpu) {
  static std::mutex mutex;
  static std::map<int, void*> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(gpu);
  return at != known.end() ? at->second : known.emplace(gpu, find_nvml_handle(library, gpu)).first->second;
}

}  // namespace

std::vector<std::string> buses_of_machine() {
  struct PciInfo {  // nvmlPciInfo_t
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char text[32];
  };
  void* const library = nvml_library();
  if (library == nullptr) return {};
  const auto init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto count_of = reinterpret_cast<int (*)(unsigned*)>(::dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto handle_of = reinterpret_cast<int (*)(unsigned, void**)>(::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto info_of = reinterpret_cast<int (*)(void*, PciInfo*)>(::dlsym(library, "nvmlDeviceGetPciInfo_v3"));
  unsigned count = 0;
  if (init == nullptr || count_of == nullptr || handle_of == nullptr || info_of == nullptr || init() != 0 ||
      count_of(&count) != 0)
    return {};
  std::vector<std::string> buses;
  for (unsigned i = 0; i < count; ++i) {
    void* handle = nullptr;
    PciInfo info{};
    if (handle_of(i, &handle) != 0 || info_of(handle, &info) != 0) return {};
    buses.push_back(fmt::format("{:04X}:{:02X}:{:02X}.0", info.domain, info.bus, info.device));
  }
  return buses;
}

DeviceState device_state(DeviceKind kind) {
  DeviceState state;
  if (kind != DeviceKind::cuda) return state;
  void* const library = nvml_library();
  if (library == nullptr) return state;
  using Handle = void*;
  const auto clock = reinterpret_cast<int (*)(Handle, int, unsigned*)>(::dlsym(library, "nvmlDeviceGetClockInfo"));
  const auto power = reinterpret_cast<int (*)(Handle, unsigned*)>(::dlsym(library, "nvmlDeviceGetPowerUsage"));
  const auto temperature =
      reinterpret_cast<int (*)(Handle, int, unsigned*)>(::dlsym(library, "nvmlDeviceGetTemperature"));
  const Handle handle = nvml_handle(library, placement().gpu);
  if (handle == nullptr || clock == nullptr || power == nullptr || temperature == nullptr) return state;
  constexpr int kSmClock = 1;
  constexpr int kGpuTemperature = 0;
  unsigned value = 0;
  if (clock(handle, kSmClock, &value) == 0) state.clock_mhz = value;
  if (power(handle, &value) == 0) state.power_w = value / 1000.0;
  if (temperature(handle, kGpuTemperature, &value) == 0) state.temperature_c = value;
  return state;
}

}  // namespace heed
