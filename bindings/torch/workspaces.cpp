#include "workspaces.hpp"

#include <dlfcn.h>

#include <bit>
#include <map>
#include <tuple>

namespace heed::torch {
namespace {

Tensor bytes_on(const Call& call, std::size_t bytes) {
  static const std::int32_t uint8 = libtorch().dtype_uint8();
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t step = 1;
  TensorHandle tensor = nullptr;
  check(libtorch().empty_strided(1, &size, &step, uint8, call.device_type, call.problem.device, &tensor),
        "allocating a workspace");
  return Tensor(tensor);
}

void* address_of(const Tensor& tensor) {
  void* address = nullptr;
  check(libtorch().tensor_data(tensor.get(), &address), "asking for an address");
  return address;
}

// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html, cuStreamIsCapturing
bool is_captured(void* stream) {
  using Asks = int (*)(void*, int*);
  static const auto asks = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Asks>(::dlsym(driver, "cuStreamIsCapturing"));
  }();
  int status = 0;
  if (asks == nullptr) return false;
  if (asks(stream, &status) != 0) return true;  // the legacy stream, beside a capture of another
  return status != 0;
}

void prepare(const PlanEntry& entry, void* address, void* stream) {
  if (heed_plan_prepare(entry.plan(), address, stream) != HEED_OK) throw std::runtime_error(heed_last_error());
}

struct Held {
  Tensor tensor;
  std::size_t bytes = 0;
};
using Place = std::tuple<std::int32_t, void*, std::size_t>;  // device, stream, bytes that are zeroed

std::mutex& mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
std::map<Place, Held>& held() {
  static auto* const all = new std::map<Place, Held>;  // PyTorch's allocator ends before this would
  return *all;
}

}  // namespace

Workspace::Workspace(const PlanEntry& entry, const Call& call, void* stream) {
  const heed_plan_info& info = entry.info();
  if (info.workspace_bytes == 0) return;
  // A CPU's allocator aligns to 64 bytes.
  const bool is_cpu = call.problem.device_type == HEED_CPU;
  if (is_cpu || is_captured(stream)) {
    own_ = bytes_on(call, info.workspace_bytes + info.workspace_alignment);
    const auto at = reinterpret_cast<std::uintptr_t>(address_of(own_));
    address_ = reinterpret_cast<void*>((at + info.workspace_alignment - 1) & ~(info.workspace_alignment - 1));
    prepare(entry, address_, stream);
    return;
  }
  const std::lock_guard lock(mutex());
  Held& place = held()[{call.problem.device, stream, info.workspace_zeroed}];
  if (place.bytes < info.workspace_bytes) {
    // Powers of two: a decoder's plans grow with its cache.
    const std::size_t bytes = std::bit_ceil(info.workspace_bytes);
    place.bytes = 0;
    place.tensor = Tensor();
    place.tensor = bytes_on(call, bytes);
    prepare(entry, address_of(place.tensor), stream);
    place.bytes = bytes;
  }
  address_ = address_of(place.tensor);
}

void free_workspaces() {
  const std::lock_guard lock(mutex());
  held().clear();
}

std::size_t workspace_bytes() {
  const std::lock_guard lock(mutex());
  std::size_t bytes = 0;
  for (const auto& [place, one] : held()) bytes += one.bytes;
  return bytes;
}

}  // namespace heed::torch
