#include "merge/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "compile/embedded.hpp"
#include "kernels/element.hpp"
#include "workload/half.hpp"

namespace heed::merge {

std::span<const compile::EmbeddedFile> device_sources();

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

float lse_of(const Partial& p, const RowPlace& at) {
  const int row = at.row - p.first_row;
  if (p.is_read == 0 || row < 0 || row >= p.rows) return kNothing;
  return p.lse[offset_of(p.lse_strides, at, row)];
}

}  // namespace

const std::string& merge_source() {
  static const std::string source = [] {
    compile::add_device_files(device_sources());
    return fmt::format(
        "#include \"lib/merge/merge_partials.cuh\"\n\n"
        "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ heed::merge::Merge merge) {{\n"
        "  heed::merge::merge_partials(merge);\n"
        "}}\n",
        kMergeThreads, kMergeEntry);
  }();
  return source;
}

Merge with_width(Merge m) {
  const auto fits = [&](const void* address, const TensorStrides& s, int element, long long batch, int rows) {
    const int bytes = bytes_of(static_cast<Element>(element));
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && (batch == 1 || s.batch * bytes % 16 == 0) &&
           (m.heads == 1 || s.head * bytes % 16 == 0) && (rows == 1 || s.row * bytes % 16 == 0);
  };
  bool wide = m.dim % kPieceElements == 0 && fits(m.o, m.o_strides, m.element, m.batch, m.rows);
  for (int i = 0; i < m.count; ++i) {
    const Partial& p = m.partials[i];
    wide = wide && (p.is_read == 0 || fits(p.o, p.o_strides, p.element, m.batch, p.rows));
  }
  m.is_wide = wide ? 1 : 0;
  return m;
}

void expect_merge(const Merge& m) {
  HEED_CHECK(m.count >= 1 && m.count <= kMostPartials);
  HEED_CHECK(m.dim >= 1 && m.dim <= kMostDim);
  HEED_CHECK(m.batch >= 0 && m.heads >= 0 && m.rows >= 0);
}

void merge_on_host(const Merge& m) {
  expect_merge(m);
  std::vector<float> out(static_cast<std::size_t>(m.dim));
  for (long long index = 0; index < m.batch * m.heads * m.rows; ++index) {
    const RowPlace at = place_of(m, index);
    const float sink = m.sinks == nullptr ? kNothing : m.sinks[at.head];
    float largest = sink;
    bool is_nan = std::isnan(sink);
    for (int i = 0; i < m.count; ++i) {
      const float lse = lse_of(m.partials[i], at);
      is_nan = is_nan || std::isnan(lse);
      largest = std::max(largest, lse);
    }
    if (is_nan) largest = std::numeric_limits<float>::quiet_NaN();
    float sum = sink == kNothing ? 0 : std::exp(sink - largest);
    std::fill(out.begin(), out.end(), 0.0F);
    for (int i = 0; i < m.count; ++i) {
      const Partial& p = m.partials[i];
      const float lse = lse_of(p, at);
      if (lse == kNothing) continue;
      const float weight = std::exp(lse - largest);
      sum += weight;
      const auto offset = static_cast<std::size_t>(offset_of(p.o_strides, at, at.row - p.first_row));
      for (std::size_t c = 0; c < out.size(); ++c)
        out[c] += weight * load_element(static_cast<Dtype>(p.element), p.o, offset + c);
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;
    const auto offset = static_cast<std::size_t>(offset_of(m.o_strides, at, at.row));
    for (std::size_t c = 0; c < out.size(); ++c)
      store_element(static_cast<Dtype>(m.element), m.o, offset + c, out[c] * inverse);
    if (m.lse != nullptr) m.lse[offset_of(m.lse_strides, at, at.row)] = sum == 0 ? kNothing : largest + std::log(sum);
  }
}

static_assert(static_cast<int>(Element::fp16) == static_cast<int>(Dtype::fp16) &&
              static_cast<int>(Element::bf16) == static_cast<int>(Dtype::bf16) &&
              static_cast<int>(Element::fp32) == static_cast<int>(Dtype::fp32));

}  // namespace heed::merge
