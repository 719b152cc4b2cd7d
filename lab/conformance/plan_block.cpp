#include "conformance/plan_block.hpp"

#include "conformance/status.hpp"

namespace heed::conformance {
namespace {

constexpr std::int64_t kL2Multiple = 2;  // what is written to fill it: the worker's own

// The plan with everything that a replay reads and writes.
struct Timed {
  Timed(const measure::TimedSets& sets, const DeviceFacts& device, const Program& program)
      : timing(sets.plan()),
        plan(problem_of(sets.scene(0), device.kind), program),
        stream((enter_device(device.kind), device.kind)),
        image(device.kind, sets.image_bytes()),
        workspace(device.kind, plan.info().workspace_bytes),
        workspace_address(plan.info().workspace_bytes == 0 ? nullptr : workspace.address()) {
    std::vector<std::byte> bytes(sets.image_bytes());
    for (int set = 0; set < timing.sets; ++set) {
      const std::vector<std::byte>& one = sets.scene(set).image();
      std::copy(one.begin(), one.end(), bytes.begin() + static_cast<std::ptrdiff_t>(sets.offset_of(set)));
    }
    image.put(bytes, stream);
    stream.wait();
    const auto of_set = [&](int set) { return tensors_of(sets.scene(set), image.address() + sets.offset_of(set)); };
    for (int launch = 0; launch < timing.launches; ++launch) {
      const measure::TimedSets::Sources from = sets.sources(launch);
      heed_tensors t = of_set(from.q);
      t.q = static_cast<const std::byte*>(t.q) + from.q_bytes;
      t.k = of_set(from.k).k;
      t.v = of_set(from.v).v;
      t.o = image.address() + sets.output_offset(from.output);
      tensors.push_back(t);
    }
    expect_ok(heed_plan_prepare(plan.get(), workspace_address, stream.get()));
    stream.wait();
  }

  /// All runs of a replay. @return microseconds of all of them, on a CPU
  double run_all() {
    double us = 0;
    expect_ok(heed_plan_run_many(plan.get(), tensors.data(), tensors.size(), workspace_address, stream.get(), 0, &us));
    return us;
  }

  measure::TimingPlan timing;
  PlanHandle plan;
  Stream stream;
  Memory image;
  Memory workspace;
  void* workspace_address;
  std::vector<heed_tensors> tensors;
};

#ifdef HEED_WITH_CUDA

class Replays {
 public:
  Replays(std::shared_ptr<Timed> timed, const DeviceFacts& device)
      : cuda_(cuda_driver()),
        timed_(std::move(timed)),
        stream_(static_cast<CUstream>(timed_->stream.get())),
        filler_(device.kind, static_cast<std::size_t>(kL2Multiple * device.cache_bytes)),
        events_(2 * static_cast<std::size_t>(timed_->timing.replays)) {
    for (CUevent& event : events_) check(cuda_.event_create(&event, CU_EVENT_DEFAULT), "creating an event");
    check(cuda_.stream_begin_capture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "starting a capture");
    timed_->run_all();
    CUgraph graph = nullptr;
    check(cuda_.stream_end_capture(stream_, &graph), "ending a capture");
    const CUresult result = cuda_.graph_instantiate(&graph_, graph, 0);
    cuda_.graph_destroy(graph);
    check(result, "instantiating the graph");
  }
  ~Replays() {
    if (graph_ != nullptr) cuda_.graph_exec_destroy(graph_);
  }
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  double us_of_a_run() {
    const auto filler = reinterpret_cast<CUdeviceptr>(filler_.address());
    for (int i = 0; i < kWarmUpReplays; ++i) replay();
    check(cuda_.memset_d32_async(filler, 0, filler_.bytes() / 4, stream_), "filling the L2");
    replay();
    for (std::size_t i = 0; i < events_.size(); i += 2) {
      check(cuda_.event_record(events_[i], stream_), "starting the clock");
      replay();
      check(cuda_.event_record(events_[i + 1], stream_), "stopping the clock");
    }
    timed_->stream.wait();
    std::vector<double> us;
    for (std::size_t i = 0; i < events_.size(); i += 2) {
      float ms = 0;
      check(cuda_.event_elapsed_time(&ms, events_[i], events_[i + 1]), "reading the clock");
      us.push_back(static_cast<double>(ms) * 1000 / timed_->timing.launches);
    }
    return measure::median(us);
  }

 private:
  static constexpr int kWarmUpReplays = 5;  // the other side has just used the device

  void replay() { check(cuda_.graph_launch(graph_, stream_), "replaying the graph"); }

  const CudaDriver& cuda_;
  std::shared_ptr<Timed> timed_;
  CUstream stream_;
  Memory filler_;
  std::vector<CUevent> events_;
  CUgraphExec graph_ = nullptr;
};

measure::Block block_on_gpu(std::shared_ptr<Timed> timed, const DeviceFacts& device) {
  const auto replays = std::make_shared<Replays>(std::move(timed), device);
  return [replays] { return measure::Reading(replays->us_of_a_run()); };
}

#else

measure::Block block_on_gpu(const std::shared_ptr<Timed>&, const DeviceFacts&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this build has no CUDA support", "cuda");
}

#endif

}  // namespace

measure::Block plan_block(const measure::TimedSets& sets, const DeviceFacts& device, const Program& program) {
  const auto timed = std::make_shared<Timed>(sets, device, program);
  if (device.kind == DeviceKind::cuda) return block_on_gpu(timed, device);
  return [timed] {
    std::vector<double> us;
    (void)timed->run_all();
    for (int i = 0; i < timed->timing.replays; ++i) us.push_back(timed->run_all() / timed->timing.launches);
    return measure::Reading(measure::median(us));
  };
}

}  // namespace heed::conformance
