// fwd_cpu, built as a trial builds it and called block by block, against the oracle: what NaN, infinity and scores
// beyond fp32 must show, and where they must not.
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

namespace heed {
namespace {

using ::testing::Each;
using testing_support::shared_cache;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

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

std::vector<std::byte> stored(Dtype dtype, const std::vector<float>& values) {
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

/// One launch of a variant, all its blocks one after another on this thread.
Output launch(const std::string& variant_text, const Case& c, Cut cut = Cut::unseen_keys) {
  const Workload& w = c.workload;
  const DeviceFacts device = cpu_facts();
  const Variant variant = parse_variant(variant_text, w, device);
  const LaunchPlan plan = variant.plan(w, device);
  jit::BuilderOptions options;
  options.cache_folder = shared_cache();
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
  for (long long block = 0; block < plan.grid[0]; ++block) entry(&params, block, scratch);
  std::free(scratch);
  ::dlclose(library);
  output.o.resize(c.q.size());
  for (std::size_t i = 0; i < output.o.size(); ++i) output.o[i] = load_element(w.dtype, o.data(), i);
  return output;
}

/// What the oracle says of the same tensors.
ReferenceRows expected(const Case& c) {
  const Workload& w = c.workload;
  const std::vector<std::byte> q = stored(w.dtype, c.q);
  const std::vector<std::byte> k = stored(w.dtype, c.k);
  const std::vector<std::byte> v = stored(w.dtype, c.v);
  const Strides queries{w.heads * w.len_q * w.dim, w.len_q * w.dim, w.dim};
  const Strides keys{w.heads_kv * w.len_k * w.dim, w.len_k * w.dim, w.dim};
  return reference_attention(w, {q.data(), k.data(), v.data(), queries, keys, keys}, all_rows(w), 1);
}

double tolerance(Dtype dtype) {
  return dtype == Dtype::fp32 ? 3e-5 : dtype == Dtype::fp16 ? 2e-3 : 1.6e-2;
}

/// Every number near the oracle's; where the oracle is not finite the output shows NaN or infinity too.
void expect_as_oracle(const Case& c, const Output& got, const std::string& what) {
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

std::vector<float> row_of(const Case& c, const Output& output, std::int64_t row) {
  const auto first = output.o.begin() + row * c.workload.dim;
  return {first, first + c.workload.dim};
}

class CpuKernel : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] std::string dtype() const { return std::string(":") + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CpuKernel, ::testing::Values("fp32", "fp16", "bf16"));

TEST_P(CpuKernel, NanInAQueryShowsInItsRowAlone) {
  Case c("b1h2l70d40" + dtype());
  c.at(c.q, 33, 7) = kNan;
  const Output output = launch("fwd_cpu", c);
  expect_as_oracle(c, output, "NaN in a query");
  EXPECT_THAT(row_of(c, output, 33), Each(::testing::IsNan()));
  EXPECT_TRUE(std::isnan(output.lse[33]));
}

TEST_P(CpuKernel, NanInAVisibleKeyOrValueShowsInEveryRowThatSeesIt) {
  for (const bool in_key : {true, false}) {
    Case c("b1h1l70d40:causal_top_left" + dtype());
    c.at(in_key ? c.k : c.v, 15, 3) = kNan;
    const Output output = launch("fwd_cpu", c);
    expect_as_oracle(c, output, in_key ? "NaN in a key" : "NaN in a value");
    for (std::int64_t row = 0; row < 70; ++row) {
      EXPECT_EQ(std::isnan(output.o[static_cast<std::size_t>(row * 40 + 3)]), row >= 15) << row;
      EXPECT_EQ(std::isnan(output.lse[static_cast<std::size_t>(row)]), in_key && row >= 15) << row;
    }
  }
}

TEST_P(CpuKernel, InfinityIsAsInTheOracle) {
  for (const float infinite : {kInfinite, -kInfinite})
    for (const int tensor : {0, 1, 2}) {
      Case c("b1h1l40d64:causal_top_left" + dtype());
      c.at(tensor == 0 ? c.q : tensor == 1 ? c.k : c.v, 11, 20) = infinite;
      expect_as_oracle(c, launch("fwd_cpu", c), "infinity in tensor " + std::to_string(tensor));
    }
}

TEST_P(CpuKernel, WhatIsHiddenFromARowDoesNotReachIt) {
  for (const char* shape : {"b1h1l16d64", "b1h1l150k170d32", "b1h1l170k150d33"})
    for (const char* mask : {":causal_top_left", ":causal_bottom_right"}) {
      Case c(shape + std::string(mask) + dtype());
      for (std::int64_t d = 0; d < c.workload.dim; ++d) {
        c.at(c.k, c.workload.len_k - 1, d) = kNan;
        c.at(c.v, c.workload.len_k - 1, d) = kNan;
        c.at(c.v, c.workload.len_k / 2, d) = kInfinite;
        c.at(c.k, c.workload.len_k / 3, d) = kInfinite;
      }
      expect_as_oracle(c, launch("fwd_cpu", c), shape + std::string(mask));
    }
}

TEST_P(CpuKernel, RowsThatSeeNothingAreZeros) {
  const Case c("b1h2l50k20d24:causal_bottom_right" + dtype());
  const Output output = launch("fwd_cpu", c);
  expect_as_oracle(c, output, "rows without keys");
  EXPECT_THAT(row_of(c, output, 29), Each(0.0F));
  EXPECT_EQ(output.lse[29], -kInfinite);
}

TEST(CpuScores, BeyondFp32Show) {
  for (const char* text : {"b1h1l40d64:bf16", "b1h1l40d64:fp32"})
    for (const float sign : {1.0F, -1.0F}) {
      Case c(text);
      for (float& x : c.q) x = round_to(c.workload.dtype, 1e20F);
      for (float& x : c.k) x = round_to(c.workload.dtype, sign * 1e20F);
      const Output output = launch("fwd_cpu", c);
      for (const float x : output.o) EXPECT_FALSE(std::isfinite(x)) << text << " " << sign;
      for (const float x : output.lse) EXPECT_FALSE(std::isfinite(x)) << text << " " << sign;
    }
}

TEST_P(CpuKernel, EveryShapeIsWhatTheOracleSays) {
  for (const char* shape :
       {"b2h3l1d64", "b1h4hkv2l5k300d128", "b1h1l33k65d17", "b1h2l100d256", "b1h1l1k1d1", "b1h2l200d96"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right"}) {
      const Case c(shape + std::string(mask) + dtype());
      expect_as_oracle(c, launch("fwd_cpu", c), shape + std::string(mask));
    }
}

// Keys that nobody sees hold NaN, in front and at the end.
void poison_unseen(Case& c) {
  const KeyRange seen = c.workload.seen_keys();
  for (std::int64_t head = 0; head < c.workload.heads_kv; ++head)
    for (std::int64_t key = 0; key < c.workload.len_k; ++key)
      for (std::int64_t d = 0; d < c.workload.dim && !seen.contains(key); ++d)
        c.at(c.k, key, d, head) = c.at(c.v, key, d, head) = kNan;
}

TEST_P(CpuKernel, EveryWindowIsWhatTheOracleSays) {
  for (const char* shape : {"b1h2l200d64", "b1h4hkv2l5k300d40", "b1h1l33k265d17", "b1h2l300k70d32", "b1h3l1k500d64"})
    for (const char* mask :
         {"causal_bottom_right:window=0", "causal_bottom_right:window=30", "causal_top_left:window=64",
          "causal_bottom_right:window=129", "window=3/5", "window_top_left=70/1", "window=40", "window=-1/7"}) {
      Case c(shape + std::string(":") + mask + dtype());
      poison_unseen(c);
      const std::string what = to_string(c.workload);
      expect_as_oracle(c, launch("fwd_cpu", c), what);
      expect_as_oracle(c, launch("fwd_cpu", c, Cut::nothing), what + ", no key cut off");
    }
}

// A window's edges inside tiles, at their ends, and a tile between that no row of a group sees.
TEST_P(CpuKernel, EveryUnitComputesWindows) {
  for (const char* config :
       {"unit=vector,pack_gqa=off,block_n=32", "unit=vector,pack_gqa=off,tile_rows=12,block_m=256,block_n=16",
        "unit=matrix,block_m=64,block_n=32", "unit=matrix,block_m=32,pack_gqa=on,block_n=64",
        "unit=matrix,block_m=256,block_n=512,pack_gqa=on"}) {
    if (!cpu_facts().matrix_unit && std::string(config).find("matrix") != std::string::npos) continue;
    for (const char* shape : {"b2h6hkv2l170k250d80:causal_bottom_right:window=31", "b1h8hkv2l1k90d64:window=20/0",
                              "b1h4hkv1l9k140d33:window=64/3", "b1h2l150k130d32:causal_top_left:window=17"}) {
      Case c(shape + dtype());
      const std::int64_t last = c.workload.len_q - 1;
      c.at(c.v, c.workload.keys_of(last).begin, 2) = kNan;
      c.at(c.v, c.workload.keys_of(last / 2).begin, 3) = kInfinite;
      c.at(c.k, c.workload.keys_of(last / 3).end - 1, 1) = kNan;
      c.at(c.q, 0, 1) = kNan;
      expect_as_oracle(c, launch("fwd_cpu:" + std::string(config), c), shape + std::string(" ") + config);
    }
  }
}

TEST_P(CpuKernel, EveryUnitComputesTheSame) {
  for (const char* config : {"unit=vector,pack_gqa=off", "unit=vector,pack_gqa=off,tile_rows=12,block_m=256",
                             "unit=matrix,block_m=64,block_n=32", "unit=matrix,block_m=32,pack_gqa=on",
                             "unit=matrix,block_m=96,block_n=512,pack_gqa=on"})
    for (const char* shape :
         {"b2h6hkv2l70k150d80:causal_top_left", "b1h8hkv2l1k90d64", "b1h4hkv1l9k40d33:causal_bottom_right"}) {
      Case c(shape + dtype());
      if (!cpu_facts().matrix_unit && std::string(config).find("matrix") != std::string::npos) continue;
      c.at(c.v, c.workload.len_k - 1, 2) = kNan;
      c.at(c.q, 0, 1) = kNan;
      expect_as_oracle(c, launch("fwd_cpu:" + std::string(config), c), shape + std::string(" ") + config);
    }
}

}  // namespace
}  // namespace heed
