// Plans on a GPU: a cubin in a context, tensor maps encoded when addresses change.
#include "api/plan.hpp"

#ifdef HEED_WITH_CUDA

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include <fmt/format.h>

#include "api/gpu_context.hpp"
#include "api/places.hpp"
#include "launch/l2_window.hpp"
#include "launch/tensor_map.hpp"

namespace heed::api {
namespace {

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

// Of the context that is current, which is of the device.
L2Limits l2_limits(int ordinal) {
  const CudaDriver& cuda = cuda_driver();
  CUdevice device = 0;
  check(cuda.device_get(&device, ordinal), "opening the GPU");
  int most = 0;
  check(cuda.device_get_attribute(&most, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, device),
        "asking for the size of a window over the L2");
  if (most <= 0)
    throw Error(ErrorCode::unsupported,
                "HEED_L2_KEEP_KV is given, and this GPU has no access-policy windows; leave it out");
  std::size_t set_aside = 0;
  check(cuda.ctx_get_limit(&set_aside, CU_LIMIT_PERSISTING_L2_CACHE_SIZE), "asking for the context's share of the L2");
  return {static_cast<std::uint64_t>(most), set_aside};
}

class GpuPlan final : public Plan {
 public:
  GpuPlan(const Problem& problem, Choice choice, const LaunchPlan& launch, CUcontext context, bool debug,
          std::optional<L2Limits> l2 = {})
      : Plan(problem, std::move(choice), launch), cuda_(cuda_driver()), context_(context), l2_(l2), debug_(debug) {
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
      const Addresses at = checked(tensors[i], workspace);
      if (!problem_.has_keys) {
        write_empty_rows(at, static_cast<CUstream>(stream));
        continue;
      }
      if (debug_) expect_places_on_device(at, static_cast<CUstream>(stream));
      const FeatureParams params = bound(at, workspace);
      const TensorMaps& maps = launch_.tensor_maps ? maps_of(serial_, params, *launch_.tensor_maps) : no_maps;
      const L2Window kept = l2_ ? l2_window(at.k, k_extent(), at.v, v_extent(), *l2_) : L2Window{};
      check(
          program_->launch(launch_.grid, params, maps, static_cast<CUstream>(stream), dependent, l2_ ? &kept : nullptr),
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

  // Waits for the stream, whose work may write what is looked at.
  void expect_places_on_device(const Addresses& at, CUstream stream) const {
    const std::int64_t batch = problem_.workload.batch;
    struct Copy {
      const std::int32_t* from;
      std::int64_t count;
      std::vector<std::int32_t> on_host = {};
    };
    std::array<Copy, 4> all = {{{at.cu_seqlens_q, batch + 1},
                                {at.cu_seqlens_k, batch + 1},
                                {at.seqused_k, batch},
                                {at.page_table, table_numbers(problem_)}}};
    if (std::all_of(all.begin(), all.end(), [](const Copy& copy) { return copy.from == nullptr; })) return;
    require_no_capture(stream);
    for (Copy& copy : all) {
      if (copy.from == nullptr) continue;
      copy.on_host.resize(static_cast<std::size_t>(copy.count));
      check(cuda_.memcpy_dtoh_async(copy.on_host.data(), reinterpret_cast<CUdeviceptr>(copy.from),
                                    copy.on_host.size() * sizeof(std::int32_t), stream),
            "reading lengths and pages");
    }
    check(cuda_.stream_synchronize(stream), "waiting for lengths and pages");
    const auto of = [&](std::size_t i) { return all[i].from == nullptr ? nullptr : all[i].on_host.data(); };
    expect_places(problem_, {of(0), of(1), of(2), of(3)});
  }

  const CudaDriver& cuda_;
  CUcontext context_;
  std::optional<L2Limits> l2_;  // of plans that keep K and V
  bool debug_;
  std::uint64_t serial_ = next_serial();
  std::shared_ptr<GpuProgram> program_;
};

}  // namespace

std::string l2_remark(const Problem& problem) {
  const UsedContext context(problem.ordinal);
  const L2Limits limits = l2_limits(problem.ordinal);
  const auto bytes =
      static_cast<double>(extent_bytes(problem.k_sizes(), problem.k, size_of(problem.workload.dtype_k())) +
                          extent_bytes(problem.v_sizes(), problem.v, size_of(problem.workload.dtype_v())));
  const std::string begin = fmt::format("K and V, {:.3g} MB, are to stay in the L2", bytes / 1e6);
  if (limits.set_aside == 0)
    return begin + ", of which the context sets nothing aside: they do not, before cuCtxSetLimit says how much";
  return begin + fmt::format(", of which the context sets {:.3g} MB aside{}",
                             static_cast<double>(limits.set_aside) / 1e6,
                             bytes > static_cast<double>(limits.set_aside) ? ": a part of them does" : "");
}

std::unique_ptr<Plan> make_gpu_plan(const Problem& problem, const Options& options, Choice choice,
                                    const DeviceFacts& device) {
  const UsedContext context(problem.ordinal);
  if (problem.is_empty || !problem.has_keys)
    return std::make_unique<GpuPlan>(problem, std::move(choice), LaunchPlan{}, context.get(), options.debug);
  const LaunchPlan launch = choice.variant.plan(problem.workload, device);
  std::optional<L2Limits> l2;
  if (options.keeps_kv) l2 = l2_limits(problem.ordinal);
  return std::make_unique<GpuPlan>(problem, std::move(choice), launch, context.get(), options.debug, l2);
}

}  // namespace heed::api

#else

namespace heed::api {

std::string l2_remark(const Problem&) {
  return "K and V stay in no L2: this library was built without CUDA support";
}
std::unique_ptr<Plan> make_gpu_plan(const Problem&, const Options&, Choice, const DeviceFacts&) {
  throw Error(ErrorCode::no_device, "no GPU can be used: this library was built without CUDA support");
}
}  // namespace heed::api

#endif
