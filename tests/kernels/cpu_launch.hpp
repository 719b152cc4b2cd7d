/// fwd_cpu, built as a trial builds it and called block by block, beside the oracle.
#pragma once

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "kernels/contract.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/half.hpp"
#include "workload/mask.hpp"

namespace heed::cpu_launch {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinite = std::numeric_limits<float>::infinity();

/// Tensors of one workload in fp32, rounded to its dtype for a launch; rows are dense in bhld order.
struct Case {
  explicit Case(const std::string& text) : workload(parse_workload(text)) {
    const auto size = [&](std::int64_t heads, std::int64_t length) {
      return static_cast<std::size_t>(workload.batch * heads * length * workload.dim);
    };
    unsigned state = 12345;
    for (auto* tensor : {&q, &k, &v}) {
      tensor->resize(tensor == &q ? size(workload.heads, workload.len_q) : size(workload.heads_kv, workload.len_k));
      for (float& x : *tensor) {
        state = state * 1664525 + 1013904223;
        x = round_to(workload.dtype, static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0F);
      }
    }
  }

  /// Element (0, head, row, column).
  float& at(std::vector<float>& tensor, std::int64_t row, std::int64_t column, std::int64_t head = 0) const {
    const std::int64_t length = &tensor == &q ? workload.len_q : workload.len_k;
    return tensor[static_cast<std::size_t>((head * length + row) * workload.dim + column)];
  }

  Workload workload;
  std::vector<float> q, k, v;
};

inline std::vector<std::byte> stored(Dtype dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::fp32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      continue;
    }
    const std::uint16_t half = dtype == Dtype::bf16 ? float_to_bf16(values[i]) : float_to_fp16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

struct Output {
  std::vector<float> o;    ///< (batch, heads, len_q, dim)
  std::vector<float> lse;  ///< (batch, heads, len_q)
};

/// Whether keys in front of the first that is seen are part of a launch.
enum class Cut { nothing, unseen_keys };
/// In which order blocks run.
enum class Order { forwards, backwards };

/// One launch of a variant, all its blocks one after another on this thread.
inline Output launch(const std::string& variant_text, const Case& c, Cut cut = Cut::unseen_keys,
                     Order order = Order::forwards) {
  const Workload& w = c.workload;
  const DeviceFacts device = cpu_facts();
  const Variant variant = parse_variant(variant_text, w, device);
  const LaunchPlan plan = variant.plan(w, device);
  jit::BuilderOptions options;
  options.cache_folder = testing_support::shared_cache();
  options.jobs = 1;
  jit::Builder builder(options);
  const jit::BuildOutcome built =
      builder.build({.device = DeviceKind::cpu, .arch = device.arch, .source = variant.unit(), .entry = plan.entry});
  if (!built.artifact) throw std::runtime_error(built.log);
  void* library = ::dlopen(built.artifact->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  auto* entry =
      reinterpret_cast<void (*)(const ForwardParams*, long long, void*)>(::dlsym(library, plan.entry.c_str()));

  const std::vector<std::byte> q = stored(w.dtype, c.q);
  const std::vector<std::byte> k = stored(w.dtype, c.k);
  const std::vector<std::byte> v = stored(w.dtype, c.v);
  std::vector<std::byte> o(q.size());
  Output output;
  output.lse.resize(static_cast<std::size_t>(w.batch * w.heads * w.len_q));
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes + 64));
  std::vector<unsigned> semaphores(static_cast<std::size_t>(plan.semaphores + 1), 0U);
  ForwardParams params{};
  params.q = q.data();
  params.k = k.data();
  params.v = v.data();
  params.o = o.data();
  params.lse = output.lse.data();
  params.workspace = workspace.data();
  params.semaphores = semaphores.data();
  params.q_strides = params.o_strides = {w.heads * w.len_q * w.dim, w.len_q * w.dim, w.dim};
  params.k_strides = params.v_strides = {w.heads_kv * w.len_k * w.dim, w.len_k * w.dim, w.dim};
  params.batch = static_cast<int>(w.batch);
  params.heads = static_cast<int>(w.heads);
  params.heads_kv = static_cast<int>(w.heads_kv);
  params.group_size = static_cast<int>(w.heads / w.heads_kv);
  params.len_q = static_cast<int>(w.len_q);
  params.len_k = static_cast<int>(w.len_k);
  params.right_offset = mask_bounds(w).right_offset;
  params.left_offset = mask_bounds(w).left_offset;
  params.scale = static_cast<float>(w.softmax_scale());
  if (cut == Cut::unseen_keys) params = trimmed(params, variant.problem.mask, static_cast<int>(size_of(w.dtype)));
  void* scratch = std::aligned_alloc(4096, static_cast<std::size_t>((plan.shared_bytes + 4095) / 4096 * 4096));
  std::memset(scratch, 0xff, static_cast<std::size_t>(plan.shared_bytes));
  const long long blocks = plan.grid[0];
  for (long long i = 0; i < blocks; ++i) entry(&params, order == Order::forwards ? i : blocks - 1 - i, scratch);
  for (const unsigned semaphore : semaphores) EXPECT_EQ(semaphore, 0U) << variant_text;
  std::free(scratch);
  ::dlclose(library);
  output.o.resize(c.q.size());
  for (std::size_t i = 0; i < output.o.size(); ++i) output.o[i] = load_element(w.dtype, o.data(), i);
  return output;
}

/// What the oracle says of the same tensors.
inline ReferenceRows expected(const Case& c) {
  const Workload& w = c.workload;
  const std::vector<std::byte> q = stored(w.dtype, c.q);
  const std::vector<std::byte> k = stored(w.dtype, c.k);
  const std::vector<std::byte> v = stored(w.dtype, c.v);
  const Strides queries{w.heads * w.len_q * w.dim, w.len_q * w.dim, w.dim};
  const Strides keys{w.heads_kv * w.len_k * w.dim, w.len_k * w.dim, w.dim};
  return reference_attention(w, {q.data(), k.data(), v.data(), queries, keys, keys}, all_rows(w), 1);
}

inline double tolerance(Dtype dtype) {
  return dtype == Dtype::fp32 ? 3e-5 : dtype == Dtype::fp16 ? 2e-3 : 1.6e-2;
}

/// Every number near the oracle's; where the oracle is not finite the output shows NaN or infinity too.
inline void expect_as_oracle(const Case& c, const Output& got, const std::string& what) {
  const ReferenceRows want = expected(c);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    const bool shown = std::isfinite(want.out[i]) ? std::abs(got.o[i] - want.out[i]) <= tolerance(c.workload.dtype)
                                                  : !std::isfinite(got.o[i]);
    if (!shown && wrong++ == 0)
      ADD_FAILURE() << what << ": row " << static_cast<std::int64_t>(i) / c.workload.dim << ", column "
                    << static_cast<std::int64_t>(i) % c.workload.dim << " is " << got.o[i] << ", not " << want.out[i];
  }
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    const bool shown = std::isnan(want.lse[i])   ? std::isnan(got.lse[i])
                       : std::isinf(want.lse[i]) ? got.lse[i] == want.lse[i] || std::isnan(got.lse[i])
                                                 : std::abs(got.lse[i] - want.lse[i]) <= 1e-3;
    if (!shown && wrong++ == 0)
      ADD_FAILURE() << what << ": lse " << i << " is " << got.lse[i] << ", not " << want.lse[i];
  }
  EXPECT_EQ(wrong, 0U) << what;
}

inline std::vector<float> row_of(const Case& c, const Output& output, std::int64_t row) {
  const auto first = output.o.begin() + row * c.workload.dim;
  return {first, first + c.workload.dim};
}

}  // namespace heed::cpu_launch
