// Plans on a GPU: a cubin in a context, tensor maps encoded when addresses change.
#include "api/plan.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>

#include "device/cuda_driver.hpp"
#include "launch/gpu_program.hpp"
#include "launch/tensor_map.hpp"
#include "merge/merge.hpp"
#include "padding/padding.hpp"

namespace heed::api {
namespace {

void check(CUresult result, std::string_view step) {
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  throw Error(ErrorCode::driver, fmt::format("{} failed: {}", step, cuda_error_text(result)), std::to_string(result));
}

// The calling thread's context, if it is of the device, else the device's primary one, made current while this lives.
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

// A run is on the context that its plan was made in; a thread that has none takes it.
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

// Programs by context and image: plans of one program share it. They stay loaded while the process lives, for graphs
// that were captured hold their kernels, and queued runs may outlive a plan.
std::shared_ptr<GpuProgram> loaded(CUcontext context, const Choice& choice, const LaunchPlan& launch) {
  static std::mutex mutex;
  static auto* const programs = new std::map<std::string, std::shared_ptr<GpuProgram>>;  // the driver ends before it
  // Of contexts that follow each other, one may lie where another did.
  unsigned long long id = 0;
  check(cuda_driver().ctx_get_id(context, &id), "asking for the number of the context");
  // A program asks for its shared memory once; plans of one image may differ in nothing else that it keeps.
  const std::string key =
      fmt::format("{} {} {} {} {}", id, choice.digest, launch.threads, launch.cluster, launch.shared_bytes);
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

// Maps of the last tensors that a thread ran plans with: no lock, no allocation.
struct alignas(64) CachedMaps {
  std::uint64_t plan = 0;  // serial number; 0: none
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  TensorMaps maps;
};
constexpr std::size_t kCachedMaps = 64;  // 37 KB a thread; a decoder of 32 layers has 32 sets of addresses

const TensorMaps& maps_of(std::uint64_t plan, const FeatureParams& p, const TensorMapSpec& spec) {
  static thread_local std::array<CachedMaps, kCachedMaps> cached;
  const auto mix = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) >> 4; };
  const std::uint64_t hash = (mix(p.q) ^ mix(p.k) * 3 ^ mix(p.v) * 5 ^ mix(p.o) * 7 ^ plan) * 0x9E3779B97F4A7C15U;
  CachedMaps& entry = cached[hash >> 58];
  if (entry.plan != plan || entry.q != p.q || entry.k != p.k || entry.v != p.v || entry.o != p.o) {
    entry.plan = 0;
    entry.maps = encode_tensor_maps(p, spec);
    entry.q = p.q;
    entry.k = p.k;
    entry.v = p.v;
    entry.o = p.o;
    entry.plan = plan;
  }
  return entry.maps;
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

class GpuPlan final : public Plan {
 public:
  GpuPlan(const Problem& problem, Choice choice, const LaunchPlan& launch, CUcontext context)
      : Plan(problem, std::move(choice), launch), cuda_(cuda_driver()), context_(context) {
    if (!problem_.is_empty && problem_.has_keys) program_ = loaded(context, choice_, launch_);
    choice_.image.reset();
  }

  void prepare(void* workspace, void* stream) const override {
    require_workspace(workspace);
    require_device(context_, problem_.ordinal, stream);
    if (semaphore_bytes_ > 0)
      check(cuda_.memset_d8_async(reinterpret_cast<CUdeviceptr>(workspace), 0, semaphore_bytes_,
                                  static_cast<CUstream>(stream)),
            "clearing the workspace");
  }

  double run(const heed_tensors* tensors, std::size_t count, void* workspace, void* stream,
             std::uint32_t flags) const override {
    if (problem_.is_empty) return 0;
    const bool dependent = (flags & HEED_RUN_DEPENDENT) != 0;
    if (dependent && !launch_.supports_pdl)
      throw Error(ErrorCode::usage, "this plan cannot be launched as a dependent; leave out HEED_RUN_DEPENDENT");
    require_device(context_, problem_.ordinal, stream);
    if (problem_.has_keys) require_workspace(workspace);
    static const TensorMaps no_maps{};
    for (std::size_t i = 0; i < count; ++i) {
      const Addresses at = checked(tensors[i]);
      if (!problem_.has_keys) {
        write_empty_rows(at, static_cast<CUstream>(stream));
        continue;
      }
      const FeatureParams params = bound(at, workspace);
      const TensorMaps& maps = launch_.tensor_maps ? maps_of(serial_, params, *launch_.tensor_maps) : no_maps;
      check(program_->launch(launch_.grid, params, maps, static_cast<CUstream>(stream), dependent),
            "launching the kernel");
    }
    return 0;
  }

 private:
  // Zeros and minus infinity.
  void write_empty_rows(const Addresses& at, CUstream stream) const {
    const TensorSizes o = problem_.o_sizes();
    const auto row_bytes = static_cast<std::size_t>(o.dim) * static_cast<std::size_t>(bytes_.o);
    for (std::int64_t b = 0; b < o.batch; ++b)
      for (std::int64_t h = 0; h < o.heads; ++h) {
        const std::int64_t offset = (b * problem_.o.batch + h * problem_.o.head) * bytes_.o;
        check(cuda_.memset_d2d8_async(reinterpret_cast<CUdeviceptr>(static_cast<char*>(at.o) + offset),
                                      static_cast<std::size_t>(problem_.o.row * bytes_.o), 0, row_bytes,
                                      static_cast<std::size_t>(o.rows), stream),
              "writing zeros");
      }
    constexpr unsigned kMinusInfinity = 0xff800000;
    if (at.lse != nullptr)
      check(cuda_.memset_d32_async(reinterpret_cast<CUdeviceptr>(at.lse), kMinusInfinity,
                                   static_cast<std::size_t>(o.batch * o.heads * o.rows), stream),
            "writing the log-sum-exp");
  }

  const CudaDriver& cuda_;
  CUcontext context_;
  std::uint64_t serial_ = next_serial();
  std::shared_ptr<GpuProgram> program_;
};

class GpuCopies final : public Copies {
 public:
  GpuCopies(CUcontext context, int ordinal, const Choice& program, int processors)
      : context_(context),
        ordinal_(ordinal),
        program_(loaded(context, program, copy_launch())),
        blocks_(static_cast<unsigned>(kBlocksEach * processors)) {}

  void run(std::span<const padding::RowCopy> copies, void* stream) const override {
    require_device(context_, ordinal_, stream);
    padding::RowCopies parameter{};
    std::copy(copies.begin(), copies.end(), parameter.tensors);
    CUlaunchConfig config{};
    config.gridDimX = blocks_;
    config.gridDimY = static_cast<unsigned>(copies.size());
    config.gridDimZ = 1;
    config.blockDimX = padding::kCopyThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr), "launching the copies");
  }

 private:
  static constexpr int kBlocksEach = 4;  // of a multiprocessor: 1024 threads, each with 16 bytes on the way

  static LaunchPlan copy_launch() {
    LaunchPlan launch;
    launch.entry = padding::kCopyEntry;
    launch.threads = padding::kCopyThreads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  std::shared_ptr<GpuProgram> program_;
  unsigned blocks_;
};

class GpuMerges final : public Merges {
 public:
  GpuMerges(CUcontext context, int ordinal, const Choice& program, int processors)
      : context_(context),
        ordinal_(ordinal),
        program_(loaded(context, program, merge_launch())),
        most_blocks_(static_cast<unsigned>(kBlocksEach * processors)) {}

  void run(const merge::Merge& merge, void* stream) const override {
    require_device(context_, ordinal_, stream);
    merge::expect_merge(merge);
    const long long rows = merge.batch * merge.heads * merge.rows;
    if (rows == 0) return;
    merge::Merge parameter = merge;
    const long long each = merge::rows_of_block(merge.dim);
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(std::min<long long>((rows + each - 1) / each, most_blocks_));
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = merge::kMergeThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = static_cast<CUstream>(stream);
    void* arguments[] = {&parameter};
    check(cuda_driver().launch_kernel_ex(&config, program_->function(), arguments, nullptr), "launching the merge");
  }

 private:
  static constexpr int kBlocksEach = 16;  // of a multiprocessor: 2048 threads, all that it has room for

  static LaunchPlan merge_launch() {
    LaunchPlan launch;
    launch.entry = merge::kMergeEntry;
    launch.threads = merge::kMergeThreads;
    return launch;
  }

  CUcontext context_;
  int ordinal_;
  std::shared_ptr<GpuProgram> program_;
  unsigned most_blocks_;
};

}  // namespace

std::unique_ptr<Plan> make_gpu_plan(const Problem& problem, Choice choice, const DeviceFacts& device) {
  const UsedContext context(problem.ordinal);
  if (problem.is_empty || !problem.has_keys)
    return std::make_unique<GpuPlan>(problem, std::move(choice), LaunchPlan{}, context.get());
  const LaunchPlan launch = choice.variant.plan(problem.workload, device);
  return std::make_unique<GpuPlan>(problem, std::move(choice), launch, context.get());
}

std::unique_ptr<Copies> make_gpu_copies(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuCopies>(context.get(), problem.ordinal, program, facts_of_device(problem).processors);
}

std::unique_ptr<Merges> make_gpu_merges(const Problem& problem, const Choice& program) {
  const UsedContext context(problem.ordinal);
  return std::make_unique<GpuMerges>(context.get(), problem.ordinal, program, facts_of_device(problem).processors);
}

}  // namespace heed::api

#else

namespace heed::api {

std::unique_ptr<Plan> make_gpu_plan(const Problem&, Choice, const DeviceFacts&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Copies> make_gpu_copies(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
std::unique_ptr<Merges> make_gpu_merges(const Problem&, const Choice&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}

}  // namespace heed::api

#endif
