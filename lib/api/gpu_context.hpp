/// What GPU plans and their helpers share: contexts, programs in them, and errors of the driver.
#pragma once

#include <memory>
#include <string_view>

#include "api/plan.hpp"
#include "device/cuda_driver.hpp"
#include "launch/gpu_program.hpp"

namespace heed::api {

/// @throws Error(driver) naming the step, std::bad_alloc
void check(CUresult result, std::string_view step);

/// The calling thread's context, if it is of the device, else the device's primary one, made current while this lives.
class UsedContext {
 public:
  explicit UsedContext(int ordinal) : cuda_(cuda_driver()) {
    check(cuda_.ctx_get_current(&before_), "asking for the current context");
    CUdevice device = 0;
    check(cuda_.device_get(&device, ordinal), "opening the GPU");
    CUdevice current = -1;
    if (before_ != nullptr) check(cuda_.ctx_get_device(&current), "asking for the current GPU");
    context_ = before_;
    if (before_ != nullptr && current == device) return;
    check(cuda_.device_primary_ctx_retain(&context_, device), "taking the GPU's context");
    check(cuda_.ctx_set_current(context_), "choosing the context");
  }
  ~UsedContext() {
    if (before_ != nullptr && before_ != context_) cuda_.ctx_set_current(before_);
  }
  UsedContext(const UsedContext&) = delete;
  UsedContext& operator=(const UsedContext&) = delete;

  [[nodiscard]] CUcontext get() const { return context_; }

 private:
  const CudaDriver& cuda_;
  CUcontext before_ = nullptr;
  CUcontext context_ = nullptr;
};

/// A run is on the context that its plan was made in; a thread that has none takes it.
void require_device(CUcontext context, int ordinal, void* stream);

/// Of runs that wait for their stream, as heed_options.debug makes them. @throws Error(usage) where it is captured
void require_no_capture(CUstream stream);

/// Programs by context and image: plans of one program share it. They stay loaded while the process lives, for graphs
/// that were captured hold their kernels, and queued runs may outlive a plan.
std::shared_ptr<GpuProgram> loaded(CUcontext context, const Choice& choice, const LaunchPlan& launch);

}  // namespace heed::api
