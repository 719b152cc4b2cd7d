/// What tests of page pools share: programs of this processor, a pool with random keys, and attention over all of them
/// in double precision.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/random.hpp"
#include "device/device.hpp"
#include "dispatch/program_file.hpp"
#include "heed/offload.h"
#include "jit/build.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"
#include "workload/half.hpp"

namespace heed::testing_support {

/// A file with programs of fwd_cpu that have all features.
/// @param kinds element types and what is quantised, {"fp16", ":quantised=kv/e4m3/head"}; each for each of `masks`
inline std::string build_pool_programs(const std::vector<std::pair<const char*, const char*>>& kinds,
                                       const std::string& path, const char* config = "fwd_cpu:unit=vector",
                                       int dim = 16,
                                       const std::vector<const char*>& masks = {"", ":causal_top_left",
                                                                                ":window=9/3"}) {
  const DeviceFacts device = cpu_facts();
  jit::BuilderOptions options;
  options.cache_folder = shared_cache();
  options.jobs = 2;
  jit::Builder builder(options);
  dispatch::ProgramFileWriter writer("0123");
  std::vector<std::pair<dispatch::ProgramRecord, std::future<jit::BuildOutcome>>> builds;
  for (const auto& [dtype, quantised] : kinds)
    for (const char* mask : masks) {
      const Workload w =
          with_features(parse_workload(fmt::format("b1h2l33k50d{}:{}{}{}", dim, dtype, mask, quantised)), kAllFeatures);
      const Variant variant = parse_variant(config, w, device);
      dispatch::ProgramRecord record;
      record.arch = device.arch;
      record.workload = to_string(w);
      record.variant = describe(variant);
      builds.emplace_back(record, builder.start(jit::request_for(variant, w, device)));
    }
  for (auto& [record, build] : builds) {
    const jit::BuildOutcome outcome = build.get();
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
    writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
  }
  write_file_atomically(path, writer.bytes(), ErrorCode::store);
  return path;
}
/// Of pages in the element type of Q, fp32 and fp16; built once.
inline const std::string& pool_programs() {
  static TemporaryFolder folder;
  static const auto* const path =
      new std::string(build_pool_programs({{"fp32", ""}, {"fp16", ""}}, folder.file("heed.programs")));
  return *path;
}
/// Of pages in e4m3 and e5m2 beside Q in fp16, and in int8 beside Q in fp32; built once.
inline const std::string& eight_bit_programs() {
  static TemporaryFolder folder;
  static const auto* const path = new std::string(build_pool_programs(
      {{"fp16", ":quantised=kv/e4m3/head"}, {"fp16", ":quantised=kv/e5m2/head"}, {"fp32", ":quantised=kv/int8/head"}},
      folder.file("heed.programs")));
  return *path;
}

/// A pool of a simulated GPU with rates that are given, so that nothing is timed.
inline heed_offload_config pool_config(std::int64_t host_pages, std::int64_t device_pages, int dtype = HEED_FP32,
                                       const std::string& programs = pool_programs()) {
  heed_offload_config c;
  heed_offload_config_init(&c);
  c.dtype = dtype;
  c.heads = 4;
  c.heads_kv = 2;
  c.dim = c.dim_v = 16;
  c.page_size = 8;
  c.host_pages = host_pages;
  c.device_pages = device_pages;
  c.chunk_pages = std::min<std::int64_t>(2, host_pages);
  c.link_rate = 1e9;
  c.host_rate = 2e9;
  c.device_rate = 8e9;
  c.device_flops = 1e11;
  c.threads = 1;
  c.programs = programs.c_str();
  return c;
}

/// Factors of 2 layers of 2 heads, of keys and values of magnitudes up to 2: some of these are beyond the largest.
inline const float* scales_of(int dtype_kv, bool of_keys) {
  static const float kFp8[2][4] = {{0.0041F, 0.02F, 0.3F, 0.011F}, {0.013F, 0.0042F, 0.007F, 1.7F}};
  static const float kInt8[2][4] = {{0.016F, 0.013F, 0.03F, 0.017F}, {0.02F, 0.018F, 0.015F, 0.1F}};
  return (dtype_kv == HEED_INT8 ? kInt8 : kFp8)[of_keys ? 0 : 1];
}
/// A pool with pages of 8 bits: of e4m3 and e5m2 beside Q in fp16, of int8 beside Q in fp32.
/// @param count of factors: 1, 2 (heads) or 4 (of two layers)
inline heed_offload_config eight_bit_config(std::int64_t host_pages, std::int64_t device_pages, int dtype_kv,
                                            std::int64_t count) {
  heed_offload_config c =
      pool_config(host_pages, device_pages, dtype_kv == HEED_INT8 ? HEED_FP32 : HEED_FP16, eight_bit_programs());
  c.dtype_kv = dtype_kv;
  c.k_scales = scales_of(dtype_kv, true);
  c.v_scales = scales_of(dtype_kv, false);
  c.k_scale_count = c.v_scale_count = count;
  return c;
}

/// A heed_offload that ends with it.
struct Pool {
  explicit Pool(const heed_offload_config& c) : config(c) {
    EXPECT_EQ(heed_offload_create(&c, &pool), HEED_OK) << heed_last_error();
  }
  ~Pool() { heed_offload_destroy(pool); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  [[nodiscard]] std::int64_t add() const {
    std::int64_t id = 0;
    EXPECT_EQ(heed_offload_add(pool, &id), HEED_OK) << heed_last_error();
    return id;
  }
  [[nodiscard]] heed_offload_info info() const {
    heed_offload_info known;
    heed_offload_info_init(&known);
    EXPECT_EQ(heed_offload_get_info(pool, &known), HEED_OK) << heed_last_error();
    return known;
  }
  [[nodiscard]] std::string explain(const std::vector<std::int64_t>& ids = {}) const {
    std::string text(heed_offload_explain(pool, ids.data(), static_cast<std::int64_t>(ids.size()), nullptr, 0), '\0');
    heed_offload_explain(pool, ids.data(), static_cast<std::int64_t>(ids.size()), text.data(), text.size() + 1);
    return text;
  }
  heed_offload_config config;
  heed_offload* pool = nullptr;
};

/// Where tensors of calls lie: here in the host's memory, as those of a simulated GPU do.
struct PoolTensors {
  virtual ~PoolTensors() = default;
  /// The address of tensor `index` of a call, with these bytes.
  virtual void* put(std::size_t, std::vector<std::byte>& bytes) { return bytes.data(); }
  /// Waits for the call, and reads a tensor.
  virtual void get(std::size_t, std::vector<std::byte>&) {}
  virtual void* stream() { return nullptr; }
};

/// Sequences with keys of their own, which a pool is given step by step.
class PoolCase {
 public:
  PoolCase(const Pool& pool, std::vector<std::int64_t> ids, std::uint64_t seed, PoolTensors* tensors = nullptr)
      : c_(pool.config),
        pool_(pool.pool),
        ids_(std::move(ids)),
        random_(seed),
        tensors_(tensors == nullptr ? &here_ : tensors) {
    heed_offload_call_init(&call_);
  }

  heed_offload_call& call() { return call_; }

  /// New keys of every sequence, `rows` rows, and a call; @return its status
  heed_status run(int layer, std::int64_t new_keys, std::int64_t rows,
                  heed_status (*function)(heed_offload*, const heed_offload_call*, void*)) {
    const auto batch = static_cast<std::int64_t>(ids_.size());
    const auto draw = [&](std::int64_t count, float most) {
      std::vector<float> all(static_cast<std::size_t>(count));
      for (float& x : all)
        x = round_to(static_cast<Dtype>(c_.dtype), static_cast<float>(2 * random_.uniform() - 1) * most);
      return all;
    };
    k_ = draw(batch * c_.heads_kv * new_keys * c_.dim, 2);
    v_ = draw(batch * c_.heads_kv * new_keys * c_.dim_v, 2);
    q_ = draw(batch * c_.heads * rows * c_.dim, 2);
    sinks_ = draw(c_.heads, 2);
    o_.assign(static_cast<std::size_t>(batch * c_.heads * rows * c_.dim_v), 77);
    lse_.assign(static_cast<std::size_t>(batch * c_.heads * rows), 77);
    packed_ = {packed(k_), packed(v_), packed(q_), packed(o_), as_bytes(lse_), as_bytes(sinks_)};
    if (c_.dtype_kv != 0) {
      quantise(k_, packed_[0], c_.k_scales, c_.k_scale_count, layer, new_keys * c_.dim);
      quantise(v_, packed_[1], c_.v_scales, c_.v_scale_count, layer, new_keys * c_.dim_v);
      call_.dtype_kv = gives_eight_bits ? c_.dtype_kv : 0;
    }
    call_.layer = layer;
    call_.batch = batch;
    call_.sequences = ids_.data();
    call_.len_k = new_keys;
    call_.k = tensors_->put(0, packed_[0]);
    call_.v = tensors_->put(1, packed_[1]);
    call_.len_q = rows;
    call_.q = tensors_->put(2, packed_[2]);
    call_.o = tensors_->put(3, packed_[3]);
    call_.lse = static_cast<float*>(tensors_->put(4, packed_[4]));
    auto* const sinks = static_cast<const float*>(tensors_->put(5, packed_[5]));
    call_.sinks = has_sinks ? sinks : nullptr;
    const heed_status status = function(pool_, &call_, tensors_->stream());
    tensors_->get(3, packed_[3]);
    tensors_->get(4, packed_[4]);
    if (!lse_.empty()) std::memcpy(lse_.data(), packed_[4].data(), 4 * lse_.size());
    for (std::size_t i = 0; i < o_.size(); ++i)
      o_[i] = load_element(static_cast<Dtype>(c_.dtype), packed_[3].data(), i);
    if (status != HEED_OK) return status;
    for (std::int64_t b = 0; b < batch; ++b) {
      auto& [keys, values] = all_[{layer, ids_[static_cast<std::size_t>(b)]}];
      for (std::int64_t j = 0; j < new_keys; ++j)
        for (std::int64_t h = 0; h < c_.heads_kv; ++h) {
          const auto row = static_cast<std::size_t>((b * c_.heads_kv + h) * new_keys + j);
          const auto add = [row](std::vector<float>& to, const std::vector<float>& from, std::int64_t dim) {
            const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row) * dim;
            to.insert(to.end(), begin, begin + dim);
          };
          add(keys, k_, c_.dim);
          add(values, v_, c_.dim_v);
        }
    }
    return status;
  }

  /// Compares what the last call wrote with attention over all keys of its layer.
  void check(double tolerance) {
    const double worst = worst_error();
    ASSERT_LE(worst, tolerance) << "at " << where_;
  }

  /// The largest difference of O, and of the log-sum-exps less 1e-4, from those of attention over all keys.
  double worst_error() {
    double worst = 0;
    const auto compare = [&](double got, double expected, double allowed, const std::string& at) {
      const double error = got == expected ? 0 : std::abs(got - expected) - allowed;
      if (error <= worst) return;  // NaN is worse than any
      worst = std::isnan(error) ? INFINITY : error;
      where_ = fmt::format("{}: {} instead of {}", at, got, expected);
    };
    const auto rows = call_.len_q;
    const double scale = call_.scale > 0 ? call_.scale : 1 / std::sqrt(static_cast<double>(c_.dim));
    for (std::int64_t b = 0; b < call_.batch; ++b) {
      const auto& [keys, values] = all_[{call_.layer, ids_[static_cast<std::size_t>(b)]}];
      const std::int64_t count = static_cast<std::int64_t>(keys.size()) / (c_.heads_kv * c_.dim);
      for (std::int64_t h = 0; h < c_.heads; ++h)
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::int64_t kv = h / (c_.heads / c_.heads_kv);
          const auto row = static_cast<std::size_t>((b * c_.heads + h) * rows + i);
          const std::int64_t own = i + count - rows;
          std::vector<double> scores;
          double most = -INFINITY;
          for (std::int64_t j = 0; j < count; ++j) {
            double s = 0;
            for (std::int64_t d = 0; d < c_.dim; ++d)
              s += static_cast<double>(q_[row * static_cast<std::size_t>(c_.dim) + static_cast<std::size_t>(d)]) *
                   static_cast<double>(keys[static_cast<std::size_t>((j * c_.heads_kv + kv) * c_.dim + d)]);
            s *= scale;
            if (call_.softcap > 0) s = call_.softcap * std::tanh(s / call_.softcap);
            const bool sees =
                (call_.mask == HEED_MASK_NONE || j <= own) && (call_.window_left < 0 || j >= own - call_.window_left);
            scores.push_back(sees ? s : -INFINITY);
            most = std::max(most, scores.back());
          }
          const double sink = has_sinks ? sinks_[static_cast<std::size_t>(h)] : -INFINITY;
          most = std::max(most, sink);
          double sum = most == -INFINITY ? 0 : std::exp(sink - most);
          for (double& s : scores) {
            s = most == -INFINITY ? 0 : std::exp(s - most);
            sum += s;
          }
          for (std::int64_t d = 0; d < c_.dim_v; ++d) {
            double expected = 0;
            for (std::int64_t j = 0; j < count; ++j)
              expected += sum == 0 ? 0
                                   : scores[static_cast<std::size_t>(j)] / sum *
                                         static_cast<double>(
                                             values[static_cast<std::size_t>((j * c_.heads_kv + kv) * c_.dim_v + d)]);
            compare(o_[row * static_cast<std::size_t>(c_.dim_v) + static_cast<std::size_t>(d)], expected, 0,
                    fmt::format("entry {} head {} row {} column {} of {} keys", b, h, i, d, count));
          }
          compare(lse_[row], sum == 0 ? -INFINITY : most + std::log(sum), 1e-4,
                  fmt::format("log-sum-exp of entry {} head {} row {} of {} keys", b, h, i, count));
        }
    }
    return worst;
  }

  [[nodiscard]] const std::vector<float>& o() const { return o_; }
  bool has_sinks = false;
  bool gives_eight_bits = false;  ///< new keys of pages of 8 bits are quantised by the caller

 private:
  // Values become the numbers that pages of 8 bits have of them, and where the caller quantises, bytes its elements.
  void quantise(std::vector<float>& values, std::vector<std::byte>& bytes, const float* factors, std::int64_t count,
                int layer, std::int64_t of_head) const {
    const auto dtype = static_cast<Dtype>(c_.dtype_kv);
    std::vector<std::byte> elements(std::max<std::size_t>(1, values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t head = static_cast<std::int64_t>(i) / of_head % c_.heads_kv;
      const float factor = factors[(layer * c_.heads_kv + head) % count];
      store_element(dtype, elements.data(), i, values[i] / factor);
      values[i] = load_element(dtype, elements.data(), i) * factor;
    }
    if (gives_eight_bits) bytes = elements;
  }
  [[nodiscard]] static std::vector<std::byte> as_bytes(const std::vector<float>& values) {
    std::vector<std::byte> all(std::max<std::size_t>(4, 4 * values.size()));
    if (!values.empty()) std::memcpy(all.data(), values.data(), 4 * values.size());
    return all;
  }
  [[nodiscard]] std::vector<std::byte> packed(const std::vector<float>& values) const {
    const auto dtype = static_cast<Dtype>(c_.dtype);
    std::vector<std::byte> all(std::max<std::size_t>(1, values.size()) * (dtype == Dtype::fp32 ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) store_element(dtype, all.data(), i, values[i]);
    return all;
  }

  heed_offload_config c_;
  heed_offload* pool_;
  std::vector<std::int64_t> ids_;
  Random random_;
  PoolTensors here_;
  PoolTensors* tensors_;
  heed_offload_call call_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> q_;
  std::vector<float> sinks_;
  std::vector<float> o_;
  std::vector<float> lse_;
  std::string where_;
  std::vector<std::vector<std::byte>> packed_;
  std::map<std::pair<int, std::int64_t>, std::pair<std::vector<float>, std::vector<float>>> all_;
};

/// A context of random lengths in a pool of random places, given in random steps: decoding, prefills. A check fails for
/// a result that is not that of all keys.
/// @param given what is not drawn: the device, head dims, programs
/// @param tensors null: those of the host
inline void run_random_split(std::uint64_t seed, heed_offload_config given, PoolTensors* tensors, double tolerance) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end)));
  };
  heed_offload_config c = given;
  c.host_pages = 128;
  c.device_pages = below(40);
  c.layers = 1 + below(2);
  c.page_layout = below(2) == 0 ? HEED_PAGES_HND : HEED_PAGES_NHD;
  c.page_size = below(2) == 0 ? 8 : 16;
  c.sink_pages = below(3);
  c.chunk_pages = 1 + below(5);
  c.chunks = 1 + below(3);
  if (below(2) == 0) c.streamed_share = static_cast<double>(below(5)) / 4;
  if (c.device_type == HEED_CPU) c.link_latency = below(3) == 0 ? 20e-6 : 0;
  const Pool pool(c);
  ASSERT_NE(pool.pool, nullptr);
  std::vector<std::int64_t> ids;
  const std::int64_t batch = 1 + below(3);
  for (std::int64_t i = 0; i < batch; ++i) ids.push_back(pool.add());
  PoolCase one(pool, ids, seed, tensors);
  // A sequence that takes pages of the device, and later gives them to the others.
  const std::int64_t guest = pool.add();
  PoolCase other(pool, {guest}, seed + 1, tensors);
  const std::int64_t leaves_after = below(4);
  for (int layer = 0; layer < c.layers; ++layer)
    ASSERT_EQ(other.run(layer, 1 + below(60), 0, &heed_offload_append), HEED_OK) << heed_last_error();
  for (int step = 0; step < 4; ++step) {
    if (step == leaves_after) {
      ASSERT_EQ(heed_offload_remove(pool.pool, guest), HEED_OK);
    }
    one.call().mask = below(2) == 0 ? HEED_MASK_NONE : HEED_MASK_CAUSAL_BOTTOM_RIGHT;
    one.call().window_left = below(4) == 0 ? below(90) : -1;
    one.call().softcap = below(4) == 0 ? 3 : 0;
    one.has_sinks = below(4) == 0;
    const bool is_decoding = below(2) == 0;
    const std::int64_t keys = below(3) == 0 ? below(70) : 1 + below(4);
    const std::int64_t rows = is_decoding ? 1 + below(3) : 1 + below(20);
    if (c.dtype_kv != 0) one.gives_eight_bits = below(2) == 0;
    for (int layer = 0; layer < c.layers; ++layer) {
      const heed_status status = one.run(layer, keys, rows, is_decoding ? &heed_offload_decode : &heed_offload_prefill);
      ASSERT_EQ(status, HEED_OK) << heed_last_error();
      one.check(tolerance);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

/// 500, or as many as HEED_SPLITS says.
inline std::uint64_t splits_asked_for() {
  const char* const asked = std::getenv("HEED_SPLITS");
  return asked == nullptr ? 500 : std::strtoull(asked, nullptr, 10);
}

}  // namespace heed::testing_support
