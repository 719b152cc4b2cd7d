#include "launch/gpu_program.hpp"

#ifdef HEED_WITH_CUDA

#include <utility>

namespace heed {

GpuProgram& GpuProgram::operator=(GpuProgram&& other) noexcept {
  if (this == &other) return *this;
  unload();
  module_ = std::exchange(other.module_, nullptr);
  function_ = std::exchange(other.function_, nullptr);
  threads_ = other.threads_;
  cluster_ = other.cluster_;
  shared_bytes_ = other.shared_bytes_;
  return *this;
}

CUresult GpuProgram::load(const void* image, const LaunchPlan& plan, const char*& step) {
  unload();
  const CudaDriver& cuda = cuda_driver();
  step = "loading the cubin";
  if (const CUresult result = cuda.module_load_data(&module_, image); result != CUDA_SUCCESS) {
    module_ = nullptr;
    return result;
  }
  step = "finding the kernel";
  CUfunction function = nullptr;
  CUresult result = cuda.module_get_function(&function, module_, plan.entry.c_str());
  if (result == CUDA_SUCCESS) {
    step = "asking for shared memory";
    result = cuda.func_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     static_cast<int>(plan.shared_bytes));
  }
  if (result != CUDA_SUCCESS) {
    unload();
    return result;
  }
  function_ = function;
  threads_ = plan.threads;
  cluster_ = plan.cluster;
  shared_bytes_ = static_cast<unsigned>(plan.shared_bytes);
  return CUDA_SUCCESS;
}

void GpuProgram::unload() {
  if (module_ != nullptr) cuda_driver().module_unload(module_);
  module_ = nullptr;
  function_ = nullptr;
}

CUresult GpuProgram::launch(const std::array<std::uint32_t, 3>& grid, const FeatureParams& params,
                            const TensorMaps& maps, CUstream stream, bool dependent, const L2Window* kept) const {
  CUlaunchConfig config{};
  config.gridDimX = grid[0];
  config.gridDimY = grid[1];
  config.gridDimZ = grid[2];
  config.blockDimX = threads_;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = shared_bytes_;
  config.hStream = stream;
  std::array<CUlaunchAttribute, 3> attributes{};
  const auto add = [&]() -> CUlaunchAttribute& { return attributes.at(config.numAttrs++); };
  if (cluster_ > 1) {
    CUlaunchAttribute& cluster = add();
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {cluster_, 1, 1};
  }
  if (dependent) {
    CUlaunchAttribute& serialization = add();
    serialization.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    serialization.value.programmaticStreamSerializationAllowed = 1;
  }
  if (kept != nullptr) {
    CUlaunchAttribute& window = add();
    window.id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
    window.value.accessPolicyWindow = {const_cast<void*>(kept->begin), kept->bytes, kept->hit_ratio,
                                       CU_ACCESS_PROPERTY_PERSISTING, CU_ACCESS_PROPERTY_STREAMING};
  }
  config.attrs = attributes.data();
  // An entry without maps has one parameter; the driver reads as many as it has.
  void* arguments[] = {const_cast<FeatureParams*>(&params), const_cast<TensorMaps*>(&maps)};
  return cuda_driver().launch_kernel_ex(&config, function_, arguments, nullptr);
}

}  // namespace heed

#endif
