#include "worker/executor.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>

#include "device/cuda_driver.hpp"
#include "device/tensor_map.hpp"

namespace heed::worker {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Errors that leave the context unusable are the candidate's crash; the rest is a launch that was refused.
void check(CUresult result, const char* step) {
  if (result == CUDA_SUCCESS) return;
  const bool crashed = result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED ||
                       result == CUDA_ERROR_ASSERT || result == CUDA_ERROR_ILLEGAL_INSTRUCTION ||
                       result == CUDA_ERROR_MISALIGNED_ADDRESS || result == CUDA_ERROR_INVALID_ADDRESS_SPACE ||
                       result == CUDA_ERROR_INVALID_PC || result == CUDA_ERROR_HARDWARE_STACK_ERROR ||
                       result == CUDA_ERROR_LAUNCH_TIMEOUT;
  throw DeviceFailure(crashed ? DeviceFailure::Kind::crash : DeviceFailure::Kind::launch,
                      fmt::format("{}: {}", step, cuda_error_text(result)));
}

// Fills a block's shared memory with NaN. PTX, which the driver compiles:
// https://docs.nvidia.com/cuda/parallel-thread-execution/
constexpr const char* kPoisonShared = R"(
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry heed_poison_shared(.param .u32 bytes)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  ld.param.u32 %r1, [bytes];
  mov.u32 %r2, %tid.x;
  shl.b32 %r2, %r2, 2;
  mov.u32 %r3, memory;
  mov.u32 %r4, -1;
next:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  add.u32 %r5, %r3, %r2;
  st.volatile.shared.u32 [%r5], %r4;
  add.u32 %r2, %r2, 4096;
  bra.uni next;
done:
  ret;
}
)";
constexpr unsigned kPoisonThreads = 1024;  // a step of 4096 bytes

class Buffer {
 public:
  ~Buffer() { release(); }
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  CUdeviceptr at_least(std::uint64_t bytes) {
    if (bytes > bytes_) {
      release();
      check(cuda_driver().mem_alloc(&pointer_, bytes), "allocating device memory");
      bytes_ = bytes;
    }
    return pointer_;
  }
  [[nodiscard]] CUdeviceptr get() const { return pointer_; }

 private:
  void release() {
    if (pointer_ != 0) cuda_driver().mem_free(pointer_);
    pointer_ = 0;
    bytes_ = 0;
  }
  CUdeviceptr pointer_ = 0;
  std::uint64_t bytes_ = 0;
};

class CudaExecutor final : public Executor {
 public:
  CudaExecutor() : cuda_(cuda_driver()) {
    CUdevice device = 0;
    check(cuda_.device_get(&device, 0), "opening the GPU");
    CUcontext context = nullptr;
    check(cuda_.device_primary_ctx_retain(&context, device), "creating a context");
    check(cuda_.ctx_set_current(context), "choosing the context");
    context_ = context;
    check(cuda_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "creating a stream");
    check(cuda_.device_get_attribute(&processors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "asking the GPU");
    check(cuda_.device_get_attribute(&shared_bytes_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
          "asking the GPU");
    check(cuda_.device_get_attribute(&cache_bytes_, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device), "asking the GPU");
    // A driver without its PTX compiler is no reason to stop: shared memory then is left as it comes.
    CUmodule module = nullptr;
    if (cuda_.module_load_data(&module, kPoisonShared) == CUDA_SUCCESS) {
      check(cuda_.module_get_function(&poison_, module, "heed_poison_shared"), "finding the poison kernel");
      check(cuda_.func_set_attribute(poison_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes_),
            "asking for shared memory");
    }
  }

  void load(int slot, const std::string& path, const LaunchPlan& plan) override {
    Slot& s = slots_.at(static_cast<std::size_t>(slot));
    drop(s);
    std::ifstream file(path, std::ios::binary);
    const std::string cubin((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (cubin.empty()) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("cannot read {}", path));
    check(cuda_.module_load_data(&s.module, cubin.data()), "loading the cubin");
    check(cuda_.module_get_function(&s.function, s.module, plan.entry.c_str()), "finding the kernel");
    check(cuda_.func_set_attribute(s.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   static_cast<int>(plan.shared_bytes)),
          "asking for shared memory");
    s.plan = plan;
  }

  void seal() override {}  // device code has no system calls to forbid

  void run(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
           const Launch& launch_order) override {
    const CUdeviceptr device = image_.at_least(bytes);
    // All in one stream: a synchronous copy from pageable memory may return before its last bytes have reached the
    // device.
    check(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    poison_shared_memory();
    launch(slot, bound(slot, launch_order, device));
    check(cuda_.stream_synchronize(stream_), "running the kernel");
    check(cuda_.memcpy_dtoh_async(result, device, bytes, stream_), "copying the image back");
    check(cuda_.stream_synchronize(stream_), "copying the image back");
  }

  void run_chain(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
                 const std::vector<Launch>& launches, Follow follow) override {
    const CUdeviceptr device = image_.at_least(bytes);
    check(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    std::vector<BoundLaunch> chain;
    for (const Launch& one : launches) chain.push_back(bound(slot, one, device));
    poison_shared_memory();
    if (follow == Follow::waited) {
      for (const BoundLaunch& one : chain) {
        launch(slot, one);
        poison_shared_memory();
        check(cuda_.stream_synchronize(stream_), "running the kernel");
      }
    } else {
      // As one graph: no time of the host lies between the launches.
      const CUgraphExec graph = captured(slot, chain, follow);
      const CUresult launched = cuda_.graph_launch(graph, stream_);
      const CUresult done = cuda_.stream_synchronize(stream_);
      cuda_.graph_exec_destroy(graph);
      check(launched, "launching the chain");
      check(done, "running the chain");
    }
    check(cuda_.memcpy_dtoh_async(result, device, bytes, stream_), "copying the image back");
    check(cuda_.stream_synchronize(stream_), "copying the image back");
  }

  void prepare(std::byte* image, std::uint64_t bytes, const std::vector<std::pair<int, std::vector<Launch>>>& launches,
               const std::vector<Range>& poisoned, Follow follow) override {
    const CUdeviceptr device = timed_.at_least(bytes);
    filler_.at_least(filler_bytes());
    timed_bytes_ = bytes;
    check(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the timed sets to the GPU");
    check(cuda_.stream_synchronize(stream_), "copying the timed sets to the GPU");
    poisoned_ = poisoned;
    for (const auto& [index, list] : launches) {
      Slot& s = slots_.at(static_cast<std::size_t>(index));
      s.timed.clear();
      for (const Launch& one : list) s.timed.push_back(bound(index, one, device));
      if (s.graph != nullptr) cuda_.graph_exec_destroy(s.graph);
      s.graph = nullptr;
      s.graph = captured(index, s.timed, follow);
    }
  }

  std::vector<double> time(int slot, int replays) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    for (const Range& range : poisoned_)
      check(cuda_.memset_d8_async(timed_.get() + range.offset, 0xff, range.bytes, stream_),
            "poisoning outputs and workspaces");
    check(cuda_.stream_synchronize(stream_), "poisoning outputs and workspaces");
    // Everything is queued at once behind one replay that is not timed: the stream never runs dry, so no host time lies
    // between an event and the graph after it.
    while (events_.size() < static_cast<std::size_t>(replays) + 1) {
      events_.push_back(nullptr);
      check(cuda_.event_create(&events_.back(), CU_EVENT_DEFAULT), "creating an event");
    }
    fill_cache();
    check(cuda_.graph_launch(s.graph, stream_), "replaying the graph");
    check(cuda_.event_record(events_[0], stream_), "starting the clock");
    for (int i = 1; i <= replays; ++i) {
      check(cuda_.graph_launch(s.graph, stream_), "replaying the graph");
      check(cuda_.event_record(events_[static_cast<std::size_t>(i)], stream_), "stopping the clock");
    }
    check(cuda_.stream_synchronize(stream_), "running the graph");
    std::vector<double> times;
    for (std::size_t i = 1; i <= static_cast<std::size_t>(replays); ++i) {
      float ms = 0;
      check(cuda_.event_elapsed_time(&ms, events_[i - 1], events_[i]), "reading the clock");
      times.push_back(static_cast<double>(ms) * 1000 / static_cast<double>(s.timed.size()));
    }
    return times;
  }

  void warm_up(int slot, double ms) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    const auto begin = Clock::now();
    do {
      check(cuda_.graph_launch(s.graph, stream_), "warming up");
      check(cuda_.stream_synchronize(stream_), "warming up");
    } while (microseconds_since(begin) < ms * 1000);
  }

  std::pair<double, double> time_eager(int slot, int calls) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) launch(slot, s.timed[static_cast<std::size_t>(i) % s.timed.size()]);
    check(cuda_.stream_synchronize(stream_), "running back to back");
    const double back_to_back = microseconds_since(begin) / calls;
    begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      launch(slot, s.timed[static_cast<std::size_t>(i) % s.timed.size()]);
      check(cuda_.stream_synchronize(stream_), "running one call");
    }
    return {back_to_back, microseconds_since(begin) / calls};
  }

  void fetch(std::byte* result, std::uint64_t bytes) override {
    check(cuda_.memcpy_dtoh_async(result, timed_.get(), std::min(bytes, timed_bytes_), stream_),
          "copying the timed sets back");
    check(cuda_.stream_synchronize(stream_), "copying the timed sets back");
  }

  CounterReading count(int slot, const std::byte* image, std::uint64_t bytes, const Launch& launch_order,
                       const std::string& library, const std::vector<MetricChoice>& choices) override {
    const CUdeviceptr device = image_.at_least(bytes);
    check(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    const BoundLaunch order = bound(slot, launch_order, device);
    const auto once = [&] {
      launch(slot, order);
      check(cuda_.stream_synchronize(stream_), "running the kernel");
    };
    once();  // code is loaded and caches are warm, as where the kernel is timed
    CounterReading reading = read_counters(library, choices, context_, once);
    int registers = 0;
    check(cuda_.func_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                   slots_.at(static_cast<std::size_t>(slot)).function),
          "asking for the registers of the kernel");
    reading.values["registers"] = registers;
    return reading;
  }

 private:
  /// A launch with its addresses, and the maps of its tensors where the entry takes them: encoded once, as a library
  /// that is called again with the same tensors would.
  struct BoundLaunch {
    std::array<std::uint32_t, 3> grid;
    ForwardParams params;
    TensorMaps maps;
  };
  struct Slot {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    LaunchPlan plan;
    CUgraphExec graph = nullptr;
    std::vector<BoundLaunch> timed;
  };

  // Shared memory keeps what earlier kernels left in it; a read of something never written must show. A block takes all
  // of a multiprocessor's shared memory, so that each multiprocessor gets one.
  void poison_shared_memory() {
    if (poison_ == nullptr) return;
    CUlaunchConfig config{};
    config.gridDimX = 2 * static_cast<unsigned>(processors_);
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = kPoisonThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(shared_bytes_);
    config.hStream = stream_;
    auto bytes = static_cast<unsigned>(shared_bytes_);
    void* arguments[] = {&bytes};
    check(cuda_.launch_kernel_ex(&config, poison_, arguments, nullptr), "poisoning shared memory");
  }

  void drop(Slot& s) {
    if (s.graph != nullptr) cuda_.graph_exec_destroy(s.graph);
    if (s.module != nullptr) cuda_.module_unload(s.module);
    s = Slot();
  }

  BoundLaunch bound(int slot, const Launch& order, CUdeviceptr device) {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    if (s.function == nullptr) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} is empty", slot));
    BoundLaunch launch{order.grid, resolve(order, device), {}};
    const TensorStrides& o = launch.params.o_strides;
    if (const auto& own = s.plan.o_strides; own && *own != o)
      throw DeviceFailure(DeviceFailure::Kind::launch,
                          fmt::format("O has strides ({}, {}, {}); the program was built for ({}, {}, {}) alone",
                                      o.batch, o.head, o.row, own->batch, own->head, own->row));
    if (s.plan.boxes) launch.maps = encode_tensor_maps(launch.params, *s.plan.boxes);
    return launch;
  }

  void launch(int slot, const BoundLaunch& one, Follow follow = Follow::in_stream) {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    CUlaunchConfig config{};
    config.gridDimX = one.grid[0];
    config.gridDimY = one.grid[1];
    config.gridDimZ = one.grid[2];
    config.blockDimX = s.plan.threads;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(s.plan.shared_bytes);
    config.hStream = stream_;
    std::array<CUlaunchAttribute, 2> attributes{};
    const auto add = [&]() -> CUlaunchAttribute& { return attributes.at(config.numAttrs++); };
    if (s.plan.cluster > 1) {
      CUlaunchAttribute& cluster = add();
      cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      cluster.value.clusterDim = {s.plan.cluster, 1, 1};
    }
    if (follow == Follow::dependent) {
      CUlaunchAttribute& dependent = add();
      dependent.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      dependent.value.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = attributes.data();
    // The driver copies the parameters before it returns; an entry without maps has one of them.
    ForwardParams params = one.params;
    TensorMaps maps = one.maps;
    void* arguments[] = {&params, &maps};
    check(cuda_.launch_kernel_ex(&config, s.function, arguments, nullptr), "launching the kernel");
  }

  // Fills the L2 with lines of nobody's, so that the replay behind it finds the cache as another operator leaves it. In
  // one that nothing else uses, inputs that a kernel marks to be evicted first stay for the next launch: b1h8l1024d64
  // with evict_first=inputs took 6.2 us, and 7.2 us where PyTorch worked between its readings (H200).
  void fill_cache() {
    if (filler_bytes() > 0) check(cuda_.memset_d8_async(filler_.get(), 0, filler_bytes(), stream_), "filling the L2");
  }
  [[nodiscard]] std::uint64_t filler_bytes() const { return 2 * static_cast<std::uint64_t>(cache_bytes_); }

  // One graph node a launch: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
  // Launched as dependents, nodes are joined by programmatic edges.
  CUgraphExec captured(int slot, const std::vector<BoundLaunch>& launches, Follow follow) {
    check(cuda_.stream_begin_capture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "starting a capture");
    try {
      for (const BoundLaunch& one : launches) launch(slot, one, follow);
    } catch (...) {
      CUgraph abandoned = nullptr;
      cuda_.stream_end_capture(stream_, &abandoned);
      throw;
    }
    CUgraph graph = nullptr;
    check(cuda_.stream_end_capture(stream_, &graph), "ending a capture");
    CUgraphExec executable = nullptr;
    const CUresult result = cuda_.graph_instantiate(&executable, graph, 0);
    cuda_.graph_destroy(graph);
    check(result, "instantiating the graph");
    // Not uploaded: its first launch does that. A graph that is uploaded and then not the next to be launched makes
    // every later node of the process 0.18 us longer (H200, driver 13.0).
    return executable;
  }

  const CudaDriver& cuda_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  int processors_ = 0;
  int shared_bytes_ = 0;
  int cache_bytes_ = 0;
  CUfunction poison_ = nullptr;
  std::vector<CUevent> events_;
  std::array<Slot, kSlots> slots_;
  Buffer image_;
  Buffer timed_;
  Buffer filler_;
  std::uint64_t timed_bytes_ = 0;
  std::vector<Range> poisoned_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor() {
  return std::make_unique<CudaExecutor>();
}

}  // namespace heed::worker

#else

namespace heed::worker {

std::unique_ptr<Executor> make_cuda_executor() {
  throw Error(ErrorCode::no_device, "this build has no CUDA support");
}

}  // namespace heed::worker

#endif
