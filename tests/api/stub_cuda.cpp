// A stand-in for libcuda.so.1: it checks what it is given, counts, and "launches" by writing what it saw to the output.
#include <cuda.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "kernels/attention/features.hpp"
#include "lib/merge/merge_partials.hpp"
#include "lib/padding/copy_rows.hpp"
#include "lib/quantise/quantise_rows.hpp"
#include "stub_copy.hpp"
#include "stub_graph.hpp"
#include "stub_passes.hpp"

// Headers name some functions with macros that add a version; libcuda exports both names, and Heed asks for these.
#undef cuDeviceTotalMem
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuCtxSynchronize
#undef cuStreamSynchronize
#undef cuEventSynchronize
#undef cuStreamBeginCapture
#undef cuStreamGetCtx
#undef cuLaunchHostFunc
#undef cuMemHostRegister

namespace {

using heed::stub::is_taken;
using heed::stub::kCapturing;

struct Gpu {
  const char* name;
  int major;
  int minor;
  int multiprocessors;
  int shared_bytes_per_block;
  int shared_bytes_per_multiprocessor;
};
// The last is older than all programs.
constexpr Gpu kGpus[] = {{"Stub H100", 9, 0, 132, 227 * 1024, 228 * 1024},
                         {"Stub H100", 9, 0, 132, 227 * 1024, 228 * 1024},
                         {"Stub T4", 7, 5, 40, 64 * 1024, 64 * 1024}};
constexpr int kGpuCount = static_cast<int>(std::size(kGpus));

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(0x100 + device));
}
thread_local CUcontext current = nullptr;
int launched = 0;
int allocated_or_waited = 0;
unsigned attributes_of_last = 0;
CUaccessPolicyWindow window_of_last{};
int most_of_window = 0;
std::size_t set_aside = 0;

const auto kForward = reinterpret_cast<CUfunction>(0x22);
const auto kCopies = reinterpret_cast<CUfunction>(0x33);
const auto kMerge = reinterpret_cast<CUfunction>(0x44);
const auto kQuantise = reinterpret_cast<CUfunction>(0x55);
heed::quantise::Pass passes[16];
int pass_count = 0;
const auto kList = reinterpret_cast<CUfunction>(0x66);
const auto kAppend = reinterpret_cast<CUfunction>(0x99);
heed::merge::Merge last_merge{};
int merged = 0;
// Where a forward launch writes the first word of its first page of K, behind parameters and a map.
constexpr std::size_t kSeen = sizeof(heed::FeatureParams) + sizeof(CUtensorMap);
float merge_saw[2][2 * heed::merge::kMostPartials];
bool looks_at_pages = false;
int in_use = 0;      // allocations and pinned ranges that have not been given back
char refused = ' ';  // what the driver refuses: 'p' to pin, 'm' memory, 'c' to copy

// A launch that is captured has parameters of its own.
bool is_taken_launch(const CUlaunchConfig& config, CUfunction function, void** arguments) {
  using heed::stub::copied;
  if (config.hStream != kCapturing) return false;
  std::shared_ptr<void> maps;
  std::shared_ptr<void> parameters;
  if (function == kCopies) parameters = copied<heed::padding::RowCopies>(arguments[0]);
  if (function == kMerge) parameters = copied<heed::merge::Merge>(arguments[0]);
  if (function == kForward) {
    parameters = copied<heed::FeatureParams>(arguments[0]);
    maps = copied<heed::TensorMaps>(arguments[1]);
  }
  CUlaunchConfig own = config;
  own.hStream = nullptr;
  own.attrs = nullptr;
  own.numAttrs = 0;
  return parameters != nullptr && is_taken(kCapturing, [=] {
           void* all[] = {parameters.get(), maps.get()};
           if (cuLaunchKernelEx(&own, function, all, nullptr) != CUDA_SUCCESS) std::abort();
         });
}

}  // namespace

extern "C" {

int stub_launched() {
  return launched;
}
int stub_allocated_or_waited() {
  return allocated_or_waited;
}
/// The last merge, and how many there were.
const heed::merge::Merge* stub_merge() {
  return &last_merge;
}
int stub_merged() {
  return merged;
}
/// What the last merge found, or the one before: of each part the first log-sum-exp, the first word of K that it saw.
const float* stub_merge_saw(int back) {
  return merge_saw[(merged + 1 + back) % 2];
}
void stub_look_at_pages(bool looks) {
  looks_at_pages = looks;
}
/// The passes that quantised inputs, a stage each, and how many there were.
const heed::quantise::Pass* stub_passes() {
  return passes;
}
int stub_passed() {
  return pass_count;
}
int stub_in_use() {
  return in_use;
}
void stub_refuse(char what) {
  refused = what;
}
/// The L2 from now on: how large a window may be, and what the context sets aside.
void stub_l2(int most, std::size_t aside) {
  most_of_window = most;
  set_aside = aside;
}
/// The last forward launch's window over the L2; zeros where it has none.
const CUaccessPolicyWindow* stub_window() {
  return &window_of_last;
}
unsigned stub_attributes() {
  return attributes_of_last;
}

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) {
  *text = "CUDA_ERROR_STUB";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "stub says no";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = kGpuCount;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < kGpuCount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int, CUdevice device) {
  std::strcpy(name, kGpus[device].name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = kGpus[device].major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = kGpus[device].minor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = kGpus[device].multiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = kGpus[device].shared_bytes_per_block;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = kGpus[device].shared_bytes_per_multiprocessor;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
      *value = most_of_window;
      break;
    default:
      *value = 1 << 20;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = std::size_t{80} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = static_cast<int>(reinterpret_cast<std::uintptr_t>(current) - 0x100);
  return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  *value = limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE ? set_aside : 0;
  return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = context_of(reinterpret_cast<std::uintptr_t>(stream) == 0x77 ? 1 : 0);
  return CUDA_SUCCESS;
}
// What an image is, its first words say.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const auto begins = [image](const char* words) {
    return std::strncmp(static_cast<const char*>(image), words, std::strlen(words)) == 0;
  };
  if (begins("cubin of another GPU")) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (begins("PTX of a newer compiler")) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  if (std::memcmp(image, "cubin", 5) != 0 && std::memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *module = reinterpret_cast<CUmodule>(0x11);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) {
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (module != reinterpret_cast<CUmodule>(0x11)) return CUDA_ERROR_NOT_FOUND;
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  const bool of_pass = is("heed_quantise") || is("heed_quantise_lost");
  if (!is("heed_copy_rows") && !is("heed_merge_partials") && !of_pass && !is("heed_list_blocks") &&
      !is("heed_append_rows") && !is("heed_forward"))
    return CUDA_ERROR_NOT_FOUND;
  *function = is("heed_copy_rows")        ? kCopies
              : is("heed_merge_partials") ? kMerge
              : of_pass                   ? kQuantise
              : is("heed_list_blocks")    ? kList
              : is("heed_append_rows")    ? kAppend
                                          : kForward;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const bool ok = (function == kForward ? value > 0 : value == 0) && value <= 227 * 1024 &&
                  attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// Memory is the host's: what is set can be read by the test.
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  if (is_taken(stream, [=] { cuMemsetD8Async(to, value, count, nullptr); })) return CUDA_SUCCESS;
  std::memset(reinterpret_cast<void*>(to), value, count);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  if (is_taken(stream, [=] { cuMemsetD32Async(to, value, count, nullptr); })) return CUDA_SUCCESS;
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  return CUDA_SUCCESS;
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                           std::size_t height, CUstream) {
  for (std::size_t i = 0; i < height; ++i) std::memset(reinterpret_cast<char*>(to) + i * pitch, value, width);
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* at, std::size_t bytes) {
  ++allocated_or_waited;
  if (refused == 'm') return CUDA_ERROR_OUT_OF_MEMORY;
  ++in_use;
  constexpr std::size_t kGranule = 4096;
  void* const memory = std::aligned_alloc(kGranule, (bytes + kGranule - 1) / kGranule * kGranule);
  *at = reinterpret_cast<CUdeviceptr>(memory);
  return memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
  ++allocated_or_waited;
  --in_use;
  std::free(reinterpret_cast<void*>(at));
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister_v2(void*, std::size_t, unsigned) {
  if (refused == 'p') return CUDA_ERROR_OUT_OF_MEMORY;
  ++in_use;
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void*) {
  --in_use;
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  if (is_taken(stream, [=] { function(argument); })) return CUDA_SUCCESS;
  function(argument);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  if (is_taken(stream, [=] { cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); })) return CUDA_SUCCESS;
  ++allocated_or_waited;
  if (refused == 'c') return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream) {
  ++allocated_or_waited;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  ++allocated_or_waited;
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
  ++allocated_or_waited;
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) {
  ++allocated_or_waited;
  return CUDA_SUCCESS;
}
// Writes to O: the parameters as they came, then what the map of K says.
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (is_taken_launch(*config, function, arguments)) return CUDA_SUCCESS;
  if (function == kCopies) {
    if (config->gridDimY < 1 || config->gridDimY > 3 || config->blockDimX != heed::padding::kCopyThreads)
      return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->gridDimY; ++i)
      heed::stub::copy(static_cast<const heed::padding::RowCopies*>(arguments[0])->tensors[i]);
    ++launched;
    return CUDA_SUCCESS;
  }
  if (function == kMerge) {
    if (config->blockDimX != heed::merge::kMergeThreads) return CUDA_ERROR_INVALID_VALUE;
    last_merge = *static_cast<const heed::merge::Merge*>(arguments[0]);
    float* const saw = merge_saw[merged % 2];
    for (int i = 0; i < last_merge.count; ++i) {
      saw[2 * i] = last_merge.partials[i].lse[0];
      std::memcpy(saw + 2 * i + 1, static_cast<const char*>(last_merge.partials[i].o) + kSeen, sizeof(float));
    }
    ++merged;
    return CUDA_SUCCESS;
  }
  if (function == kQuantise) {
    const auto& pass = *static_cast<const heed::quantise::Pass*>(arguments[0]);
    const bool of_rows = pass.stage == static_cast<int>(heed::quantise::Stage::largest) ||
                         pass.stage == static_cast<int>(heed::quantise::Stage::elements) ||
                         pass.stage == static_cast<int>(heed::quantise::Stage::lost);
    if (config->blockDimX != heed::quantise::kQuantiseThreads || config->gridDimY != (of_rows ? 3U : 1U))
      return CUDA_ERROR_INVALID_VALUE;
    passes[pass_count++ % std::size(passes)] = pass;
    ++launched;
    return CUDA_SUCCESS;
  }
  if (function == kList || function == kAppend) {
    const bool is_right = function == kList ? heed::stub::take_listing(*config, arguments[0])
                                            : heed::stub::take_append(*config, arguments[0]);
    launched += is_right ? 1 : 0;
    return is_right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (function != kForward || extra != nullptr || config->blockDimX == 0 || config->gridDimX == 0)
    return CUDA_ERROR_INVALID_VALUE;
  ++launched;
  attributes_of_last = config->numAttrs;
  window_of_last = {};
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW)
      window_of_last = config->attrs[i].value.accessPolicyWindow;
  const auto* params = static_cast<const heed::FeatureParams*>(arguments[0]);
  const auto* maps = static_cast<const heed::TensorMaps*>(arguments[1]);
  if (reinterpret_cast<std::uintptr_t>(maps) % 64 != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  std::memcpy(params->o, params, sizeof *params);
  std::memcpy(static_cast<char*>(params->o) + sizeof *params, maps->k.opaque, sizeof maps->k.opaque);
  if (looks_at_pages && params->page_table != nullptr)
    std::memcpy(static_cast<char*>(params->o) + kSeen,
                static_cast<const char*>(params->k) + params->page_table[0] * params->k_strides.batch * 2,
                sizeof(float));
  return CUDA_SUCCESS;
}
}
