/// Heads of a layer of MiniLM (tests/cases/minilm) as a launch of an emulated kernel, and what the launch left: within
/// the gate's limits, and how many times as far off as the unfused computation on the same inputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "simt.hpp"
#include "tensors/tensor_file.hpp"
#include "testing.hpp"
#include "verify/against_unfused.hpp"
#include "verify/given_features.hpp"
#include "verify/scenario.hpp"
#include "worker/protocol.hpp"

namespace heed::emulator {

class MinilmLayer {
 public:
  /// Rows of 32 with as many zeros behind them, as the library copies them for families without such a head dim.
  static constexpr int kDim = 64;
  /// Heads of layer 0 whose scores are furthest apart.
  inline static const std::vector<std::int64_t> kPeaked = {2, 5};

  MinilmLayer(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& heads)
      : MinilmLayer(name,
                    read_qkv_safetensors(
                        std::string(testing_support::kSourceFolder) + "/tests/cases/minilm/" + name + ".safetensors",
                        Layout::bhld),
                    dtype, heads) {}

  /// Drawn inputs in their place, of a class of the gate.
  MinilmLayer(verify::InputClass inputs, const Workload& workload, std::uint64_t seed)
      : name_(verify::to_string(inputs)), scenario_(workload, verify::make_inputs(workload, inputs, seed)) {
    place();
  }
  // Parameters point into the image.
  MinilmLayer(const MinilmLayer&) = delete;
  MinilmLayer& operator=(const MinilmLayer&) = delete;

  [[nodiscard]] FeatureParams& params() { return params_; }

  /// As the launcher encodes them: lib/launch/tensor_map.cpp.
  [[nodiscard]] TensorMaps maps(int q_rows, int k_rows, int v_rows, int o_rows = 0, int o_columns = 64) const {
    TensorMaps maps{};
    encode(maps.q, params_.q, params_.q_strides, params_.len_q, q_rows, 64);
    encode(maps.k, params_.k, params_.k_strides, params_.len_k, k_rows, 64);
    encode(maps.v, params_.v, params_.v_strides, params_.len_k, v_rows, 64);
    if (o_rows > 0) encode(maps.o, params_.o, params_.o_strides, params_.len_q, o_rows, o_columns);
    return maps;
  }

  /// Compares with double precision. @returns errors as multiples of the unfused computation's
  [[nodiscard]] verify::AgainstUnfused check() {
    std::copy_n(base_, scenario_.after.size(), scenario_.after.begin());
    const verify::Comparison comparison = scenario_.compare();
    EXPECT_EQ(comparison.finding, Finding::none) << name_ << ": " << comparison.text;
    verify::CheckResult check;
    check.name = verify::kGivenTensors;
    check.has_errors = true;
    check.error = comparison.error;
    check.unfused = scenario_.reference.unfused;
    const auto times = verify::against_unfused(scenario_.scene.workload(), check);
    EXPECT_TRUE(times);
    return times.value_or(verify::AgainstUnfused{});
  }

 private:
  MinilmLayer(const std::string& name, const QkvTensors& tensors, Dtype dtype, const std::vector<std::int64_t>& heads)
      : name_(name), scenario_(workload_of(tensors, dtype, heads), values_of(tensors, heads)) {
    place();
  }

  void place() {
    scenario_.hard_limit = false;  // which is of N(0,1)
    image_.resize(scenario_.scene.image().size() + 256);
    base_ = image_.data() + (256 - reinterpret_cast<std::uintptr_t>(image_.data()) % 256);
    std::copy(scenario_.scene.image().begin(), scenario_.scene.image().end(), base_);
    params_ = worker::resolve(scenario_.scene.launch(), reinterpret_cast<std::uintptr_t>(base_));
  }

  static Workload workload_of(const QkvTensors& tensors, Dtype dtype, const std::vector<std::int64_t>& heads) {
    Workload w = tensors.workload;
    w.dtype = dtype;
    w.heads = w.heads_kv = static_cast<std::int64_t>(heads.size());
    w.scale = 1 / std::sqrt(static_cast<double>(w.dim));
    w.dim = w.dim_v = kDim;
    return w;
  }
  static verify::InputValues values_of(const QkvTensors& tensors, const std::vector<std::int64_t>& heads) {
    verify::InputValues values = verify::values_of(tensors);
    const Workload& w = tensors.workload;
    for (verify::Values* tensor : {&values.q, &values.k, &values.v}) {
      verify::Values some(heads.size() * static_cast<std::size_t>(w.len_q * kDim));
      std::fill(some.begin(), some.end(), 0.0F);
      auto to = some.begin();
      for (const std::int64_t head : heads)
        for (std::int64_t row = 0; row < w.len_q; ++row, to += kDim)
          std::copy_n(tensor->begin() + (head * w.len_q + row) * w.dim, w.dim, to);
      tensor->swap(some);
    }
    return values;
  }
  void encode(TensorMap& map, const void* at, const TensorStrides& s, int rows, int box_rows, int box_columns) const {
    const EmulatedMap m{static_cast<const std::byte*>(at),
                        {kDim, rows, params_.heads, params_.batch},
                        {1, s.row, s.head, s.batch},
                        box_rows,
                        box_columns};
    static_assert(sizeof(m) <= sizeof(map.opaque));
    std::memcpy(map.opaque, &m, sizeof(m));
  }

  std::string name_;
  verify::Scenario scenario_;
  std::vector<std::byte> image_;
  std::byte* base_ = nullptr;
  FeatureParams params_{};
};

/// Whether a layer keeps to the bar, with its multiples where it does not.
inline ::testing::AssertionResult within_the_bar(const verify::AgainstUnfused& times) {
  return (times.is_within() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
         << "max|error| " << times.max_abs << ", relative RMS " << times.rel_rms
         << " times those of the unfused computation";
}

}  // namespace heed::emulator
