// Pools of keys in host memory on a GPU: pinned pages, streams and events, the merge's kernel, the processors' part in
// host functions. Results over random splits are those over all keys.
#include "gpu/gpu_test.hpp"
#include "testing.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#include "merge/merge.hpp"
#include "offload/offload_case.hpp"
#include "padding/padding.hpp"
#include "quantise/quantise.hpp"
#include "worker/cuda_memory.hpp"

namespace heed {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

// Tensors in device memory, which a call of its own stream reads and writes.
class OnDevice final : public testing_support::PoolTensors {
 public:
  OnDevice() {
    CUdevice device = 0;
    cuda_.device_get(&device, 0);
    cuda_.device_primary_ctx_retain(&context_, device);
    cuda_.ctx_set_current(context_);
    EXPECT_EQ(cuda_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~OnDevice() override { cuda_.stream_destroy(stream_); }
  void* put(std::size_t index, std::vector<std::byte>& bytes) override {
    const CUdeviceptr at = buffers_.at(index).at_least(bytes.size());
    EXPECT_EQ(cuda_.memcpy_htod_async(at, bytes.data(), bytes.size(), stream_), CUDA_SUCCESS);
    return reinterpret_cast<void*>(at);
  }
  void get(std::size_t index, std::vector<std::byte>& bytes) override {
    EXPECT_EQ(cuda_.memcpy_dtoh_async(bytes.data(), buffers_.at(index).get(), bytes.size(), stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuda_.stream_synchronize(stream_), CUDA_SUCCESS);
  }
  void* stream() override { return stream_; }

 private:
  const CudaDriver& cuda_ = cuda_driver();
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::array<worker::DeviceBuffer, 6> buffers_;
};

class GpuOffload : public testing_support::GpuTest {
 protected:
  // Programs of one family for the device and of fwd_cpu for the processors, of head dim 64, with the copies and the
  // merge.
  /// @param quantised what is, ":quantised=kv/e4m3/head"; with the pass that quantises
  const std::string& programs_of(const std::string& family_name, bool with_cpu = true,
                                 const std::string& quantised = {}) {
    std::string& path = paths_[family_name + (with_cpu ? "" : " alone") + quantised];
    if (!path.empty()) return path;
    dispatch::ProgramFileWriter writer("0123");
    const auto add = [&](const jit::BuildRequest& request, const std::string& workload, const std::string& variant) {
      const jit::BuildOutcome outcome = builder_->build(request);
      if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
      dispatch::ProgramRecord record;
      record.arch = request.arch;
      record.workload = workload;
      record.variant = variant;
      writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
    };
    const auto helper = [&](const std::string& source, const char* entry, std::string_view name, bool counts = false) {
      add({.device = DeviceKind::cuda, .arch = device_.arch, .source = source, .entry = entry, .semaphores = counts},
          {}, std::string(name));
    };
    if (!quantised.empty())
      helper(quantise::quantise_source(), quantise::kQuantiseEntry, quantise::kQuantiseProgram, true);
    helper(padding::copy_source(), padding::kCopyEntry, padding::kCopyProgram);
    helper(merge::merge_source(), merge::kMergeEntry, merge::kMergeProgram);
    const auto add_family = [&](const Family& family, const DeviceFacts& device) {
      for (const char* mask : {"", ":causal_bottom_right", ":window=9/3"}) {
        const Workload plain = parse_workload(std::string("b2h4hkv2l70k90d64:fp16") + mask + quantised);
        Features features = family.features();
        if (!quantised.empty() && family.device() == DeviceKind::cuda) features = {.lengths = true, .pages = true};
        const Workload w = with_features(plain, features);
        const Variant variant = make_variant(family, family.default_config(w, device), w);
        add(jit::request_for(variant, w, device), to_string(w), describe(variant));
      }
    };
    add_family(find_family(family_name), device_);
    if (with_cpu) add_family(find_family("fwd_cpu"), cpu_facts());
    path = folder_.file(std::to_string(paths_.size()) + ".programs");
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    return path;
  }
  std::vector<std::string> families() const {
    if (device_.compute_capability == 90) return {"fwd_sm80", "fwd_sm90_persistent"};
    return {"fwd_sm80"};
  }
  static heed_offload_config config(const std::string& programs, std::int64_t host_pages, std::int64_t device_pages) {
    heed_offload_config c = pool_config(host_pages, device_pages, HEED_FP16, programs);
    c.device_type = HEED_CUDA;
    c.dim = c.dim_v = 64;
    return c;
  }

  testing_support::TemporaryFolder folder_;
  std::map<std::string, std::string> paths_;
};

// HEED_SPLITS=N takes N of them.
TEST_F(GpuOffload, RandomPageSplits) {
  OnDevice tensors;
  for (const std::string& family : families()) {
    SCOPED_TRACE(family);
    for (std::uint64_t seed = 1; seed <= testing_support::splits_asked_for(); ++seed) {
      testing_support::run_random_split(seed, config(programs_of(family), 64, 0), &tensors, 4e-3);
      if (HasFailure()) return;
    }
  }
}

// K and V in 8 bits, a quarter of them. fwd_sm90_decode has programs of exactly a call's features: those with a softcap
// NVRTC makes.
TEST_F(GpuOffload, RandomPageSplitsOfEightBits) {
  OnDevice tensors;
  for (const char* family : {"fwd_sm80_decode", "fwd_sm90_decode"}) {
    if (device_.compute_capability != 90 && std::string(family) == "fwd_sm90_decode") continue;
    SCOPED_TRACE(family);
    for (std::uint64_t seed = 1; seed <= (testing_support::splits_asked_for() + 3) / 4; ++seed) {
      heed_offload_config c = config(programs_of(family, true, ":quantised=kv/e4m3/head"), 64, 0);
      c.dtype_kv = HEED_FP8_E4M3;
      c.k_scales = testing_support::scales_of(c.dtype_kv, true);
      c.v_scales = testing_support::scales_of(c.dtype_kv, false);
      c.k_scale_count = c.v_scale_count = seed % 2 == 0 ? 1 : 2;
      testing_support::run_random_split(seed, c, &tensors, 4e-3);
      if (HasFailure()) return;
    }
  }
}

// Without programs for the processors everything comes over the link.
TEST_F(GpuOffload, WithoutProgramsForTheProcessors) {
  OnDevice tensors;
  const Pool pool(config(programs_of("fwd_sm80", false), 64, 4));
  ASSERT_NE(pool.pool, nullptr);
  PoolCase one(pool, {pool.add()}, 3, &tensors);
  ASSERT_EQ(one.run(0, 300, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  one.check(4e-3);
  EXPECT_THAT(pool.explain(), ::testing::HasSubstr("no program for the processors"));
}

// Rates of the machine, in its own words; bytes over the link are those of the pages that the device does not hold.
TEST_F(GpuOffload, RatesAreMeasured) {
  heed_offload_config c = config(programs_of("fwd_sm80"), 4096, 64);
  c.link_rate = c.host_rate = c.device_rate = c.device_flops = 0;
  c.page_size = 64;
  c.chunk_pages = 128;
  c.heads_kv = 4;
  c.streamed_share = 1;
  OnDevice tensors;
  const Pool pool(c);
  ASSERT_NE(pool.pool, nullptr);
  EXPECT_GT(pool.info().link_rate, 1e9);
  EXPECT_GT(pool.info().device_flops, 1e10);
  const std::int64_t id = pool.add();
  PoolCase one(pool, {id}, 3, &tensors);
  ASSERT_EQ(one.run(0, 64 * 100, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  one.check(4e-3);
  const double before = pool.info().bytes_in;
  ASSERT_EQ(one.run(0, 0, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  one.check(4e-3);
  EXPECT_EQ(pool.info().bytes_in - before, 36 * 2 * 64 * 4 * 64 * 2);
  std::printf("%s", pool.explain({id}).c_str());
}

// A call that is captured, and launches of its graph in place of calls.
CUgraphExec captured = nullptr;
heed_status capture_decode(heed_offload* pool, const heed_offload_call* call, void* stream) {
  const CudaDriver& cuda = cuda_driver();
  auto* const queue = static_cast<CUstream>(stream);
  EXPECT_EQ(cuda.stream_begin_capture(queue, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const heed_status status = heed_offload_decode(pool, call, stream);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuda.stream_end_capture(queue, &graph), CUDA_SUCCESS);
  if (status == HEED_OK) {
    EXPECT_EQ(cuda.graph_instantiate(&captured, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.graph_launch(captured, queue), CUDA_SUCCESS);
  }
  cuda.graph_destroy(graph);
  return status;
}
heed_status launch_captured(heed_offload*, const heed_offload_call*, void* stream) {
  return cuda_driver().graph_launch(captured, static_cast<CUstream>(stream)) == CUDA_SUCCESS ? HEED_OK
                                                                                             : HEED_DRIVER_ERROR;
}

// The split of a captured step is fixed: each launch reads other queries, over all shares of the link.
TEST_F(GpuOffload, DecodingStepsInAGraph) {
  for (const double share : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(share);
    OnDevice tensors;
    heed_offload_config c = config(programs_of("fwd_sm80"), 64, 4);
    c.streamed_share = share;
    c.chunks = 2;
    c.chunk_pages = 3;
    const Pool pool(c);
    ASSERT_NE(pool.pool, nullptr);
    const std::vector<std::int64_t> ids = {pool.add(), pool.add()};
    PoolCase one(pool, ids, 3, &tensors);
    ASSERT_EQ(one.run(0, 150, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    ASSERT_EQ(one.run(0, 0, 3, &heed_offload_prefill), HEED_OK) << heed_last_error();  // tensors of most rows stay
    EXPECT_EQ(one.run(0, 1, 1, &capture_decode), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("append them before the capture"));
    ASSERT_EQ(one.run(0, 0, 1, &capture_decode), HEED_OK) << heed_last_error();
    one.check(4e-3);
    EXPECT_EQ(one.run(0, 1, 1, &heed_offload_decode), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("cannot have new keys: a graph"));
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(one.run(0, 0, 1, &launch_captured), HEED_OK);
      one.check(4e-3);
      // Calls beside it work in memory of their own.
      ASSERT_EQ(one.run(0, 0, 1 + i % 3, &heed_offload_prefill), HEED_OK) << heed_last_error();
      one.check(4e-3);
      if (HasFatalFailure()) return;
    }
    cuda_driver().graph_exec_destroy(captured);
    captured = nullptr;
    ASSERT_EQ(one.run(0, 5, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(4e-3);
  }
}

TEST_F(GpuOffload, MemoryThatTheGpuDoesNotHave) {
  heed_offload_config c = config(programs_of("fwd_sm80"), 64, 64);
  c.layers = 1;
  c.page_size = 1 << 16;
  c.heads = c.heads_kv = 1024;
  c.host_pages = c.device_pages = 1 << 14;
  heed_offload* pool = nullptr;
  EXPECT_EQ(heed_offload_create(&c, &pool), HEED_OUT_OF_MEMORY) << heed_last_error();
  EXPECT_EQ(pool, nullptr);
}

}  // namespace
}  // namespace heed
#endif
