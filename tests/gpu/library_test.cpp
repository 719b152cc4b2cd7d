// libheed on a GPU: the case table through the C interface, CUDA graphs, threads with streams of their own.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "api/problem.hpp"
#include "gpu/gpu_test.hpp"
#include "heed/heed.h"
#include "testing.hpp"
#include "verify/compare.hpp"
#include "verify/inputs.hpp"
#include "verify/scene.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#include "worker/cuda_memory.hpp"

namespace heed {
namespace {

using testing_support::case_table;

heed_strides strides_of(const Strides& s) {
  return {s.batch, s.head, s.row, 1};
}

heed_problem problem_of(const Workload& w, const verify::Scene& scene) {
  heed_problem p = api::problem_of(w, DeviceKind::cuda);
  p.q_strides = strides_of(scene.q().strides);
  p.k_strides = strides_of(scene.k().strides);
  p.v_strides = strides_of(scene.v().strides);
  p.o_strides = strides_of(scene.o().strides);
  p.flags = HEED_WANTS_LSE;
  return p;
}

heed_tensors tensors_in(CUdeviceptr image, const verify::Scene& scene) {
  const auto at = [&](const verify::Place& place) { return reinterpret_cast<void*>(image + place.offset); };
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = at(scene.q());
  t.k = at(scene.k());
  t.v = at(scene.v());
  t.o = at(scene.o());
  t.lse = static_cast<float*>(at(scene.lse()));
  return t;
}

// One plan with its program, a workspace and a scene on the device.
class OnDevice {
 public:
  OnDevice(jit::Builder& builder, const DeviceFacts& device, const Family& family, const Workload& workload)
      : variant_(make_variant(family, family.default_config(workload, device), workload)),
        scene_(workload, verify::make_inputs(workload, verify::InputClass::normal, 3), variant_.plan(workload, device),
               4),
        cuda_(cuda_driver()) {
    const jit::BuildOutcome outcome = builder.build(jit::request_for(variant_, workload, device));
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
    cubin_ = read_file(outcome.artifact->path, ErrorCode::cache);
    text_ = describe(variant_);
    heed_options o;
    heed_options_init(&o);
    o.variant = text_.c_str();
    o.image = cubin_.data();
    o.image_bytes = cubin_.size();
    const heed_problem p = problem_of(workload, scene_);
    if (heed_plan_create(&p, &o, &plan_) != HEED_OK) throw Error(ErrorCode::internal, heed_last_error());
    // The plan made the device's context; memory is of the current one.
    CUdevice ordinal = 0;
    CUcontext context = nullptr;
    cuda_.device_get(&ordinal, 0);
    cuda_.device_primary_ctx_retain(&context, ordinal);
    cuda_.ctx_set_current(context);
    cuda_.memcpy_htod_async(image_.at_least(scene_.image().size()), scene_.image().data(), scene_.image().size(),
                            nullptr);
    cuda_.stream_synchronize(nullptr);
    heed_plan_info_init(&info_);
    heed_plan_get_info(plan_, &info_);
  }
  ~OnDevice() { heed_plan_destroy(plan_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] const heed_plan* plan() const { return plan_; }
  [[nodiscard]] const heed_plan_info& info() const { return info_; }
  [[nodiscard]] heed_tensors tensors() const { return tensors_in(image_.get(), scene_); }

  /// Whether the results are right; `name` for the message.
  void check(const std::string& name) {
    std::vector<std::byte> after(scene_.image().size());
    cuda_.memcpy_dtoh_async(after.data(), image_.get(), after.size(), nullptr);
    ASSERT_EQ(cuda_.stream_synchronize(nullptr), CUDA_SUCCESS) << name;
    const auto rows = verify::choose_rows(scene_.workload(), 2e8, 5);
    const verify::Comparison c = verify::compare(scene_, after.data(), verify::make_reference(scene_, rows), false);
    EXPECT_EQ(c.finding, Finding::none) << name << ": " << c.text;
  }

 private:
  Variant variant_;
  verify::Scene scene_;
  const CudaDriver& cuda_;
  std::string cubin_;
  std::string text_;
  heed_plan* plan_ = nullptr;
  heed_plan_info info_{};
  worker::DeviceBuffer image_;
};

struct Workspace {
  explicit Workspace(const heed_plan_info& info) {
    at = info.workspace_bytes == 0 ? 0 : buffer.at_least(info.workspace_bytes);
  }
  [[nodiscard]] void* get() const { return reinterpret_cast<void*>(at); }
  worker::DeviceBuffer buffer;
  CUdeviceptr at = 0;
};

using GpuLibrary = testing_support::GpuTest;

TEST_F(GpuLibrary, CaseTablePassesThroughTheCInterface) {
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cuda) continue;
    for (const Workload& workload : case_table()) {
      if (family->refuses(workload, device_)) continue;
      const std::string name = fmt::format("{} at {}", family->name(), to_string(workload));
      OnDevice one(*builder_, device_, *family, workload);
      const Workspace workspace(one.info());
      ASSERT_EQ(heed_plan_prepare(one.plan(), workspace.get(), nullptr), HEED_OK) << name << heed_last_error();
      const heed_tensors t = one.tensors();
      for (int i = 0; i < 2; ++i)
        ASSERT_EQ(heed_plan_run(one.plan(), &t, workspace.get(), nullptr), HEED_OK) << name << heed_last_error();
      one.check(name);
    }
  }
}

TEST_F(GpuLibrary, RunsAreCapturedIntoAGraph) {
  const CudaDriver& cuda = cuda_driver();
  for (const char* name : {"fwd_sm80", "fwd_sm80_decode", "fwd_sm90_persistent", "fwd_sm90_split", "fwd_sm90_decode"}) {
    const Family& family = find_family(name);
    const Workload workload = parse_workload("b2h8hkv2l4k700d64:bf16:causal_bottom_right");
    if (family.refuses(workload, device_)) continue;
    OnDevice one(*builder_, device_, family, workload);
    const Workspace workspace(one.info());
    const heed_tensors t = one.tensors();
    CUstream stream = nullptr;
    ASSERT_EQ(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(heed_plan_prepare(one.plan(), workspace.get(), stream), HEED_OK);
    ASSERT_EQ(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(heed_plan_run(one.plan(), &t, workspace.get(), stream), HEED_OK) << heed_last_error();
    CUgraph graph = nullptr;
    ASSERT_EQ(cuda.stream_end_capture(stream, &graph), CUDA_SUCCESS) << name;
    CUgraphExec executable = nullptr;
    ASSERT_EQ(cuda.graph_instantiate(&executable, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cuda.graph_launch(executable, stream), CUDA_SUCCESS);
    ASSERT_EQ(cuda.stream_synchronize(stream), CUDA_SUCCESS);
    one.check(name);
    cuda.graph_exec_destroy(executable);
    cuda.graph_destroy(graph);
  }
}

// HEED_STRESS_S: how long; a few seconds are enough to see a lock or a shared buffer.
TEST_F(GpuLibrary, ThreadsRunPlansOnStreamsOfTheirOwn) {
  const char* const asked = std::getenv("HEED_STRESS_S");
  const double seconds = asked == nullptr ? 3 : std::atof(asked);
  const CudaDriver& cuda = cuda_driver();
  const Workload workload = parse_workload("b2h8hkv2l4k700d64:bf16:causal_bottom_right");
  std::vector<std::unique_ptr<OnDevice>> plans;
  for (const char* name : {"fwd_sm80", "fwd_sm80_decode", "fwd_sm90_persistent", "fwd_sm90_decode"})
    if (!find_family(name).refuses(workload, device_))
      plans.push_back(std::make_unique<OnDevice>(*builder_, device_, find_family(name), workload));
  ASSERT_FALSE(plans.empty());
  CUcontext context = nullptr;
  cuda.ctx_get_current(&context);
  // Memory is had before the threads begin: while others launch without end, the driver may keep an allocation waiting.
  constexpr int kThreads = 8;
  constexpr int kStreams = 2;
  std::vector<std::unique_ptr<Workspace>> workspaces;
  std::vector<CUstream> streams(kThreads * kStreams);
  for (int i = 0; i < kThreads * kStreams; ++i) {
    const OnDevice& one = *plans[static_cast<std::size_t>(i / kStreams) % plans.size()];
    ASSERT_EQ(cuda.stream_create(&streams[static_cast<std::size_t>(i)], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    workspaces.push_back(std::make_unique<Workspace>(one.info()));
    ASSERT_EQ(heed_plan_prepare(one.plan(), workspaces.back()->get(), nullptr), HEED_OK);
  }
  ASSERT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
  std::atomic<int> failures{0};
  std::atomic<long long> runs{0};
  std::vector<std::thread> threads;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int index = 0; index < kThreads; ++index)
    threads.emplace_back([&, index] {
      cuda.ctx_set_current(context);
      const OnDevice& one = *plans[static_cast<std::size_t>(index) % plans.size()];
      const heed_tensors t = one.tensors();  // every run of a plan writes the same results to them
      do {
        for (int i = 0; i < 100; ++i)
          for (int s = 0; s < kStreams; ++s) {
            const auto at = static_cast<std::size_t>(index * kStreams + s);
            failures += heed_plan_run(one.plan(), &t, workspaces[at]->get(), streams[at]) == HEED_OK ? 0 : 1;
            ++runs;
          }
        for (int s = 0; s < kStreams; ++s)
          failures +=
              cuda.stream_synchronize(streams[static_cast<std::size_t>(index * kStreams + s)]) == CUDA_SUCCESS ? 0 : 1;
      } while (std::chrono::steady_clock::now() < end && failures == 0);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(runs, 0);
  for (auto& one : plans) one->check("after the threads");
}

}  // namespace
}  // namespace heed
#endif
