/// A GPU program in memory: loaded once, launched from every place that launches one, the worker, the library and
/// Python's arena.
/// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
#pragma once

#ifdef HEED_WITH_CUDA

#include <array>
#include <cstdint>

#include "device/cuda_driver.hpp"
#include "kernels/attention/features.hpp"
#include "launch/l2_window.hpp"
#include "variant/family.hpp"

namespace heed {

/// A cubin in the context that was current when it was loaded.
class GpuProgram {
 public:
  GpuProgram() = default;
  ~GpuProgram() { unload(); }
  GpuProgram(GpuProgram&& other) noexcept { *this = std::move(other); }
  GpuProgram& operator=(GpuProgram&& other) noexcept;

  /// @param image a cubin
  /// @param step what was being done, for a message where the answer is not CUDA_SUCCESS
  [[nodiscard]] CUresult load(const void* image, const LaunchPlan& plan, const char*& step);
  void unload();
  [[nodiscard]] bool is_loaded() const { return function_ != nullptr; }
  [[nodiscard]] CUfunction function() const { return function_; }

  /// Queues one launch; the driver copies the parameters before it returns. No allocation, no lock of ours.
  /// @param maps read where the plan has boxes
  /// @param dependent as a programmatic dependent of the launch before it, for a plan that allows it
  /// @param kept what stays in the L2; null: the launch asks for nothing
  [[nodiscard]] CUresult launch(const std::array<std::uint32_t, 3>& grid, const FeatureParams& params,
                                const TensorMaps& maps, CUstream stream, bool dependent,
                                const L2Window* kept = nullptr) const;

 private:
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
  std::uint32_t threads_ = 0;
  std::uint32_t cluster_ = 1;
  unsigned shared_bytes_ = 0;
};

}  // namespace heed

#endif
