// fwd_sm90_fp8 on the emulated GPU: head dims, masks, grouped heads, any lengths, scale factors, schedules.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.hpp"
#include "elements.hpp"
#include "kernels/eight_bits.hpp"
#include "kernels/sm90/fp8/forward.cuh"

namespace heed::sm90_fp8 {
namespace {

using emulator::kConstant;

enum class By { tensor, head, block, token, channel };

struct Fp8Shape {
  int batch = 1;
  int heads = 1;
  int heads_kv = 1;
  int len_q = 64;
  int len_k = 128;
  int right_offset = 0;
  int left_offset = 0;
  By by_q = By::head;
  By by_k = By::head;
  By by_v = By::head;
  int rows_q = 1;  // of a block of factors
  int rows_k = 1;
  bool heads_inner = false;
  int ctas = 2;
  bool with_lse = true;
  int nan_key = -1;               // of the first head
  bool zeros_times_much = false;  // Q is zeros, factors of Q and K have a product beyond fp32
};

constexpr Problem fp8_problem(Element element, int dim, MaskKind mask = MaskKind::none) {
  return {.element = element,
          .head_dim = dim,
          .mask = mask,
          .inputs = {.quantised = true, .q = Element::e4m3, .k = Element::e4m3, .v = Element::e4m3}};
}

// A launch and what double precision says of the numbers that it is given.
class Fp8Case {
 public:
  Fp8Case(const Problem& problem, const Fp8Shape& shape, std::uint64_t seed) : problem_(problem), s_(shape) {
    Random random(seed);
    const int d = problem.head_dim;
    params_.q_strides = fill(q_, s_.heads, s_.len_q, random);
    params_.k_strides = fill(k_, s_.heads_kv, s_.len_k, random);
    params_.v_strides = fill(v_, s_.heads_kv, s_.len_k, random);
    params_.o_strides = params_.q_strides;
    // Keys that no query sees may hold anything.
    const int seen = visible_keys(problem.mask, s_.len_q - 1, s_.right_offset, s_.len_k);
    for (int b = 0; b < s_.batch; ++b)
      for (int h = 0; h < s_.heads_kv; ++h)
        for (int j = seen; j < s_.len_k; ++j)
          for (int c = 0; c < d; ++c)
            k_[at(params_.k_strides, b, h, j, c)] = v_[at(params_.v_strides, b, h, j, c)] = 0x7f;
    if (s_.nan_key >= 0) k_[at(params_.k_strides, 0, 0, s_.nan_key, 5)] = 0x7f;
    o_ = emulator::Elements::untouched(problem.element,
                                       static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q * d) + 64);
    lse_.assign(static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q), NAN);
    params_.q = q_.data();
    params_.k = k_.data();
    params_.v = v_.data();
    params_.o = o_.data();
    params_.lse = s_.with_lse ? lse_.data() : nullptr;
    params_.batch = s_.batch;
    params_.heads = s_.heads;
    params_.heads_kv = s_.heads_kv;
    params_.group_size = s_.heads / s_.heads_kv;
    params_.len_q = s_.len_q;
    params_.len_k = s_.len_k;
    params_.right_offset = s_.right_offset;
    params_.left_offset = s_.left_offset;
    params_.scale = 1 / std::sqrt(static_cast<float>(d));
    params_.lse_head = s_.len_q;
    params_.lse_batch = s_.heads * s_.len_q;
    params_.q_scales = factors(q_factors_, s_.by_q, s_.rows_q, s_.heads, s_.len_q, random);
    params_.k_scales = factors(k_factors_, s_.by_k, s_.rows_k, s_.heads_kv, s_.len_k, random);
    params_.v_scales = factors(v_factors_, s_.by_v, 1, s_.heads_kv, s_.len_k, random);
    if (!s_.zeros_times_much) return;
    std::fill(q_.begin(), q_.end(), 0);
    std::fill(q_factors_.begin(), q_factors_.end(), 1e30F);
    std::fill(k_factors_.begin(), k_factors_.end(), 1e30F);
  }

  FeatureParams& params() { return params_; }

  [[nodiscard]] TensorMaps maps(int block_n) const {
    TensorMaps maps{};
    const int seen = visible_keys(problem_.mask, s_.len_q - 1, s_.right_offset, s_.len_k);
    encode(maps.q, q_, params_.q_strides, s_.len_q, s_.heads, kWarpgroupRows);
    encode(maps.k, k_, params_.k_strides, std::max(1, seen), s_.heads_kv, block_n);
    return maps;
  }

  /// What is wrong with the output; "" for nothing. Of probabilities of 4 digits each is off by up to 2^-4 of itself.
  [[nodiscard]] std::string difference() const {
    const int d = problem_.head_dim;
    for (int b = 0; b < s_.batch; ++b)
      for (int h = 0; h < s_.heads; ++h)
        for (int r = 0; r < s_.len_q; ++r) {
          const int kv = h / params_.group_size;
          const int begin = hidden_keys(problem_.mask, r, s_.left_offset, s_.len_k);
          const int end = visible_keys(problem_.mask, r, s_.right_offset, s_.len_k);
          const double q_factor = q_factors_[static_cast<std::size_t>(scale_index(params_.q_scales, b, h, r))];
          std::vector<double> p;
          double most = -INFINITY;
          for (int j = begin; j < end; ++j) {
            double dot = 0;
            for (int c = 0; c < d; ++c)
              dot += static_cast<double>(e4m3_to_float(q_[at(params_.q_strides, b, h, r, c)])) *
                     static_cast<double>(e4m3_to_float(k_[at(params_.k_strides, b, kv, j, c)]));
            const double k_factor = k_factors_[static_cast<std::size_t>(scale_index(params_.k_scales, b, kv, j))];
            p.push_back(dot * q_factor * k_factor * static_cast<double>(params_.scale));
            most = std::max(most, p.back());
          }
          double sum = 0;
          for (double& x : p) sum += x = std::exp(x - most);
          for (int c = 0; c < d; ++c) {
            double expected = 0;
            double size = 0;
            double squares = 0;
            const double v_factor = v_factors_[static_cast<std::size_t>(scale_index(params_.v_scales, b, kv, 0) +
                                                                        c * params_.v_scales.channel)];
            for (int j = begin; j < end; ++j) {
              const double term = p[static_cast<std::size_t>(j - begin)] / sum * v_factor *
                                  static_cast<double>(e4m3_to_float(v_[at(params_.v_strides, b, kv, j, c)]));
              expected += term;
              size += std::fabs(term);
              squares += term * term;
            }
            const double got = o_.get(at(params_.o_strides, b, h, r, c));
            // Rounding errors are of either sign: six of their standard deviations, 2^-4 / sqrt(12).. of each.
            const double allowed = std::min(0x1p-4 * size, 0.15 * std::sqrt(squares) + 1e-4 * size) +
                                   (problem_.element == Element::bf16 ? 0x1p-8 : 0x1p-10) * std::fabs(expected) + 1e-6;
            if (!(std::fabs(expected - got) <= allowed))
              return fmt::format("batch {} head {} row {} column {}: {} instead of {} within {}", b, h, r, c, got,
                                 expected, allowed);
          }
          if (!s_.with_lse) continue;
          const double lse = begin < end ? most + std::log(sum) : -INFINITY;
          const double got = lse_[static_cast<std::size_t>((b * s_.heads + h) * s_.len_q + r)];
          if (!(got == lse || std::fabs(got - lse) < 2e-3))
            return fmt::format("log-sum-exp of batch {} head {} row {}: {} instead of {}", b, h, r, got, lse);
        }
    for (std::size_t i = o_.size() - 64; i < o_.size(); ++i)
      if (!o_.is_untouched(i)) return "it writes behind its output";
    return {};
  }

 private:
  [[nodiscard]] TensorStrides fill(std::vector<unsigned char>& to, int heads, int rows, Random& random) const {
    const long long d = problem_.head_dim;
    to.resize(static_cast<std::size_t>(s_.batch * heads * rows * d));
    for (unsigned char& x : to) x = float_to_e4m3(static_cast<float>(random.normal()) * 16);
    if (s_.heads_inner) return {rows * heads * d, d, heads * d};
    return {heads * rows * d, rows * d, d};
  }
  [[nodiscard]] static std::size_t at(const TensorStrides& s, int b, int h, int r, int c) {
    return static_cast<std::size_t>(b * s.batch + h * s.head + r * s.row + c);
  }
  // Each around 1/16, so that numbers are of N(0, 1).
  TensorScales factors(std::vector<float>& to, By by, int rows, int heads, int len, Random& random) const {
    const int blocks = by == By::block || by == By::token ? (len + rows - 1) / rows : 1;
    const int columns = by == By::channel ? problem_.head_dim : 1;
    const bool each_head = by != By::tensor;
    to.resize(static_cast<std::size_t>(each_head ? s_.batch * heads * blocks * columns : 1));
    for (float& x : to) x = static_cast<float>((0.75 + 0.75 * random.uniform()) / 16);
    const int all = blocks * columns;
    return {.at = to.data(),
            .strides = {each_head ? heads * all : 0, each_head ? all : 0, blocks > 1 ? 1 : 0},
            .rows = rows,
            .channel = by == By::channel ? 1 : 0,
            .first_row = 0,
            .reserved = 0};
  }
  void encode(TensorMap& map, const std::vector<unsigned char>& from, const TensorStrides& s, int rows, int heads,
              int box_rows) const {
    const emulator::EmulatedMap m{reinterpret_cast<const std::byte*>(from.data()),
                                  {problem_.head_dim, rows, heads, s_.batch},
                                  {1, s.row, s.head, s.batch},
                                  box_rows,
                                  box_columns(problem_.head_dim),
                                  1};
    static_assert(sizeof(m) <= sizeof(map.opaque));
    std::memcpy(map.opaque, &m, sizeof(m));
  }

  Problem problem_;
  Fp8Shape s_;
  std::vector<unsigned char> q_, k_, v_;
  std::vector<float> q_factors_, k_factors_, v_factors_, lse_;
  emulator::Elements o_;
  FeatureParams params_{};
};

template <Config kConfig, Problem kProblem>
std::string said_of(const Fp8Shape& shape, std::uint64_t seed, void (*change)(FeatureParams&) = nullptr) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10) == Illegal::no);
  Fp8Case problem(kProblem, shape, seed);
  const FeatureParams right = problem.params();
  if (change != nullptr) change(problem.params());
  const TensorMaps maps = problem.maps(kConfig.block_n);
  const int tiles = (shape.len_q + block_rows(kConfig) - 1) / block_rows(kConfig) * shape.heads * shape.batch;
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>(std::min(tiles, shape.ctas)), 1, 1};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  launch.resident = seed % 2 == 0 ? launch.grid.x : 1;
  unsigned semaphores[kSemaphores] = {};
  FeatureParams params = problem.params();
  params.semaphores = semaphores;
  std::vector<unsigned char> workspace(
      static_cast<std::size_t>(workspace_bytes(kConfig, kProblem.head_dim, shape.len_k, shape.heads_kv, shape.batch)) +
          16,
      0x7f);
  params.workspace = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 15) / 16 * 16);
  emulator::run(launch, [&](char* shared) { forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared); });
  for (const unsigned counter : semaphores)
    if (counter != 0) return "the next launch does not count from zero";
  problem.params() = right;
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_fp8(const Fp8Shape& shape, std::uint64_t seed) {
  EXPECT_EQ((said_of<kConfig, kProblem>(shape, seed)), "")
      << "seed " << seed << " lengths " << shape.len_q << " x " << shape.len_k;
}

constexpr Problem kHalf64 = fp8_problem(Element::fp16, 64);
constexpr Problem kHalf128 = fp8_problem(Element::fp16, 128);
constexpr Problem kBrain256 = fp8_problem(Element::bf16, 256);
constexpr Problem kCausal64 = fp8_problem(Element::bf16, 64, MaskKind::causal);
constexpr Problem kCausal128 = fp8_problem(Element::fp16, 128, MaskKind::causal);
constexpr Problem kCausal256 = fp8_problem(Element::fp16, 256, MaskKind::causal);
constexpr Problem kWindow128 = fp8_problem(Element::bf16, 128, MaskKind::window);

TEST(EmulatedSm90Fp8, LengthsAndHeadDims) {
  run_fp8<Config{}, kHalf128>({}, 1);
  for (const int len_k : {1, 31, 127, 129, 300})
    run_fp8<Config{}, kHalf128>({.len_q = 130, .len_k = len_k}, 2 + static_cast<std::uint64_t>(len_k));
  run_fp8<Config{.m_warpgroups = 3, .block_n = 128}, kHalf64>({.len_q = 200, .len_k = 333}, 3);
  run_fp8<Config{.block_n = 224}, kHalf64>({.len_q = 70, .len_k = 449}, 4);
  run_fp8<Config{.block_n = 96}, kBrain256>({.len_q = 129, .len_k = 200}, 5);
  run_fp8<Config{.m_warpgroups = 1, .block_n = 64, .stages = 3}, kBrain256>({.len_q = 33, .len_k = 250}, 6);
}

TEST(EmulatedSm90Fp8, MasksAndGroupedHeads) {
  run_fp8<Config{}, kCausal128>(
      {.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 200, .len_k = 330, .right_offset = 130, .heads_inner = true}, 7);
  run_fp8<Config{.block_n = 192}, kCausal64>({.heads = 3, .heads_kv = 1, .len_q = 300, .len_k = 300, .ctas = 5}, 8);
  run_fp8<Config{.block_n = 64}, kCausal256>({.len_q = 100, .len_k = 90, .right_offset = -10}, 9);
  for (const int left : {-40, -3, 0})
    run_fp8<Config{.block_n = 64}, kWindow128>(
        {.heads = 2, .heads_kv = 2, .len_q = 300, .len_k = 340, .right_offset = 41, .left_offset = left}, 10);
  run_fp8<Config{}, kWindow128>({.len_q = 300, .len_k = 200, .right_offset = -30, .left_offset = -60}, 11);
}

TEST(EmulatedSm90Fp8, SchedulesAndStages) {
  constexpr Config kTurns{
      .block_n = 64, .stages = 3, .q_stages = 2, .pingpong = Pingpong::on, .tile_order = TileOrder::lpt_l2};
  run_fp8<kTurns, kCausal128>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 400, .len_k = 400, .ctas = 3}, 12);
  constexpr Config kThree{.m_warpgroups = 3, .block_n = 96, .stages = 1, .pingpong = Pingpong::on};
  run_fp8<kThree, kHalf64>({.heads = 3, .heads_kv = 3, .len_q = 400, .len_k = 400, .ctas = 2}, 13);
  constexpr Config kFour{.m_warpgroups = 4, .block_n = 64, .pingpong = Pingpong::on};
  run_fp8<kFour, kHalf64>({.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 330, .ctas = 2}, 26);
  constexpr Config kBoth{.block_n = 96, .pingpong = Pingpong::on, .exp2 = Exp2::poly_quarter, .promote_every = 1};
  run_fp8<kBoth, kCausal128>({.len_q = 200, .len_k = 400, .right_offset = 200}, 27);
  constexpr Config kPromoting{.block_n = 64, .promote_every = 2};
  run_fp8<kPromoting, kCausal128>({.len_q = 200, .len_k = 400, .right_offset = 200}, 20);
  run_fp8<kPromoting, kCausal64>(
      {.heads = 2, .heads_kv = 1, .len_q = 200, .len_k = 600, .right_offset = -20, .ctas = 2}, 21);
  constexpr Config kEachTile{.m_warpgroups = 1, .block_n = 64, .promote_every = 1};
  run_fp8<kEachTile, kBrain256>({.len_q = 70, .len_k = 300}, 22);
  run_fp8<kEachTile, kWindow128>({.len_q = 300, .len_k = 340, .right_offset = 41, .left_offset = -90}, 23);
  constexpr Config kPolynomial{.exp2 = Exp2::poly_quarter};
  run_fp8<kPolynomial, kCausal128>({.len_q = 130, .len_k = 300, .right_offset = 170, .with_lse = false}, 14);
  run_fp8<Config{}, kHalf128>({.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 260, .len_k = 500, .ctas = 4}, 15);
}

TEST(EmulatedSm90Fp8, EveryGranularity) {
  for (const By q : {By::tensor, By::head, By::token})
    run_fp8<Config{}, kHalf128>({.batch = 2, .heads = 2, .heads_kv = 1, .len_k = 200, .by_q = q, .by_k = By::tensor},
                                16);
  run_fp8<Config{.block_n = 64}, kCausal128>({.len_q = 200,
                                              .len_k = 500,
                                              .right_offset = 300,
                                              .by_q = By::block,
                                              .by_k = By::block,
                                              .by_v = By::channel,
                                              .rows_q = 48,
                                              .rows_k = 128},
                                             17);
  run_fp8<Config{}, kBrain256>({.heads = 2, .heads_kv = 2, .by_k = By::block, .by_v = By::tensor, .rows_k = 128}, 18);
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm90Fp8, WrongFactorsShow) {
  constexpr Fp8Shape kShape{.heads = 2,
                            .heads_kv = 2,
                            .len_k = 500,
                            .by_q = By::block,
                            .by_k = By::block,
                            .by_v = By::channel,
                            .rows_q = 32,
                            .rows_k = 128};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of<Config{}, kHalf128>(kShape, 19, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.rows = 256; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.v_scales.channel = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.v_scales.strides.head = 0; }), "");
}

// NaN in a key makes all rows that see it NaN, wherever it lies and however exponentials are taken.
TEST(EmulatedSm90Fp8, NanOfAKeyShows) {
  constexpr Config kPolynomial{.block_n = 64, .exp2 = Exp2::poly_half};
  for (const int key : {0, 1, 66, 129}) {
    const Fp8Shape shape{.len_q = 64, .len_k = 130, .nan_key = key};
    EXPECT_THAT((said_of<kPolynomial, kHalf64>(shape, 28)), ::testing::HasSubstr("row 0 column 0: nan instead of"));
    EXPECT_THAT((said_of<Config{.block_n = 64}, kHalf64>(shape, 28)), ::testing::HasSubstr("row 0 column 0: nan"));
  }
}

// Scores beyond fp32 show; zeros stay zeros beside factors whose product is beyond it.
TEST(EmulatedSm90Fp8, FactorsBeyondFp32) {
  const auto said = [](void (*change)(FeatureParams&)) {
    return said_of<Config{}, kHalf64>({.len_q = 64, .len_k = 130}, 24, change);
  };
  EXPECT_THAT(said([](FeatureParams& p) { p.scale = 1e38F; }), ::testing::HasSubstr("nan instead of"));
  run_fp8<Config{}, kHalf64>({.len_k = 130, .zeros_times_much = true}, 25);
}

}  // namespace
}  // namespace heed::sm90_fp8
