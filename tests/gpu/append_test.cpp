// Appends to a cache on a GPU: the bytes that a CPU writes, in plain, dependent and captured launches, and nothing
// beside the cache.
#include <fmt/format.h>

#include "gpu/gpu_test.hpp"
#include "heed/append.h"
#include "heed/heed.h"
#include "testing.hpp"
#ifdef HEED_WITH_CUDA
#include "api/c_library.hpp"
#include "append/append.hpp"
#include "device/cuda_driver.hpp"
#include "dispatch/program_file.hpp"
#include "worker/cuda_memory.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

class GpuAppend : public testing_support::GpuTest {
 protected:
  std::string programs() {
    const jit::BuildOutcome outcome = builder_->build({.device = DeviceKind::cuda,
                                                       .arch = device_.arch,
                                                       .source = append::append_source(),
                                                       .entry = append::kAppendEntry,
                                                       .supports_pdl = append::can_be_dependent(device_.arch)});
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
    dispatch::ProgramFileWriter writer("0123");
    dispatch::ProgramRecord record;
    record.arch = device_.arch;
    record.variant = append::kAppendProgram;
    writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
    const std::string path = folder_.file("append.programs");
    write_file_atomically(path, writer.bytes(), ErrorCode::store);
    return path;
  }
  testing_support::TemporaryFolder folder_;
};

// What an append reads and writes, in memory of the host.
struct AppendMemory {
  std::vector<unsigned char> new_k, new_v, k, v;
  std::vector<float> k_scale, v_scale;
  std::vector<int> lengths, after, begins, table;
};

TEST_F(GpuAppend, WritesWhatACpuWrites) {
  const std::string path = programs();
  heed_options o;
  heed_options_init(&o);
  o.programs = path.c_str();
  const CudaDriver& cuda = cuda_driver();
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  cuda.device_get(&ordinal, 0);
  cuda.device_primary_ctx_retain(&context, ordinal);
  cuda.ctx_set_current(context);
  CUstream stream = nullptr;
  ASSERT_EQ(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (const std::string text :
       {"d64:fp16", "d128:bf16:page=16:key_lengths", "d72:fp32:page=1:key_lengths", "d256:bf16:page=256:key_lengths",
        "d128:bf16:page=16:key_lengths:quantised=k/e4m3/head+v/int8/channel",
        "d64:fp16:page=64:key_lengths:quantised=kv/e4m3/token", "d40:fp16:quantised=k/int8/token+v/e5m2/block8"})
    for (const bool ragged : {false, true}) {
      SCOPED_TRACE(text);
      const std::string shape = "b5h4hkv2l1k300" + text;
      heed_problem on_cpu = testing_support::cpu_problem(shape), on_gpu = testing_support::gpu_problem(shape);
      const api::Problem problem = api::read_problem(&on_cpu);
      heed_append_rows rows;
      heed_append_rows_init(&rows);
      rows.len_new = 37;
      rows.total_new = ragged ? 60 : 0;
      rows.flags = ragged ? HEED_APPEND_RAGGED : 0;
      AppendMemory m;
      Random random(7);
      const auto all_rows = static_cast<std::size_t>(ragged ? 60 : 5 * 37);
      const Workload& w = problem.workload;
      for (auto* x : {&m.new_k, &m.new_v}) {
        x->resize(all_rows * 2 * static_cast<std::size_t>(w.dim) * size_of(w.dtype));
        for (std::size_t i = 0; i < x->size() / size_of(w.dtype); ++i)
          store_element(w.dtype, x->data(), i, static_cast<float>(6 * random.uniform() - 2));
      }
      m.k.assign(api::extent_bytes(problem.k_sizes(), problem.k, size_of(w.dtype_k())), 0x5a);
      m.v.assign(api::extent_bytes(problem.v_sizes(), problem.v, size_of(w.dtype_v())), 0x5a);
      m.k_scale.assign(std::size_t{1} << 16, 0.03F);
      m.v_scale = m.k_scale;
      m.lengths = {0, 100, 263, 1, 17};
      m.after.assign(5, -1);
      m.begins = {0, 20, 20, 57, 58, 60};
      for (std::int64_t i = 0; i < problem.pages; ++i) m.table.push_back(static_cast<int>((i * 7 + 3) % problem.pages));
      if (problem.pages % 7 == 0) std::reverse(m.table.begin(), m.table.end());
      const auto tensors_of = [&](const auto& place) {
        heed_append_tensors t;
        heed_append_tensors_init(&t);
        t.new_k = place(m.new_k);
        t.new_v = place(m.new_v);
        t.k = place(m.k);
        t.v = place(m.v);
        t.lengths = static_cast<const int*>(place(m.lengths));
        t.lengths_after = static_cast<int*>(place(m.after));
        if (ragged) t.cu_seqlens = static_cast<const int*>(place(m.begins));
        if (w.page_size > 0) t.page_table = static_cast<const int*>(place(m.table));
        if (w.quantised && w.quantised->k) t.k_scale = static_cast<float*>(place(m.k_scale));
        if (w.quantised && w.quantised->v) t.v_scale = static_cast<float*>(place(m.v_scale));
        return t;
      };
      std::vector<std::unique_ptr<worker::DeviceBuffer>> buffers;
      const heed_append_tensors of_gpu = tensors_of([&](auto& x) -> void* {
        const std::size_t bytes = x.size() * sizeof(x[0]);
        buffers.push_back(std::make_unique<worker::DeviceBuffer>());
        const CUdeviceptr at = buffers.back()->at_least(bytes);
        cuda.memcpy_htod_async(at, x.data(), bytes, stream);
        return reinterpret_cast<void*>(at);
      });
      ASSERT_EQ(cuda.stream_synchronize(stream), CUDA_SUCCESS);
      heed_append* append = nullptr;
      ASSERT_EQ(heed_append_create(&on_gpu, &rows, &o, &append), HEED_OK) << heed_last_error();
      const std::uint32_t dependent = heed_append_can_be_dependent(append) != 0 ? HEED_RUN_DEPENDENT : 0;
      ASSERT_EQ(heed_append_run(append, &of_gpu, stream, 0), HEED_OK) << heed_last_error();
      ASSERT_EQ(heed_append_run(append, &of_gpu, stream, dependent), HEED_OK) << heed_last_error();
      heed_append_destroy(append);
      const heed_append_tensors of_cpu = tensors_of([](auto& x) -> void* { return x.data(); });
      ASSERT_EQ(heed_append_create(&on_cpu, &rows, nullptr, &append), HEED_OK) << heed_last_error();
      ASSERT_EQ(heed_append_run(append, &of_cpu, nullptr, 0), HEED_OK) << heed_last_error();
      heed_append_destroy(append);
      const auto same = [&](const auto& host, const void* device) {
        auto found = host;
        cuda.memcpy_dtoh_async(found.data(), reinterpret_cast<CUdeviceptr>(device), found.size() * sizeof(found[0]),
                               stream);
        return cuda.stream_synchronize(stream) == CUDA_SUCCESS && found == host;
      };
      EXPECT_TRUE(same(m.k, of_gpu.k));
      EXPECT_TRUE(same(m.v, of_gpu.v));
      EXPECT_TRUE(same(m.after, of_gpu.lengths_after));
      EXPECT_TRUE(of_gpu.k_scale == nullptr || same(m.k_scale, of_gpu.k_scale));
      EXPECT_TRUE(of_gpu.v_scale == nullptr || same(m.v_scale, of_gpu.v_scale));
    }
  cuda.stream_destroy(stream);
}

}  // namespace
}  // namespace heed

#endif
