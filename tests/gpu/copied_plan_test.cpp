// libheed on a GPU: head dims and strides that no program has, by copies; PTX for GPUs newer than all binaries.
#include <fmt/format.h>

#include "gpu/gpu_test.hpp"
#include "heed/heed.h"
#include "testing.hpp"
#ifdef HEED_WITH_CUDA
#include "api/c_library.hpp"
#include "device/cuda_driver.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/program_file.hpp"
#include "padding/padding.hpp"
#include "worker/cuda_memory.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::HostCase;

class GpuCopies : public testing_support::GpuTest {
 protected:
  // The programs of one family for head dims 64 and 128, with the copies.
  std::string programs_of(const std::string& arch, const char* family_name, const std::string& dtype = ":fp16") {
    const DeviceFacts device = dispatch::representative_gpu(arch);
    dispatch::ProgramFileWriter writer("0123");
    const auto add = [&](const jit::BuildRequest& request, const std::string& workload, const std::string& variant) {
      const jit::BuildOutcome outcome = builder_->build(request);
      if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
      dispatch::ProgramRecord record;
      record.arch = arch;
      record.workload = workload;
      record.variant = variant;
      writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
    };
    add({.device = DeviceKind::cuda, .arch = arch, .source = padding::copy_source(), .entry = padding::kCopyEntry}, {},
        std::string(padding::kCopyProgram));
    const Family& family = find_family(family_name);
    for (const char* text : {"b2h4hkv2l70k90d64", "b2h4hkv2l70k90d64:causal_bottom_right", "b2h4hkv2l70k90d128"}) {
      Workload w = parse_workload(text);
      w.dtype = parse_dtype(dtype.substr(1));
      const std::string shape = to_string(w);
      const Variant variant = make_variant(family, family.default_config(w, device), w);
      add(jit::request_for(variant, w, device), shape, describe(variant));
    }
    const std::string path = folder_.file(arch + ".programs");
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    return path;
  }

  static heed_problem problem(std::int64_t dim, std::int64_t dim_v, const std::string& dtype = ":fp16") {
    return testing_support::gpu_problem(fmt::format("b2h4hkv2l70k90d{}dv{}{}", dim, dim_v, dtype), HEED_WANTS_LSE);
  }

  void run_and_check(const heed_problem& p, const std::string& programs, const std::string& reason) {
    heed_options o;
    heed_options_init(&o);
    o.programs = programs.c_str();
    heed_plan* plan = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    heed_plan_info info;
    heed_plan_info_init(&info);
    ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    EXPECT_THAT(info.reason, ::testing::HasSubstr(reason));
    const CudaDriver& cuda = cuda_driver();
    CUdevice ordinal = 0;
    CUcontext context = nullptr;
    cuda.device_get(&ordinal, 0);
    cuda.device_primary_ctx_retain(&context, ordinal);
    cuda.ctx_set_current(context);
    HostCase host(p, 3);
    const bool is_fp32 = p.dtype_q == HEED_FP32;
    if (!is_fp32) host.round_inputs([](float x) { return fp16_to_float(float_to_fp16(x)); });
    std::vector<std::unique_ptr<worker::DeviceBuffer>> buffers;
    const auto room = [&](std::size_t bytes) {
      buffers.push_back(std::make_unique<worker::DeviceBuffer>());
      return buffers.back()->at_least(bytes);
    };
    const auto put = [&](const std::vector<float>& values) {
      std::vector<std::uint16_t> halves;
      for (const float value : values) halves.push_back(float_to_fp16(value));
      const std::size_t bytes = (is_fp32 ? 4 : 2) * values.size();
      const CUdeviceptr at = room(bytes);
      cuda.memcpy_htod_async(at, is_fp32 ? static_cast<const void*>(values.data()) : halves.data(), bytes, nullptr);
      cuda.stream_synchronize(nullptr);
      return reinterpret_cast<void*>(at);
    };
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = put(host.q());
    t.k = put(host.k());
    t.v = put(host.v());
    t.o = put(host.o());
    t.lse = reinterpret_cast<float*>(room(4 * host.lse().size()));
    void* const workspace = reinterpret_cast<void*>(room(info.workspace_bytes + 256));
    ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    for (int i = 0; i < 2; ++i) ASSERT_EQ(heed_plan_run(plan, &t, workspace, nullptr), HEED_OK) << heed_last_error();
    std::vector<std::uint16_t> halves(host.o().size());
    cuda.memcpy_dtoh_async(is_fp32 ? static_cast<void*>(host.o().data()) : halves.data(),
                           reinterpret_cast<CUdeviceptr>(t.o), (is_fp32 ? 4 : 2) * halves.size(), nullptr);
    cuda.memcpy_dtoh_async(host.lse().data(), reinterpret_cast<CUdeviceptr>(t.lse), 4 * host.lse().size(), nullptr);
    ASSERT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
    for (std::size_t i = 0; i < halves.size() && !is_fp32; ++i) host.o()[i] = fp16_to_float(halves[i]);
    host.check(is_fp32 ? 1e-5 : 2e-3);
    heed_plan_destroy(plan);
  }

  testing_support::TemporaryFolder folder_;
};

TEST_F(GpuCopies, HeadDimsThatNoProgramHasArePadded) {
  const std::string programs = programs_of(device_.arch, default_family(DeviceKind::cuda).name().data());
  struct Dims {
    std::int64_t qk;
    std::int64_t v;
    const char* reason;
  };
  for (const Dims& dims :
       {Dims{80, 80, "rows of 80 elements to rows of 128"}, Dims{33, 33, "rows of 33 elements to rows of 64"},
        Dims{72, 40, "rows of 72 and 40 elements to rows of 128"}, Dims{1, 1, "to rows of 64"},
        Dims{8, 128, "to rows of 128"}})
    run_and_check(problem(dims.qk, dims.v), programs, dims.reason);
}

TEST_F(GpuCopies, StridesOfEveryDimensionAreTheCallers) {
  const std::string programs = programs_of(device_.arch, default_family(DeviceKind::cuda).name().data());
  heed_problem p = problem(64, 64);
  p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  p.q_strides = {4 * 70 * 64, 70 * 64, 1, 70};  // (batch, head, dim, length)
  p.k_strides = {2 * 90 * 67, 90 * 67, 67, 1};  // rows that no 16 bytes divide
  p.v_strides = {0, 64, 2 * 64, 1};             // one for all batch entries
  p.o_strides = {4 * 70 * 130, 130, 4 * 130, 2};
  run_and_check(p, programs, "are copied, for the elements of a row of Q are 70 apart");
  p.len_k = 0;
  run_and_check(p, programs, "nothing to compute");
}

// Elements of 4 bytes: wide pieces, narrow ones, and elements that do not follow each other.
TEST_F(GpuCopies, RowsOfFp32ArePadded) {
  const std::string programs = programs_of(device_.arch, "fwd_sm80", ":fp32");
  run_and_check(problem(80, 80, ":fp32"), programs, "rows of 80 elements to rows of 128");
  run_and_check(problem(33, 17, ":fp32"), programs, "rows of 33 and 17 elements to rows of 64");
  heed_problem p = problem(64, 64, ":fp32");
  p.q_strides = {4 * 70 * 64, 70 * 64, 1, 70};
  run_and_check(p, programs, "are copied, for the elements of a row of Q are 70 apart");
}

TEST_F(GpuCopies, AGpuThatIsNewerThanAllBinariesTakesPtx) {
  const std::string programs = programs_of("compute_80", "fwd_sm80");
  run_and_check(problem(64, 64), programs, "it is PTX of compute_80, which the driver compiles for this sm_");
  run_and_check(problem(100, 100), programs, "PTX of compute_80");
}

// Queries see one key far above the others, the last: it lies more than 2^31 elements behind the first.
TEST_F(GpuCopies, TensorsOfMoreElementsThanAnIntCounts) {
  const CudaDriver& cuda = cuda_driver();
  const heed_problem p = testing_support::gpu_problem("b1h1l3k33600000d64", HEED_WANTS_LSE);
  heed_options o;
  heed_options_init(&o);
  const std::string built = folder_.file("built");
  ::setenv("HEED_BUILT_PROGRAMS", built.c_str(), 1);
  const std::string programs = programs_of(device_.arch, default_family(DeviceKind::cuda).name().data());
  o.programs = programs.c_str();
  for (const int build : {HEED_BUILD_OFF, HEED_BUILD_WAIT}) {
    o.build = build;
    heed_plan* plan = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    heed_plan_info info;
    heed_plan_info_init(&info);
    heed_plan_get_info(plan, &info);
    CUdevice ordinal = 0;
    CUcontext context = nullptr;
    cuda.device_get(&ordinal, 0);
    cuda.device_primary_ctx_retain(&context, ordinal);
    cuda.ctx_set_current(context);
    const std::uint64_t bytes = static_cast<std::uint64_t>(p.len_k) * 64 * 2;
    ASSERT_GT(bytes / 2, std::uint64_t{1} << 31);
    if (static_cast<std::uint64_t>(device_.memory_bytes) < 3 * bytes) GTEST_SKIP() << "the GPU has too little memory";
    worker::DeviceBuffer k;
    worker::DeviceBuffer v;
    worker::DeviceBuffer small;
    worker::DeviceBuffer room;
    const CUdeviceptr at_k = k.at_least(bytes);
    const CUdeviceptr at_v = v.at_least(bytes);
    const CUdeviceptr at_small = small.at_least(4096);
    constexpr unsigned kOnes = 0x3c003c00;  // 1 and 1 in fp16
    constexpr unsigned kTwos = 0x40004000;
    constexpr unsigned kTens = 0x49004900;
    cuda.memset_d32_async(at_k, 0, bytes / 4, nullptr);
    cuda.memset_d32_async(at_k + bytes - 128, kTens, 32, nullptr);
    cuda.memset_d32_async(at_v, kOnes, bytes / 4, nullptr);
    cuda.memset_d32_async(at_v + bytes - 128, kTwos, 32, nullptr);
    cuda.memset_d32_async(at_small, kOnes, 3 * 32, nullptr);
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = reinterpret_cast<void*>(at_small);
    t.k = reinterpret_cast<void*>(at_k);
    t.v = reinterpret_cast<void*>(at_v);
    t.o = reinterpret_cast<void*>(at_small + 1024);
    t.lse = reinterpret_cast<float*>(at_small + 2048);
    void* const workspace = reinterpret_cast<void*>(room.at_least(info.workspace_bytes + 256));
    ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    ASSERT_EQ(heed_plan_run(plan, &t, workspace, nullptr), HEED_OK) << heed_last_error();
    std::vector<std::uint16_t> out(3 * 64);
    std::vector<float> lse(3);
    cuda.memcpy_dtoh_async(out.data(), at_small + 1024, 2 * out.size(), nullptr);
    cuda.memcpy_dtoh_async(lse.data(), at_small + 2048, 4 * lse.size(), nullptr);
    ASSERT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS) << info.variant;
    for (const std::uint16_t value : out) ASSERT_EQ(fp16_to_float(value), 2.0F) << info.variant;
    for (const float value : lse) ASSERT_NEAR(value, 80.0F, 1e-3) << info.variant;
    heed_plan_destroy(plan);
  }
  ::unsetenv("HEED_BUILT_PROGRAMS");
}

}  // namespace
}  // namespace heed
#endif
