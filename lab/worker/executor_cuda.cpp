#include "worker/executor.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "device/cuda_driver.hpp"
#include "launch/gpu_program.hpp"
#include "launch/tensor_map.hpp"
#include "worker/busy_clock.hpp"
#include "worker/cuda_kernels.hpp"
#include "worker/cuda_memory.hpp"
#include "worker/stopwatch.hpp"

namespace heed::worker {
namespace {

constexpr std::uint64_t kWord = 16;  // images end at a multiple of this: the pattern behind them begins there
constexpr std::uint64_t kOwnBytes = 1 << 20;
constexpr std::uint64_t kFactors = 256;  // where they begin in the worker's own memory

class CudaExecutor final : public Executor {
 public:
  CudaExecutor() : cuda_(cuda_driver()) {
    CUdevice device = 0;
    check_cuda(cuda_.device_get(&device, 0), "opening the GPU");
    CUcontext context = nullptr;
    check_cuda(cuda_.device_primary_ctx_retain(&context, device), "creating a context");
    check_cuda(cuda_.ctx_set_current(context), "choosing the context");
    context_ = context;
    check_cuda(cuda_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "creating a stream");
    check_cuda(cuda_.device_get_attribute(&cache_bytes_, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device), "asking the GPU");
    kernels_ = std::make_unique<CudaKernels>(device, stream_);
    busy_.open(stream_);
  }

  void load(int slot, const std::string& path, const LaunchPlan& plan) override {
    Slot& s = slots_.at(static_cast<std::size_t>(slot));
    drop(s);
    std::ifstream file(path, std::ios::binary);
    const std::string cubin((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (cubin.empty()) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("cannot read {}", path));
    const char* step = "";
    const CUresult loaded = s.program.load(cubin.data(), plan, step);
    check_cuda(loaded, step);
    int local_bytes = 0;
    check_cuda(cuda_.func_get_attribute(&local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, s.program.function()),
               "asking for the local memory of the kernel");
    s.poison_local = kernels_->poison_local(local_bytes);
    s.plan = plan;
  }

  void seal() override {}  // device code has no system calls to forbid

  void run(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
           const Launch& launch_order) override {
    const CUdeviceptr device = image_.at_least(bytes);
    busy_.begin();
    // All in one stream: a synchronous copy from pageable memory may return before its last bytes have reached the
    // device.
    check_cuda(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    wipe(slots_.at(static_cast<std::size_t>(slot)));
    launch(slot, bound(slot, launch_order, device));
    check_cuda(cuda_.stream_synchronize(stream_), "running the kernel");
    check_cuda(cuda_.memcpy_dtoh_async(result, device, bytes, stream_), "copying the image back");
    busy_.end("copying the image back");
  }

  void run_chain(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
                 const std::vector<Launch>& launches, Follow follow) override {
    const CUdeviceptr device = image_.at_least(bytes);
    busy_.begin();
    check_cuda(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    std::vector<BoundLaunch> chain;
    for (const Launch& one : launches) chain.push_back(bound(slot, one, device));
    wipe(slots_.at(static_cast<std::size_t>(slot)));
    if (follow == Follow::waited) {
      for (const BoundLaunch& one : chain) {
        launch(slot, one);
        wipe(slots_.at(static_cast<std::size_t>(slot)));
        check_cuda(cuda_.stream_synchronize(stream_), "running the kernel");
      }
    } else {
      // As one graph: no time of the host lies between the launches.
      const CUgraphExec graph = captured(slot, chain, follow);
      const CUresult launched = cuda_.graph_launch(graph, stream_);
      const CUresult done = cuda_.stream_synchronize(stream_);
      cuda_.graph_exec_destroy(graph);
      check_cuda(launched, "launching the chain");
      check_cuda(done, "running the chain");
    }
    check_cuda(cuda_.memcpy_dtoh_async(result, device, bytes, stream_), "copying the image back");
    busy_.end("copying the image back");
  }

  void prepare(std::byte* image, std::uint64_t bytes, const std::vector<std::pair<int, std::vector<Launch>>>& launches,
               const std::vector<Range>& poisoned, const std::vector<ChannelRange>& keys, Follow follow) override {
    const BusyClock::HostSpan span(busy_);
    image_.release();  // what only the gate needs would be memory that nobody looks at
    const CUdeviceptr device = timed_.at_least(bytes);
    filler_.at_least(filler_bytes());
    own_.at_least(kOwnBytes);
    timed_bytes_ = (bytes + kWord - 1) / kWord * kWord;
    kernels_->fill(device + timed_bytes_, timed_.bytes() - timed_bytes_);
    kernels_->fill(own_.get(), own_.bytes());
    kernels_->fill(filler_.get(), filler_.bytes());
    check_cuda(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the timed sets to the GPU");
    check_cuda(cuda_.stream_synchronize(stream_), "copying the timed sets to the GPU");
    poisoned_ = poisoned;
    keys_ = keys;
    follow_ = follow;
    for (const auto& [index, list] : launches) {
      Slot& s = slots_.at(static_cast<std::size_t>(index));
      s.timed.clear();
      for (const Launch& one : list) s.timed.push_back(bound(index, one, device));
      if (s.graph != nullptr) cuda_.graph_exec_destroy(s.graph);
      s.graph = nullptr;
      s.graph = captured(index, s.timed, follow);
    }
  }

  std::vector<double> time(int slot, int replays, const std::vector<ChannelFactors>& factors) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    begin_block(slot, factors);
    // Everything is queued at once behind one replay that is not timed: the stream never runs dry, so no host time lies
    // between an event and the graph after it.
    while (events_.size() < 2 * static_cast<std::size_t>(replays)) {
      events_.push_back(nullptr);
      check_cuda(cuda_.event_create(&events_.back(), CU_EVENT_DEFAULT), "creating an event");
    }
    lead(s);
    for (std::size_t i = 0; i < static_cast<std::size_t>(replays); ++i) {
      between_replays(s, i + 1);
      check_cuda(cuda_.event_record(events_[2 * i], stream_), "starting the clock");
      check_cuda(cuda_.graph_launch(s.graph, stream_), "replaying the graph");
      check_cuda(cuda_.event_record(events_[2 * i + 1], stream_), "stopping the clock");
    }
    check_cuda(cuda_.stream_synchronize(stream_), "running the graph");
    std::vector<double> times;
    for (std::size_t i = 0; i < static_cast<std::size_t>(replays); ++i)
      times.push_back(busy_.us_between(events_[2 * i], events_[2 * i + 1]) / static_cast<double>(s.timed.size()));
    if (replays > 0) busy_.add(events_[0], events_[2 * static_cast<std::size_t>(replays) - 1]);
    return times;
  }

  Stopped spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    const CUgraphExec prefix = captured(
        slot, {s.timed.begin(), s.timed.begin() + std::min<std::ptrdiff_t>(launches, std::ssize(s.timed))}, follow_);
    const BusyClock::HostSpan span(busy_);
    try {
      begin_block(slot, factors);
      lead(s);
      for (int i = 0; i < replays; ++i) {
        between_replays(s, static_cast<std::size_t>(i) + 1);
        check_cuda(cuda_.graph_launch(s.graph, stream_), "replaying the graph");
      }
      between_replays(s, static_cast<std::size_t>(replays) + 1);
      check_cuda(cuda_.graph_launch(prefix, stream_), "replaying a part of the graph");
      check_cuda(cuda_.stream_synchronize(stream_), "running a part of the graph");
    } catch (...) {
      cuda_.graph_exec_destroy(prefix);
      throw;
    }
    cuda_.graph_exec_destroy(prefix);
    return {.complete = launches, .begun = launches, .wrote_out_of_bounds = own_memory_was_changed()};
  }

  void warm_up(int slot, double ms) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    const BusyClock::HostSpan span(busy_);
    const auto begin = Clock::now();
    do {
      check_cuda(cuda_.graph_launch(s.graph, stream_), "warming up");
      check_cuda(cuda_.stream_synchronize(stream_), "warming up");
    } while (microseconds_since(begin) < ms * 1000);
  }

  std::pair<double, double> time_eager(int slot, int calls) override {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    const BusyClock::HostSpan span(busy_);
    poison_outputs();
    check_cuda(cuda_.stream_synchronize(stream_), "poisoning outputs and workspaces");
    auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) launch(slot, s.timed[static_cast<std::size_t>(i) % s.timed.size()]);
    check_cuda(cuda_.stream_synchronize(stream_), "running back to back");
    const double back_to_back = microseconds_since(begin) / calls;
    begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      launch(slot, s.timed[static_cast<std::size_t>(i) % s.timed.size()]);
      check_cuda(cuda_.stream_synchronize(stream_), "running one call");
    }
    return {back_to_back, microseconds_since(begin) / calls};
  }

  void fetch(std::byte* result, const std::vector<Range>& ranges) override {
    const BusyClock::HostSpan span(busy_);
    for (const Range& range : ranges)
      check_cuda(cuda_.memcpy_dtoh_async(result + range.offset, timed_.get() + range.offset, range.bytes, stream_),
                 "copying the timed sets back");
    check_cuda(cuda_.stream_synchronize(stream_), "copying the timed sets back");
  }

  CounterReading count(int slot, const std::byte* image, std::uint64_t bytes, const Launch& launch_order,
                       const std::string& library, const std::vector<MetricChoice>& choices) override {
    const CUdeviceptr device = image_.at_least(bytes);
    check_cuda(cuda_.memcpy_htod_async(device, image, bytes, stream_), "copying the image to the GPU");
    const BoundLaunch order = bound(slot, launch_order, device);
    const auto once = [&] {
      launch(slot, order);
      check_cuda(cuda_.stream_synchronize(stream_), "running the kernel");
    };
    once();  // code is loaded and caches are warm, as where the kernel is timed
    CounterReading reading = read_counters(library, choices, context_, once);
    int registers = 0;
    check_cuda(cuda_.func_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                        slots_.at(static_cast<std::size_t>(slot)).program.function()),
               "asking for the registers of the kernel");
    reading.values["registers"] = registers;
    return reading;
  }

  void record_activities(const std::string& library) override { busy_.collect_records(library); }

  std::optional<DeviceBusy> take_busy() override { return busy_.take(); }

 private:
  /// A launch with its addresses, and the maps of its tensors where the entry takes them: encoded once, as a library
  /// that is called again with the same tensors would.
  struct BoundLaunch {
    std::array<std::uint32_t, 3> grid;
    FeatureParams params;
    TensorMaps maps;
  };
  struct Slot {
    GpuProgram program;
    CUfunction poison_local = nullptr;  // of a frame like the kernel's; null where that has none
    LaunchPlan plan;
    CUgraphExec graph = nullptr;
    std::vector<BoundLaunch> timed;
  };

  void drop(Slot& s) {
    if (s.graph != nullptr) cuda_.graph_exec_destroy(s.graph);
    s = Slot();
  }

  BoundLaunch bound(int slot, const Launch& order, CUdeviceptr device) {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    if (!s.program.is_loaded()) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} is empty", slot));
    BoundLaunch launch{order.grid, resolve(order, device), {}};
    const TensorStrides& o = launch.params.o_strides;
    if (const auto& own = s.plan.o_strides; own && *own != o)
      throw DeviceFailure(DeviceFailure::Kind::launch,
                          fmt::format("O has strides ({}, {}, {}); the program was built for ({}, {}, {}) alone",
                                      o.batch, o.head, o.row, own->batch, own->head, own->row));
    if (s.plan.tensor_maps) launch.maps = encode_tensor_maps(launch.params, order.with_boxes(*s.plan.tensor_maps));
    return launch;
  }

  void launch(int slot, const BoundLaunch& one, Follow follow = Follow::in_stream) {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    check_cuda(s.program.launch(one.grid, one.params, one.maps, stream_, follow == Follow::dependent),
               "launching the kernel");
  }

  void poison_outputs() {
    for (const Range& range : poisoned_)
      check_cuda(cuda_.memset_d8_async(timed_.get() + range.offset, 0xff, range.bytes, stream_),
                 "poisoning outputs and workspaces");
  }

  // Outputs and workspaces are poisoned, the factors of all replays are on the device.
  void begin_block(int slot, const std::vector<ChannelFactors>& factors) {
    if (slots_.at(static_cast<std::size_t>(slot)).graph == nullptr)
      throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} has no timed launches", slot));
    poison_outputs();
    std::vector<float> all;
    if (!keys_.empty())
      for (const ChannelFactors& one : factors) all.insert(all.end(), one.begin(), one.end());
    dim_ = keys_.empty() ? 0 : static_cast<std::size_t>(keys_.front().dim);
    factor_bytes_ = all.size() * sizeof(float);
    if (factor_bytes_ > own_.bytes() - kFactors || all.size() < dim_ * factors.size())
      throw DeviceFailure(DeviceFailure::Kind::launch, "the factors of a block do not fit");
    kernels_->fill(own_.get(), own_.bytes());
    if (!all.empty())
      check_cuda(cuda_.memcpy_htod_async(own_.get() + kFactors, all.data(), factor_bytes_, stream_),
                 "copying factors to the GPU");
    check_cuda(cuda_.stream_synchronize(stream_), "poisoning outputs and workspaces");
  }

  void lead(const Slot& s) {
    between_replays(s, 0);
    fill_cache();
    check_cuda(cuda_.graph_launch(s.graph, stream_), "replaying the graph");
  }

  // Other keys, and nothing left where the next replay could look for it. Where the sets are to lie in memory, keys
  // that were just multiplied are driven out of the L2 again, by reading: lines that wait to be written back would take
  // from the bandwidth of the launches that are timed.
  void between_replays(const Slot& s, std::size_t replay) {
    for (const ChannelRange& keys : keys_)
      kernels_->multiply(timed_.get(), keys, own_.get() + kFactors + replay * dim_ * sizeof(float));
    wipe(s);
    if (replay > 0 && timed_bytes_ > static_cast<std::uint64_t>(cache_bytes_))
      kernels_->verify(filler_.get(), filler_bytes(), own_.get());
  }

  void wipe(const Slot& s) {
    kernels_->poison_shared_memory();
    kernels_->poison_local_memory(s.poison_local);
    kernels_->poison_registers();  // last: the others use some
  }

  // Memory that is the worker's and part of no image, where a candidate could keep what it likes.
  bool own_memory_was_changed() {
    kernels_->verify(timed_.get() + timed_bytes_, timed_.bytes() - timed_bytes_, own_.get());
    kernels_->verify(filler_.get(), filler_.bytes(), own_.get());
    // The first word has its pattern as long as `verify` has counted nothing there.
    std::vector<unsigned> own(own_.bytes() / sizeof(unsigned));
    check_cuda(cuda_.memcpy_dtoh_async(own.data(), own_.get(), own_.bytes(), stream_), "copying the worker's memory");
    check_cuda(cuda_.stream_synchronize(stream_), "copying the worker's memory");
    return !CudaKernels::is_pattern(own, 0, kFactors / sizeof(unsigned)) ||
           !CudaKernels::is_pattern(own, (kFactors + factor_bytes_) / sizeof(unsigned), own.size());
  }

  // Fills the L2 with lines of nobody's, so that the replay behind it finds the cache as another operator leaves it. In
  // one that nothing else uses, inputs that a kernel marks to be evicted first stay for the next launch: b1h8l1024d64
  // with evict_first=q_kv took 6.2 us, and 7.2 us where PyTorch worked between its readings (H200).
  void fill_cache() { kernels_->fill(filler_.get(), filler_bytes()); }
  [[nodiscard]] std::uint64_t filler_bytes() const { return 2 * static_cast<std::uint64_t>(cache_bytes_); }

  // One graph node a launch: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
  // Launched as dependents, nodes are joined by programmatic edges.
  CUgraphExec captured(int slot, const std::vector<BoundLaunch>& launches, Follow follow) {
    check_cuda(cuda_.stream_begin_capture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "starting a capture");
    try {
      for (const BoundLaunch& one : launches) launch(slot, one, follow);
    } catch (...) {
      CUgraph abandoned = nullptr;
      cuda_.stream_end_capture(stream_, &abandoned);
      throw;
    }
    CUgraph graph = nullptr;
    check_cuda(cuda_.stream_end_capture(stream_, &graph), "ending a capture");
    CUgraphExec executable = nullptr;
    const CUresult result = cuda_.graph_instantiate(&executable, graph, 0);
    cuda_.graph_destroy(graph);
    check_cuda(result, "instantiating the graph");
    // Not uploaded: its first launch does that. A graph that is uploaded and then not the next to be launched makes
    // every later node of the process 0.18 us longer (H200, driver 13.0).
    return executable;
  }

  const CudaDriver& cuda_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  int cache_bytes_ = 0;
  std::unique_ptr<CudaKernels> kernels_;
  std::vector<CUevent> events_;
  std::array<Slot, kSlots> slots_;
  DeviceBuffer image_;
  DeviceBuffer timed_;
  DeviceBuffer filler_;
  DeviceBuffer own_;  // a count of words found changed, then at kFactors the factors; the rest is pattern
  std::uint64_t timed_bytes_ = 0;
  std::size_t dim_ = 0;
  std::uint64_t factor_bytes_ = 0;
  std::vector<Range> poisoned_;
  std::vector<ChannelRange> keys_;
  Follow follow_ = Follow::in_stream;
  BusyClock busy_{cuda_};
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
