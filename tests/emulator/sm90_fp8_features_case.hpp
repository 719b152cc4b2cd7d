/// One launch of fwd_sm90_fp8 with features on the emulated GPU, checked against double precision on the numbers that
/// it is given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "emulated_map.hpp"
#include "features_case.hpp"
#include "kernels/eight_bits.hpp"
#include "kernels/sm90/fp8/forward.cuh"
#include "testing.hpp"

namespace heed::sm90_fp8 {

using emulator::FeatureShape;
using emulator::kConstant;

constexpr Problem featured_fp8(Element element, int dim, MaskKind mask, const Features& features) {
  return {.element = element,
          .head_dim = dim,
          .mask = mask,
          .features = features,
          .inputs = {.quantised = true, .q = Element::e4m3, .k = Element::e4m3, .v = Element::e4m3}};
}

/// The numbers of Q, K and V in e4m3, with factors of heads, powers of two, so that 16 bits hold them too.
class Fp8FeatureCase : public emulator::FeatureCase {
 public:
  Fp8FeatureCase(const Problem& problem, const FeatureShape& shape, std::uint64_t seed)
      : FeatureCase(problem, shape, seed) {
    p_.q = quantised(q_, q_bytes_, 0.0625F);
    p_.k = quantised(k_, k_bytes_, 0.0625F);
    p_.v = quantised(v_, v_bytes_, 0.03125F);
    for (int h = 0; h < shape.heads; ++h) q_factors_.push_back(0.0625F);
    for (int h = 0; h < shape.heads_kv; ++h) {
      k_factors_.push_back(0.0625F);
      v_factors_.push_back(0.03125F);
    }
    p_.q_scales = factors(q_factors_);
    p_.k_scales = factors(k_factors_);
    p_.v_scales = factors(v_factors_);
  }

  /// As the launcher encodes them (lib/launch/tensor_map.cpp).
  [[nodiscard]] TensorMaps maps(const Config& config) const {
    const bool differ = p_.cu_seqlens_q != nullptr || p_.seqused_k != nullptr;
    int rows = differ ? p_.len_k : visible_keys(problem_.mask, p_.len_q - 1, p_.right_offset, p_.len_k);
    int batch = p_.batch;
    int box = config.block_n;
    if (p_.page_table != nullptr) {
      rows = p_.page_size;
      batch = p_.pages;
      box = rows_of_page_box(config, p_.page_size);
    } else if (p_.cu_seqlens_k != nullptr) {
      rows = p_.total_k;
      batch = 1;
    }
    TensorMaps maps{};
    const bool packed = p_.cu_seqlens_q != nullptr;
    encode(maps.q, p_.q, p_.q_strides, packed ? p_.total_q : p_.len_q, p_.heads, packed ? 1 : p_.batch, kWarpgroupRows);
    encode(maps.k, p_.k, p_.k_strides, std::max(1, rows), p_.heads_kv, batch, box);
    return maps;
  }

 private:
  using Bytes = std::vector<unsigned char>;

  static const void* quantised(emulator::Elements& numbers, Bytes& bytes, float factor) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double x = numbers.get(i);
      bytes.push_back(std::isnan(x) ? 0x7f : float_to_e4m3(static_cast<float>(x) / factor));
      if (!std::isnan(x)) numbers.set(i, e4m3_to_float(bytes.back()) * factor);
    }
    return bytes.data();
  }
  static TensorScales factors(const std::vector<float>& of_heads) {
    return {.at = of_heads.data(), .strides = {0, 1, 0}, .rows = 1, .channel = 0, .first_row = 0, .reserved = 0};
  }
  void encode(TensorMap& map, const void* from, const TensorStrides& s, int rows, int heads, int batch, int box) const {
    const emulator::EmulatedMap m{static_cast<const std::byte*>(from), {problem_.head_dim, rows, heads, batch},
                                  {1, s.row, s.head, s.batch},         box,
                                  box_columns(problem_.head_dim),      1};
    static_assert(sizeof(m) <= sizeof(map.opaque));
    std::memcpy(map.opaque, &m, sizeof(m));
  }

  /// Of probabilities of 4 digits each is off by up to 2^-4 of itself, to either side (sm90_fp8_test.cpp).
  [[nodiscard]] double allowed(double wanted, double size, double squares) const override {
    return std::min(0x1p-4 * size, 0.15 * std::sqrt(squares) + 1e-4 * size) +
           (problem_.element == Element::bf16 ? 0x1p-8 : 0x1p-10) * std::fabs(wanted) + 1e-6;
  }
  [[nodiscard]] double allowed_of_lse(double /*wanted*/) const override { return 2e-3; }

  Bytes q_bytes_, k_bytes_, v_bytes_;
  std::vector<float> q_factors_, k_factors_, v_factors_;
};

/// What is wrong with a launch whose parameters are changed; "" for nothing.
template <Config kConfig, Problem kProblem>
std::string said_of_features(const FeatureShape& shape, std::uint64_t seed, void (*change)(FeatureParams&) = nullptr) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10) == Illegal::no);
  Fp8FeatureCase problem(kProblem, shape, seed);
  FeatureParams params = problem.params();
  const TensorMaps maps = problem.maps(kConfig);
  if (change != nullptr) change(params);
  const int tiles = (shape.len_q + block_rows(kConfig) - 1) / block_rows(kConfig) * shape.heads * shape.batch;
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>(std::min(tiles, 3)), 1, 1};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  launch.resident = seed % 2 == 0 ? launch.grid.x : 1;
  unsigned semaphores[kSemaphores] = {};
  params.semaphores = semaphores;
  const long long room = workspace_bytes(kConfig, kProblem.head_dim, shape.len_k, shape.heads_kv, shape.batch);
  std::vector<unsigned char> workspace(static_cast<std::size_t>(room) + 32, 0x7f);
  auto* const begin =
      reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(&workspace[0]) + 15) / 16 * 16);
  params.workspace = begin;
  emulator::run(launch, [&](char* shared) { forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared); });
  for (const unsigned counter : semaphores)
    if (counter != 0) return "the next launch does not count from zero";
  if (std::any_of(begin + room, begin + room + 16, [](unsigned char x) { return x != 0x7f; }))
    return "it writes behind its workspace";
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_features(const FeatureShape& shape, std::uint64_t seed) {
  EXPECT_EQ((said_of_features<kConfig, kProblem>(shape, seed)), "")
      << "seed " << seed << ", lengths " << shape.len_q << " x " << shape.len_k;
}

}  // namespace heed::sm90_fp8
