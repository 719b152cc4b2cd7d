// Contexts and programs in them; errors of the driver.
#ifdef HEED_WITH_CUDA

#include "api/gpu_context.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <new>

namespace heed::api {

void check(CUresult result, std::string_view step) {
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  throw Error(ErrorCode::driver, fmt::format("{} failed: {}", step, cuda_error_text(result)), std::to_string(result));
}

void require_no_capture(CUstream stream) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  check(cuda_driver().stream_is_capturing(stream, &capture), "asking whether the stream is captured");
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
    throw Error(ErrorCode::usage,
                "with heed_options.debug or HEED_DEBUG=1 a run waits for its stream, which is captured into a graph; "
                "capture it without");
}

void require_device(CUcontext context, int ordinal, void* stream) {
  const CudaDriver& cuda = cuda_driver();
  CUcontext current = nullptr;
  check(cuda.ctx_get_current(&current), "asking for the current context");
  if (current == nullptr) {
    check(cuda.ctx_set_current(context), "choosing the context");
  } else if (current != context) {
    throw Error(ErrorCode::usage,
                fmt::format("the current context is not the one that the plan was made in, of GPU {}; make that one "
                            "current, or make a plan in each",
                            ordinal));
  }
  // The streams 0, 1 and 2 are those that the driver itself makes for each context and thread.
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) return;
  CUcontext of_stream = nullptr;
  check(cuda.stream_get_ctx(static_cast<CUstream>(stream), &of_stream), "asking for the context of the stream");
  if (of_stream != context)
    throw Error(ErrorCode::usage,
                fmt::format("the stream is of another context than the plan, which is of GPU {}", ordinal));
}

namespace {

// While a stream is being captured, a thread may load programs only if it says that it knows.
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html, cuThreadExchangeStreamCaptureMode
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { cuda_driver().thread_exchange_stream_capture_mode(&mode_); }
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

std::shared_ptr<GpuProgram> loaded(CUcontext context, const Choice& choice, const LaunchPlan& launch) {
  static std::mutex mutex;
  static auto* const programs = new std::map<std::string, std::shared_ptr<GpuProgram>>;  // the driver ends before it
  // Of contexts that follow each other, one may lie where another did.
  unsigned long long id = 0;
  check(cuda_driver().ctx_get_id(context, &id), "asking for the number of the context");
  // A program asks for its shared memory once; plans of one image may differ in nothing else that it keeps.
  const std::string key = fmt::format("{} {} {} {} {} {}", id, choice.digest, launch.entry, launch.threads,
                                      launch.cluster, launch.shared_bytes);
  const std::lock_guard lock(mutex);
  std::shared_ptr<GpuProgram>& kept = (*programs)[key];
  if (kept != nullptr) return kept;
  auto program = std::make_shared<GpuProgram>();
  const char* step = "";
  const RelaxedCapture relaxed;
  const CUresult result = program->load(choice.image->data(), launch, step);
  if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE ||
      result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
    throw Error(ErrorCode::programs,
                fmt::format("the driver cannot load {}: {}; it is older than the programs, or they are of another GPU",
                            describe(choice.variant), cuda_error_text(result)),
                describe(choice.variant));
  check(result, step);
  kept = program;
  return program;
}

}  // namespace heed::api

#endif
