#include "conformance/device_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "conformance/status.hpp"

namespace heed::conformance {
namespace {

constexpr std::size_t kAlignment = 4096;

#ifdef HEED_WITH_CUDA

CUdeviceptr number_of(const std::byte* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

void enter_gpu() {
  const CudaDriver& cuda = cuda_driver();
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  check(cuda.device_get(&ordinal, 0), "opening the GPU");
  check(cuda.device_primary_ctx_retain(&context, ordinal), "taking the GPU's context");
  check(cuda.ctx_set_current(context), "choosing the context");
}
void* make_stream() {
  CUstream made = nullptr;
  check(cuda_driver().stream_create(&made, CU_STREAM_NON_BLOCKING), "creating a stream");
  return made;
}
void wait_for(void* stream) {
  check(cuda_driver().stream_synchronize(static_cast<CUstream>(stream)), "running what was queued");
}
std::byte* allocate_on_gpu(std::size_t bytes) {
  CUdeviceptr at = 0;
  check(cuda_driver().mem_alloc(&at, bytes), "allocating memory of the GPU");
  return reinterpret_cast<std::byte*>(at);
}
void free_on_gpu(std::byte* address) {
  (void)cuda_driver().mem_free(number_of(address));
}
void copy_to_gpu(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) {
  check(cuda_driver().memcpy_htod_async(number_of(to), from, bytes, static_cast<CUstream>(stream)),
        "copying to the GPU");
}
void copy_from_gpu(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) {
  check(cuda_driver().memcpy_dtoh_async(to, number_of(from), bytes, static_cast<CUstream>(stream)),
        "copying from the GPU");
}

#else

[[noreturn]] void enter_gpu() {
  throw Error(ErrorCode::no_device, "no GPU can be used: this build has no CUDA support", "cuda");
}
[[noreturn]] void* make_stream() {
  enter_gpu();
}
void wait_for(void*) {}
[[noreturn]] std::byte* allocate_on_gpu(std::size_t) {
  enter_gpu();
}
void free_on_gpu(std::byte*) {}
void copy_to_gpu(std::byte*, const std::byte*, std::size_t, void*) {}
void copy_from_gpu(std::byte*, const std::byte*, std::size_t, void*) {}

#endif

std::byte* allocate(DeviceKind device, std::size_t bytes) {
  const std::size_t room = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (device == DeviceKind::cuda) return allocate_on_gpu(room);
  auto* const address = static_cast<std::byte*>(std::aligned_alloc(kAlignment, room));
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

void enter_device(DeviceKind device) {
  if (device == DeviceKind::cuda) enter_gpu();
}

// Streams live as long as the context: checks make a few.
Stream::Stream(DeviceKind device) : stream_(device == DeviceKind::cuda ? make_stream() : nullptr) {}

void Stream::wait() const {
  if (stream_ != nullptr) wait_for(stream_);
}

Memory::Memory(DeviceKind device, std::size_t bytes)
    : device_(device), bytes_(bytes), address_(allocate(device, bytes)) {}

Memory::~Memory() {
  if (device_ == DeviceKind::cuda)
    free_on_gpu(address_);
  else
    std::free(address_);
}

void Memory::put(const std::vector<std::byte>& from, const Stream& stream) {
  if (from.size() > bytes_) throw Error(ErrorCode::internal, "more bytes than the memory has");
  // An empty tensor has no address, and a copy of no bytes from none is undefined.
  if (from.empty()) return;
  if (device_ == DeviceKind::cuda)
    copy_to_gpu(address_, from.data(), from.size(), stream.get());
  else
    std::memcpy(address_, from.data(), from.size());
}

void Memory::get(std::vector<std::byte>& to, const Stream& stream) const {
  to.resize(bytes_);
  if (to.empty()) return;
  if (device_ == DeviceKind::cuda)
    copy_from_gpu(to.data(), address_, bytes_, stream.get());
  else
    std::memcpy(to.data(), address_, bytes_);
  stream.wait();
}

}  // namespace heed::conformance
