// Lanes of a GPU: the caller's stream and three of the pool's own, with events between them.
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
#include "offload/lanes.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <fstream>
#include <mutex>
#include <vector>

#include "api/precision.hpp"
#include "device/cuda_driver.hpp"
#include "offload/cuda_recording.hpp"
#include "offload/host_memory.hpp"

namespace heed::offload {
namespace {

// A context, current while this lives, in a thread that says that it knows of streams that are captured: memory may be
// taken and given back meanwhile.
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html, cuThreadExchangeStreamCaptureMode
class InContext {
 public:
  explicit InContext(CUcontext context) {
    cuda_driver().thread_exchange_stream_capture_mode(&mode_);
    cuda_driver().ctx_get_current(&before_);
    if (before_ != context) cuda_driver().ctx_set_current(context);
    is_changed_ = before_ != context;
  }
  ~InContext() {
    if (is_changed_) cuda_driver().ctx_set_current(before_);
    cuda_driver().thread_exchange_stream_capture_mode(&mode_);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  CUcontext before_ = nullptr;
  bool is_changed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Events, used again when no mark has them.
class Events {
 public:
  Events(CUcontext context, unsigned flags) : context_(context), flags_(flags) {}
  ~Events() {
    const InContext in(context_);
    for (CUevent event : free_) cuda_driver().event_destroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  CUevent take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        CUevent event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    CUevent event = nullptr;
    check_cuda(cuda_driver().event_create(&event, flags_), "making an event");
    return event;
  }
  void give_back(CUevent event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  CUcontext context_;
  unsigned flags_;
  std::mutex mutex_;
  std::vector<CUevent> free_;
};

struct CudaMark final : Mark {
  CudaMark(std::shared_ptr<Events> from, CUevent taken) : events(std::move(from)), event(taken) {}
  ~CudaMark() override { events->give_back(event); }
  std::shared_ptr<Events> events;
  CUevent event;
};

CUevent event_of(const MarkPointer& mark) {
  return static_cast<const CudaMark&>(*mark).event;
}

// Called by a thread of the driver, which may call no function of CUDA.
void call_function(void* argument) {
  const std::unique_ptr<std::function<void()>> function(static_cast<std::function<void()>*>(argument));
  (*function)();
}
// The same of a graph, which keeps the function for its next launch.
void call_again(void* argument) {
  (*static_cast<std::function<void()>*>(argument))();
}

int node_of(CUdevice device) {
  char bus[32] = {};
  if (cuda_driver().device_get_pci_bus_id(bus, sizeof bus, device) != CUDA_SUCCESS) return -1;
  std::string name = bus;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

class CudaLanes final : public Lanes {
 public:
  CudaLanes(int ordinal, const api::Options& options, bool quantises) : cuda_(cuda_driver()) {
    api::Problem problem;
    problem.device = DeviceKind::cuda;
    problem.ordinal = ordinal;
    const DeviceFacts facts = api::facts_of_device(problem);
    check_cuda(cuda_.device_get(&device_, ordinal), "opening the GPU");
    CUcontext current = nullptr;
    check_cuda(cuda_.ctx_get_current(&current), "asking for the current context");
    CUdevice of_current = -1;
    if (current != nullptr) check_cuda(cuda_.ctx_get_device(&of_current), "asking for the current GPU");
    context_ = current;
    if (current == nullptr || of_current != device_)
      check_cuda(cuda_.device_primary_ctx_retain(&context_, device_), "taking the GPU's context");
    const InContext in(context_);
    int can_share = 0;
    check_cuda(
        cuda_.device_get_attribute(&can_share, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device_),
        "asking what the GPU can do");
    if (can_share == 0)
      throw Error(ErrorCode::unsupported,
                  "this GPU cannot read pinned memory by its address on the host; keep keys and "
                  "values on the GPU");
    name_ = facts.name;
    node_ = node_of(device_);
    copies_ = api::make_gpu_copies(problem, api::choose_copies(options, facts));
    merges_ = api::make_gpu_merges(problem, api::choose_merge(options, facts));
    if (quantises) quantiser_ = api::make_gpu_quantiser(problem, api::choose_quantiser(options, facts), nullptr);
    events_ = std::make_shared<Events>(context_, CU_EVENT_DISABLE_TIMING);
    timed_events_ = std::make_shared<Events>(context_, CU_EVENT_DEFAULT);
    for (CUstream* stream : {&in_, &out_, &host_})
      check_cuda(cuda_.stream_create(stream, CU_STREAM_NON_BLOCKING), "making a stream");
  }
  ~CudaLanes() override {
    const InContext in(context_);
    for (CUstream stream : {in_, out_, host_})
      if (stream != nullptr) cuda_.stream_destroy(stream);
  }

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::cuda; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] int node() const override { return node_; }
  [[nodiscard]] Traffic traffic() const override {
    Traffic all = traffic_;
    all.seconds_host = static_cast<double>(*host_ns_) * 1e-9;
    return all;
  }

  [[nodiscard]] RecordingPointer use(void* given) override {
    auto* const stream = static_cast<CUstream>(given);
    CUcontext current = nullptr;
    check_cuda(cuda_.ctx_get_current(&current), "asking for the current context");
    if (current == nullptr)
      check_cuda(cuda_.ctx_set_current(context_), "choosing the context");
    else if (current != context_)
      throw Error(ErrorCode::usage,
                  "the current context is not the one that the pool was made in; make that one current, or make a pool "
                  "in each");
    const Capture capture = capture_of(stream);
    if (capture.graph == nullptr) {
      compute_ = stream;
      return nullptr;
    }
    if (last_recording_ == nullptr || last_recording_->id() != capture.id || !last_recording_->is_alive()) {
      finish_all();  // a graph waits for nothing that was queued before its capture
      last_recording_ = std::make_shared<CudaRecording>(capture);
    }
    last_recording_->begin(stream, capture);
    recording_ = last_recording_;
    return recording_;
  }
  void stop_recording() noexcept override {
    if (recording_ == nullptr) return;
    recording_->end();
    recording_ = nullptr;
  }

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    const InContext in(context_);
    CUdeviceptr memory = 0;
    const CUresult result = cuda_.mem_alloc(&memory, std::max<std::size_t>(bytes, 1));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      throw OutOfRoom(ErrorCode::unsupported,
                      fmt::format("{} has no {} of memory left; give the pool fewer device_pages or shorter chunks, or "
                                  "call it with fewer rows",
                                  name_, readable(static_cast<double>(bytes))),
                      std::to_string(bytes));
    check_cuda(result, "taking memory of the GPU");
    return reinterpret_cast<void*>(memory);
  }
  void release(void* memory) noexcept override {
    const InContext in(context_);
    cuda_.mem_free(reinterpret_cast<CUdeviceptr>(memory));
  }
  void pin(void* memory, std::size_t bytes) override {
    const InContext in(context_);
    const CUresult result =
        cuda_.mem_host_register(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS) return;
    throw OutOfRoom(ErrorCode::unsupported,
                    fmt::format("the driver refused to pin {} of memory ({}); {}", readable(static_cast<double>(bytes)),
                                cuda_error_text(result), advice_on_pinning()),
                    std::to_string(bytes));
  }
  void unpin(void* memory) noexcept override {
    const InContext in(context_);
    cuda_.mem_host_unregister(memory);
  }

  void copy_in(Lane lane, void* to, const void* from, std::size_t bytes) override {
    on(lane, [&](CUstream stream) {
      check_cuda(cuda_.memcpy_htod_async(reinterpret_cast<CUdeviceptr>(to), from, bytes, stream), "copying to the GPU");
    });
    if (lane == Lane::in && recording_ == nullptr) traffic_.bytes_in += static_cast<double>(bytes);
  }
  void copy_rows(Lane lane, std::span<const padding::RowCopy> copies) override {
    on(lane, [&](CUstream stream) { copies_->run(copies, stream); });
    if (lane == Lane::out)
      for (const padding::RowCopy& c : copies)
        traffic_.bytes_out += static_cast<double>(c.batch) * c.heads * c.rows * c.to_dim * c.element_bytes;
  }
  void quantise(const quantise::Pass& pass) override {
    on(Lane::compute, [&](CUstream stream) { (void)quantiser_->quantise_by_given_factors(pass, stream); });
  }
  void merge(const merge::Merge& merge) override {
    on(Lane::compute, [&](CUstream stream) { merges_->run(merge, stream); });
  }
  void prepare(const std::shared_ptr<const api::Plan>& plan, void* workspace) override {
    on(Lane::compute, [&](CUstream stream) { plan->prepare(workspace, stream); });
  }
  void run(const std::shared_ptr<const api::Plan>& plan, const heed_tensors& tensors, void* workspace) override {
    on(Lane::compute, [&](CUstream stream) { (void)plan->run(&tensors, 1, workspace, stream, 0); });
  }
  void call(std::function<void()> given) override {
    std::function<void()> function = [given = std::move(given), spent = host_ns_] {
      const auto begin = std::chrono::steady_clock::now();
      given();
      *spent += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    };
    if (recording_ != nullptr) {
      std::function<void()>* const kept = recording_->keep(std::move(function));
      on(Lane::host, [&](CUstream stream) {
        check_cuda(cuda_.launch_host_func(stream, &call_again, kept), "recording a function");
      });
      return;
    }
    auto kept = std::make_unique<std::function<void()>>(std::move(function));
    check_cuda(cuda_.launch_host_func(host_, &call_function, kept.get()), "queueing a function");
    (void)kept.release();  // call_function ends it
  }
  [[nodiscard]] MarkPointer record(Lane lane) override {
    if (recording_ != nullptr) return recording_->record(lane);
    auto mark = std::make_shared<const CudaMark>(events_, events_->take());
    check_cuda(cuda_.event_record(mark->event, stream(lane)), "recording an event");
    if (lane == Lane::compute) last_compute_ = mark;
    if (lane == Lane::compute) is_compute_marked_ = true;
    return mark;
  }
  void wait(Lane lane, const MarkPointer& mark) override {
    if (mark == nullptr) return;
    if (recording_ != nullptr) return recording_->wait(lane, mark);
    check_cuda(cuda_.stream_wait_event(stream(lane), event_of(mark), 0), "waiting for an event");
  }

  [[nodiscard]] MarkPointer record_time(Lane lane) override {
    auto mark = std::make_shared<const CudaMark>(timed_events_, timed_events_->take());
    check_cuda(cuda_.event_record(mark->event, stream(lane)), "recording an event");
    return mark;
  }

  [[nodiscard]] std::optional<double> seconds_between(const MarkPointer& begin, const MarkPointer& end) const override {
    float ms = 0;
    if (cuda_.event_elapsed_time(&ms, event_of(begin), event_of(end)) != CUDA_SUCCESS) return std::nullopt;
    return ms * 1e-3;
  }
  [[nodiscard]] bool is_done(const MarkPointer& mark) const override {
    return mark == nullptr || cuda_.event_query(event_of(mark)) == CUDA_SUCCESS;
  }
  void finish(const MarkPointer& mark) override {
    const InContext in(context_);
    if (mark != nullptr) check_cuda(cuda_.event_synchronize(event_of(mark)), "waiting for the GPU");
  }
  // The caller's stream may be gone between calls: what was queued on it is behind the last mark.
  void finish_all() override {
    const InContext in(context_);
    if (!is_compute_marked_) (void)record(Lane::compute);
    finish(last_compute_);
    for (CUstream stream : {in_, out_, host_}) check_cuda(cuda_.stream_synchronize(stream), "waiting for the GPU");
  }

 private:
  [[nodiscard]] CUstream stream(Lane lane) const {
    switch (lane) {
      case Lane::compute:
        return compute_;
      case Lane::in:
        return in_;
      case Lane::out:
        return out_;
      case Lane::host:
        break;
    }
    return host_;
  }
  // What is queued on a lane.
  template <typename Function>
  void on(Lane lane, const Function& function) {
    if (recording_ != nullptr) {
      function(recording_->enter(lane));
      recording_->leave(lane);
      return;
    }
    function(stream(lane));
    if (lane == Lane::compute) is_compute_marked_ = false;
  }

  const CudaDriver& cuda_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  int node_ = -1;
  std::unique_ptr<api::Copies> copies_;
  std::unique_ptr<api::Merges> merges_;
  std::unique_ptr<api::Quantiser> quantiser_;  ///< of pages of 8 bits
  std::shared_ptr<Events> events_;
  std::shared_ptr<Events> timed_events_;
  CUstream compute_ = nullptr;
  CUstream in_ = nullptr;
  CUstream out_ = nullptr;
  CUstream host_ = nullptr;
  MarkPointer last_compute_;
  bool is_compute_marked_ = true;
  Traffic traffic_;
  std::shared_ptr<std::atomic<std::int64_t>> host_ns_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<CudaRecording> recording_;       ///< null: what is queued is done
  std::shared_ptr<CudaRecording> last_recording_;  ///< of the last capture, for its next call
};

}  // namespace

std::unique_ptr<Lanes> make_cuda_lanes(int ordinal, const api::Options& options, bool quantises) {
  return std::make_unique<CudaLanes>(ordinal, options, quantises);
}

}  // namespace heed::offload

#else

namespace heed::offload {

std::unique_ptr<Lanes> make_cuda_lanes(int, const api::Options&, bool) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}

}  // namespace heed::offload

#endif
