#include "workspaces.hpp"

#include <dlfcn.h>

#include <bit>
#include <cstdint>
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

// Of the capture that a stream takes part in; 0: of none.
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html, cuStreamGetCaptureInfo
std::uint64_t capture_of(void* stream) {
  using Asks = int (*)(void* stream, int* status, std::uint64_t* id, void** graph, const void** nodes, std::size_t*);
  static const auto asks = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Asks>(::dlsym(driver, "cuStreamGetCaptureInfo_v2"));
  }();
  int status = 0;
  std::uint64_t id = 0;
  if (asks == nullptr || asks(stream, &status, &id, nullptr, nullptr, nullptr) != 0) return 0;
  return status == 0 ? 0 : id;
}

void prepare(const PlanEntry& entry, void* address, void* stream) {
  if (heed_plan_prepare(entry.plan(), address, stream) != HEED_OK) throw std::runtime_error(heed_last_error());
}

struct Held {
  Tensor tensor;
  std::size_t bytes = 0;
};
// Capture or 0, device, stream, bytes that are zeroed.
using Place = std::tuple<std::uint64_t, std::int32_t, void*, std::size_t>;

std::mutex& mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
std::map<Place, Held>& held() {
  static auto* const all = new std::map<Place, Held>;  // PyTorch's allocator ends before this would
  return *all;
}

std::uint64_t last_capture = 0;  // that a workspace was asked for in

}  // namespace

Workspace::Workspace(const PlanEntry& entry, const Call& call, void* stream) {
  const heed_plan_info& info = entry.info();
  if (info.workspace_bytes == 0) return;
  // A CPU's allocator aligns to 64 bytes.
  const bool is_cpu = call.problem.device_type == HEED_CPU;
  if (is_cpu) {
    own_ = bytes_on(call, info.workspace_bytes + info.workspace_alignment);
    const auto at = reinterpret_cast<std::uintptr_t>(address_of(own_));
    address_ = reinterpret_cast<void*>((at + info.workspace_alignment - 1) & ~(info.workspace_alignment - 1));
    prepare(entry, address_, stream);
    return;
  }
  // A graph zeroes a workspace of its own once, for all runs of a stream in it. A later capture says that earlier ones
  // are over: what a running one of another thread holds would only be made anew.
  const std::uint64_t capture = capture_of(stream);
  const std::lock_guard lock(mutex());
  if (capture != last_capture) {
    std::erase_if(held(), [&](const auto& one) {
      const std::uint64_t of = std::get<0>(one.first);
      return of != 0 && of != capture;
    });
    last_capture = capture;
  }
  Held& place = held()[{capture, call.problem.device, stream, info.workspace_zeroed}];
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

}  // namespace heed::torch
