// fwd_sm80 with Q and K in int8 on the emulated GPU: every granularity of scale factors, masks, grouped heads, pages.
#include <fmt/format.h>

#include "kernels/attention/features.hpp"
#include "sm80_case.hpp"

namespace heed::sm80 {
namespace {

enum class By { tensor, head, block, token };

struct Int8Shape {
  int batch = 1;
  int heads = 2;
  int heads_kv = 1;
  int len_q = 70;
  int len_k = 100;
  int right_offset = 0;
  int left_offset = 0;
  By by_q = By::head;
  By by_k = By::head;
  int rows_q = 1;  // of a block of factors
  int rows_k = 1;
  int page_size = 0;
  int first_key = 0;  // TensorScales::first_row of K
};

constexpr Problem int8_problem(Element element, int dim, MaskKind mask, Features features = {}) {
  return {.element = element,
          .head_dim = dim,
          .mask = mask,
          .features = features,
          .inputs = {.quantised = true, .q = Element::int8, .k = Element::int8, .v = element}};
}

// A quantised launch and what double precision says of the numbers that it is given.
class Int8Case {
 public:
  Int8Case(const Problem& problem, const Int8Shape& shape, std::uint64_t seed) : problem_(problem), s_(shape) {
    Random random(seed);
    const int d = problem.head_dim;
    const int key_rows = s_.page_size > 0 ? pages() * s_.page_size : s_.batch * s_.len_k;
    const auto bytes = [&](std::vector<signed char>& to, std::size_t count) {
      to.resize(count);
      for (signed char& x : to) x = static_cast<signed char>(static_cast<int>(random.below(255)) - 127);
    };
    bytes(q_, static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q * d));
    bytes(k_, static_cast<std::size_t>(s_.heads_kv * key_rows * d));
    v_ = emulator::Elements(problem.element, static_cast<std::size_t>(s_.heads_kv * key_rows * d));
    for (std::size_t i = 0; i < v_.size(); ++i) v_.set(i, static_cast<float>(random.normal()));
    o_ = emulator::Elements::untouched(problem.element,
                                       static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q * d) + 64);
    lse_.assign(static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q), NAN);
    FeatureParams& p = params_;
    p = FeatureParams{};
    p.q = q_.data();
    p.k = k_.data();
    p.v = v_.data();
    p.o = o_.data();
    p.lse = lse_.data();
    p.batch = s_.batch;
    p.heads = s_.heads;
    p.heads_kv = s_.heads_kv;
    p.group_size = s_.heads / s_.heads_kv;
    p.len_q = s_.len_q;
    p.len_k = s_.len_k;
    p.right_offset = s_.right_offset;
    p.left_offset = s_.left_offset;
    p.scale = 1 / std::sqrt(static_cast<float>(d));
    p.q_strides = p.o_strides = {s_.heads * s_.len_q * d, s_.len_q * d, d};
    const int rows = s_.page_size > 0 ? s_.page_size : s_.len_k;
    p.k_strides = p.v_strides = {s_.heads_kv * rows * d, rows * d, d};
    p.lse_head = s_.len_q;
    p.lse_batch = s_.heads * s_.len_q;
    if (s_.page_size > 0) {
      // From the last page on.
      p.page_size = s_.page_size;
      p.pages = pages();
      p.page_table_batch = pages() / s_.batch;
      for (int i = 0; i < pages(); ++i) table_.push_back(pages() - 1 - i);
      p.page_table = table_.data();
    }
    p.q_scales = factors(q_factors_, s_.by_q, s_.rows_q, s_.batch, s_.heads, s_.len_q, random);
    p.k_scales = factors(k_factors_, s_.by_k, s_.rows_k, s_.page_size > 0 ? pages() : s_.batch, s_.heads_kv,
                         rows + s_.first_key, random);
    p.k_scales.first_row = s_.first_key;
    // Factors of keys that no row sees may be anything.
    const int seen = visible_keys(problem.mask, s_.len_q - 1, s_.right_offset, s_.len_k);
    if (s_.by_k == By::token && s_.page_size == 0)
      for (int b = 0; b < s_.batch; ++b)
        for (int h = 0; h < s_.heads_kv; ++h)
          for (int j = seen; j < s_.len_k; ++j)
            k_factors_[static_cast<std::size_t>(scale_index(p.k_scales, b, h, j))] = NAN;
  }

  FeatureParams& params() { return params_; }

  /// What is wrong with the output; "" for nothing.
  [[nodiscard]] std::string difference() const {
    const int d = problem_.head_dim;
    const auto key_place = [&](int b, int h, int j) {
      return static_cast<std::size_t>(h * params_.k_strides.head + key_offset(params_, params_.k_strides, b, j));
    };
    for (int b = 0; b < s_.batch; ++b)
      for (int h = 0; h < s_.heads; ++h)
        for (int r = 0; r < s_.len_q; ++r) {
          const int kv = h / params_.group_size;
          const int begin = hidden_keys(problem_.mask, r, s_.left_offset, s_.len_k);
          const int end = visible_keys(problem_.mask, r, s_.right_offset, s_.len_k);
          const double q_factor = q_factors_[static_cast<std::size_t>(scale_index(params_.q_scales, b, h, r))];
          const std::size_t row = static_cast<std::size_t>((b * s_.heads + h) * s_.len_q + r);
          std::vector<double> p;
          double most = -INFINITY, sum = 0;
          for (int j = begin; j < end; ++j) {
            int dot = 0;
            for (int c = 0; c < d; ++c)
              dot += q_[row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)] *
                     k_[key_place(b, kv, j) + static_cast<std::size_t>(c)];
            const double k_factor =
                k_factors_[static_cast<std::size_t>(key_scale_index(params_, params_.k_scales, b, kv, j))];
            p.push_back(dot * q_factor * k_factor * params_.scale);
            most = std::max(most, p.back());
          }
          for (double& x : p) sum += x = std::exp(x - most);
          for (int c = 0; c < d; ++c) {
            double expected = 0;
            for (int j = begin; j < end; ++j)
              expected += p[static_cast<std::size_t>(j - begin)] / sum *
                          v_.get(key_place(b, kv, j) + static_cast<std::size_t>(c));
            const double got = o_.get(row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c));
            if (!(std::fabs(expected - got) < emulator::largest_error(problem_.element, expected, 1)))
              return fmt::format("batch {} head {} row {} column {}: {} instead of {}", b, h, r, c, got, expected);
          }
          const double lse = begin < end ? most + std::log(sum) : -INFINITY;
          if (!(lse_[row] == lse || std::fabs(lse_[row] - lse) < 2e-3))
            return fmt::format("log-sum-exp of batch {} head {} row {}: {} instead of {}", b, h, r, lse_[row], lse);
        }
    for (std::size_t i = o_.size() - 64; i < o_.size(); ++i)
      if (!o_.is_untouched(i)) return "it writes behind its output";
    return {};
  }

 private:
  [[nodiscard]] int pages() const { return s_.batch * ((s_.len_k + s_.page_size - 1) / s_.page_size); }

  // Around what makes scores of deviation 2, each of its own.
  TensorScales factors(std::vector<float>& to, By by, int rows, int batch, int heads, int len, Random& random) const {
    const int blocks = by == By::block || by == By::token ? (len + rows - 1) / rows : 1;
    const bool each_head = by != By::tensor;
    to.resize(static_cast<std::size_t>(each_head ? batch * heads * blocks : 1));
    for (float& x : to) x = static_cast<float>(0.02 + 0.02 * random.uniform());
    return {
        .at = to.data(),
        .strides = {each_head ? heads * blocks : 0, each_head ? blocks : 0, by == By::tensor || by == By::head ? 0 : 1},
        .rows = rows,
        .channel = 0,
        .first_row = 0,
        .reserved = 0};
  }

  Problem problem_;
  Int8Shape s_;
  std::vector<signed char> q_, k_;
  std::vector<float> q_factors_, k_factors_, lse_;
  std::vector<int> table_;
  emulator::Elements v_, o_;
  FeatureParams params_;
};

template <Config kConfig, Problem kProblem>
std::string said_of(const Int8Shape& shape, std::uint64_t seed, void (*change)(FeatureParams&) = nullptr) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  Int8Case problem(kProblem, shape, seed);
  const FeatureParams right = problem.params();
  if (change != nullptr) change(problem.params());
  emulator::Launch launch;
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  emulator::run(launch, [&](char* shared) {
    Forward<emulator::kConstant<kConfig>, emulator::kConstant<kProblem>>(problem.params(), shared).run();
  });
  problem.params() = right;
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_int8(const Int8Shape& shape, std::uint64_t seed) {
  EXPECT_EQ((said_of<kConfig, kProblem>(shape, seed)), "") << "seed " << seed << " rows_k " << shape.rows_k;
}

constexpr Problem kInt8Half64 = int8_problem(Element::fp16, 64, MaskKind::none);
constexpr Problem kInt8Causal128 = int8_problem(Element::bf16, 128, MaskKind::causal);

TEST(EmulatedSm80Int8, EveryGranularity) {
  for (const By q : {By::tensor, By::head, By::token})
    run_int8<Config{}, kInt8Half64>({.batch = 2, .by_q = q, .by_k = q}, 1);
  // Tiles of one block, of two, and blocks smaller than a tile; those that begin before the launch's first key.
  for (const int rows : {128, 64, 48, 16, 7})
    run_int8<Config{.block_n = 32}, kInt8Half64>(
        {.len_k = 230, .by_q = By::block, .by_k = By::block, .rows_q = rows, .rows_k = rows}, 2);
  run_int8<Config{.block_n = 32}, kInt8Half64>(
      {.len_k = 230, .by_q = By::token, .by_k = By::block, .rows_k = 64, .first_key = 41}, 3);
}

TEST(EmulatedSm80Int8, MasksHeadDimsAndConfigs) {
  run_int8<Config{}, kInt8Causal128>(
      {.heads = 4, .heads_kv = 2, .len_q = 90, .len_k = 130, .right_offset = 10, .by_q = By::token, .by_k = By::token},
      4);
  constexpr Config kSplit{.block_m = 32,
                          .block_n = 32,
                          .warp_rows = 32,
                          .kv_groups = 2,
                          .stages = 3,
                          .q_in_registers = false,
                          .split_wait = true};
  run_int8<kSplit, kInt8Causal128>({.len_q = 50,
                                    .len_k = 300,
                                    .right_offset = 250,
                                    .by_q = By::block,
                                    .by_k = By::block,
                                    .rows_q = 16,
                                    .rows_k = 64},
                                   5);
  constexpr Config kStale{.overlap = true, .rescale = attention::Rescale::stale_tile};
  run_int8<kStale, kInt8Half64>({.len_q = 130, .len_k = 300, .by_q = By::block, .by_k = By::token, .rows_q = 32}, 6);
  constexpr Config kStages{.stages = 3,
                           .smem_layout = tile::SharedLayout::padded,
                           .late_loads = true,
                           .pipeline_sync = PipelineSync::stage,
                           .epilogue = Epilogue::direct};
  run_int8<kStages, int8_problem(Element::bf16, 64, MaskKind::window)>(
      {.len_q = 90, .len_k = 200, .right_offset = 110, .left_offset = 60, .by_q = By::head, .by_k = By::token}, 7);
  constexpr Config kWide{.block_n = 32, .q_in_registers = false, .rescale = attention::Rescale::when_grown};
  run_int8<kWide, int8_problem(Element::fp16, 256, MaskKind::none)>(
      {.by_q = By::token, .by_k = By::block, .rows_k = 32}, 8);
  constexpr Config kOneStage{.block_m = 128, .warp_rows = 32, .stages = 1};
  run_int8<kOneStage, kInt8Half64>({.len_q = 150, .len_k = 90}, 9);
}

TEST(EmulatedSm80Int8, PagesHaveFactorsOfTheirOwn) {
  constexpr Problem kPaged = int8_problem(Element::fp16, 64, MaskKind::causal, {.pages = true});
  for (const auto& [by, rows] : {std::pair{By::head, 1}, {By::token, 1}, {By::block, 8}, {By::block, 64}})
    run_int8<Config{}, kPaged>({.batch = 2,
                                .len_q = 40,
                                .len_k = 150,
                                .right_offset = 110,
                                .by_k = by == By::head ? By::tensor : by,
                                .rows_k = rows,
                                .page_size = 16},
                               10);
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm80Int8, WrongFactorsShow) {
  constexpr Int8Shape kShape{.len_k = 230, .by_q = By::block, .by_k = By::block, .rows_q = 32, .rows_k = 64};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of<Config{}, kInt8Half64>(kShape, 11, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.rows = 32; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.first_row = 64; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.row = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80
