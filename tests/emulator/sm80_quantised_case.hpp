/// A launch of fwd_sm80 with Q and K in 8 bits, and V too, on the emulated GPU, checked against double precision on the
/// numbers that it is given.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "kernels/attention/features.hpp"
#include "kernels/eight_bits.hpp"
#include "sm80_case.hpp"

namespace heed::sm80 {

enum class By { tensor, head, block, token, channel };

struct QuantisedShape {
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
  By by_v = By::head;  // where V is quantised: tensor, head or channel
  int page_size = 0;
  int first_key = 0;  // TensorScales::first_row of K
  int fill = -1;      // every byte of Q and K, where not drawn
  float factor = 0;   // every factor of Q and K, where not drawn
};

/// Q and K of one type of 8 bits, V of the problem's own 16 or of 8.
constexpr Problem quantised_problem(Element element, int dim, MaskKind mask, Element qk, Element v,
                                    Features features = {}) {
  return {.element = element,
          .head_dim = dim,
          .mask = mask,
          .features = features,
          .inputs = {.quantised = true, .q = qk, .k = qk, .v = v}};
}

/// A tensor of 8-bit elements, or of a launch's own.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Element element, std::size_t count) : element_(element) {
    if (bytes_of(element) == 1)
      bytes_.resize(count);
    else
      wide_ = emulator::Elements(element, count);
  }
  [[nodiscard]] const void* data() const {
    return bytes_.empty() ? wide_.data() : static_cast<const void*>(&bytes_[0]);
  }
  [[nodiscard]] double get(std::size_t i) const {
    if (element_ == Element::int8) return static_cast<signed char>(bytes_[i]);
    return element_ == Element::e4m3 ? e4m3_to_float(bytes_[i]) : wide_.get(i);
  }
  /// Numbers of deviation 1 where elements are of 16 bits, else 30 of e4m3 and 73 of int8, evenly spread.
  void draw(Random& random) {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = element_ == Element::int8
                      ? static_cast<unsigned char>(static_cast<int>(random.below(255)) - 127)
                      : static_cast<unsigned char>(float_to_e4m3(static_cast<float>(30 * random.normal())));
    for (std::size_t i = 0; i < wide_.size(); ++i) wide_.set(i, static_cast<float>(random.normal()));
  }
  void set_byte(std::size_t i, unsigned char byte) { bytes_[i] = byte; }
  void fill(unsigned char byte) { std::fill(bytes_.begin(), bytes_.end(), byte); }

 private:
  Element element_ = Element::int8;
  std::vector<unsigned char> bytes_;
  emulator::Elements wide_;
};

/// A quantised launch and what double precision says of the numbers that it is given.
class QuantisedCase {
 public:
  QuantisedCase(const Problem& problem, const QuantisedShape& shape, std::uint64_t seed)
      : problem_(problem), s_(shape) {
    Random random(seed);
    const int d = problem.head_dim;
    const int key_rows = s_.page_size > 0 ? pages() * s_.page_size : s_.batch * s_.len_k;
    q_ = Numbers(problem.inputs.q, static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q * d));
    k_ = Numbers(problem.inputs.k, static_cast<std::size_t>(s_.heads_kv * key_rows * d));
    v_ = Numbers(problem.inputs.v, static_cast<std::size_t>(s_.heads_kv * key_rows * d));
    for (Numbers* one : {&q_, &k_, &v_}) one->draw(random);
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
    if (bytes_of(problem.inputs.v) == 1) p.v_scales = factors(v_factors_, s_.by_v, 1, s_.batch, s_.heads_kv, d, random);
    p.k_scales = factors(k_factors_, s_.by_k, s_.rows_k, s_.page_size > 0 ? pages() : s_.batch, s_.heads_kv,
                         rows + s_.first_key, random);
    p.k_scales.first_row = s_.first_key;
    if (s_.fill >= 0)
      for (Numbers* one : {&q_, &k_}) one->fill(static_cast<unsigned char>(s_.fill));
    if (s_.factor > 0)
      for (std::vector<float>* all : {&q_factors_, &k_factors_}) std::fill(all->begin(), all->end(), s_.factor);
    p.out_columns = d;
    if (problem.features.out_norm) {
      for (int c = 0; c < d; ++c) norm_weights_.push_back(static_cast<float>(0.5 + random.uniform()));
      p.out_norm_weight = norm_weights_.data();
      p.out_norm_eps = 1e-5F;
    }
    // Factors of keys that no row sees may be anything.
    const int seen = visible_keys(problem.mask, s_.len_q - 1, s_.right_offset, s_.len_k);
    if (s_.by_k == By::token && s_.page_size == 0)
      for (int b = 0; b < s_.batch; ++b)
        for (int h = 0; h < s_.heads_kv; ++h)
          for (int j = seen; j < s_.len_k; ++j)
            k_factors_[static_cast<std::size_t>(scale_index(p.k_scales, b, h, j))] = NAN;
  }

  FeatureParams& params() { return params_; }
  Numbers& values() { return v_; }
  Numbers& keys() { return k_; }
  [[nodiscard]] double output(std::size_t i) const { return o_.get(i); }

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
            double dot = 0;
            for (int c = 0; c < d; ++c)
              dot += q_.get(row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)) *
                     k_.get(key_place(b, kv, j) + static_cast<std::size_t>(c));
            const double k_factor =
                k_factors_[static_cast<std::size_t>(key_scale_index(params_, params_.k_scales, b, kv, j))];
            p.push_back(dot * q_factor * k_factor * params_.scale);
            most = std::max(most, p.back());
          }
          for (double& x : p) sum += x = std::exp(x - most);
          std::vector<double> expected_row(static_cast<std::size_t>(d));
          for (int c = 0; c < d; ++c) {
            double& expected = expected_row[static_cast<std::size_t>(c)];
            for (int j = begin; j < end; ++j)
              expected += p[static_cast<std::size_t>(j - begin)] / sum *
                          v_.get(key_place(b, kv, j) + static_cast<std::size_t>(c));
            expected *= value_factor(b, kv, c);
          }
          const double norm = norm_of(expected_row);
          for (int c = 0; c < d; ++c) {
            const double weight = norm_weights_.empty() ? 1 : norm_weights_[static_cast<std::size_t>(c)];
            const double expected = expected_row[static_cast<std::size_t>(c)] * norm * weight;
            const double got = o_.get(row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c));
            if (!(std::fabs(expected - got) <
                  std::fmax(1, norm) * emulator::largest_error(problem_.element, expected, 1)))
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
  // What a row of O is multiplied by, beside weights of columns.
  [[nodiscard]] double norm_of(const std::vector<double>& row) const {
    if (norm_weights_.empty()) return 1;
    double squares = 0;
    for (const double x : row) squares += x * x;
    return 1 / std::sqrt(squares / static_cast<double>(row.size()) + params_.out_norm_eps);
  }
  [[nodiscard]] double value_factor(int b, int kv, int column) const {
    if (v_factors_.empty()) return 1;
    const TensorScales& s = params_.v_scales;
    return v_factors_[static_cast<std::size_t>(scale_index(s, b, kv, 0) + s.channel * column)];
  }
  [[nodiscard]] int pages() const { return s_.batch * ((s_.len_k + s_.page_size - 1) / s_.page_size); }

  // Around what makes scores of deviation 2 or less and values of deviation 1, each of its own. `len`: rows, or columns
  // by channel.
  TensorScales factors(std::vector<float>& to, By by, int rows, int batch, int heads, int len, Random& random) const {
    const int blocks = by == By::tensor || by == By::head ? 1 : (len + rows - 1) / rows;
    const bool each_head = by != By::tensor;
    to.resize(static_cast<std::size_t>(each_head ? batch * heads * blocks : 1));
    for (float& x : to) x = static_cast<float>(0.02 + 0.02 * random.uniform());
    return {
        .at = to.data(),
        .strides = {each_head ? heads * blocks : 0, each_head ? blocks : 0, by == By::block || by == By::token ? 1 : 0},
        .rows = rows,
        .channel = by == By::channel ? 1 : 0,
        .first_row = 0,
        .reserved = 0};
  }

  Problem problem_;
  QuantisedShape s_;
  Numbers q_, k_, v_;
  std::vector<float> q_factors_, k_factors_, v_factors_, norm_weights_, lse_;
  std::vector<int> table_;
  emulator::Elements o_;
  FeatureParams params_;
};

template <Config kConfig, Problem kProblem>
void launch_quantised(QuantisedCase& problem, const QuantisedShape& shape, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  emulator::Launch launch;
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  emulator::run(launch, [&](char* shared) {
    Forward<emulator::kConstant<kConfig>, emulator::kConstant<kProblem>>(problem.params(), shared).run();
  });
}

/// What is wrong with a launch whose parameters are changed; "" for nothing.
template <Config kConfig, Problem kProblem>
std::string said_of(const QuantisedShape& shape, std::uint64_t seed, void (*change)(FeatureParams&) = nullptr) {
  QuantisedCase problem(kProblem, shape, seed);
  const FeatureParams right = problem.params();
  if (change != nullptr) change(problem.params());
  launch_quantised<kConfig, kProblem>(problem, shape, seed);
  problem.params() = right;
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_quantised(const QuantisedShape& shape, std::uint64_t seed) {
  EXPECT_EQ((said_of<kConfig, kProblem>(shape, seed)), "") << "seed " << seed << " rows_k " << shape.rows_k;
}

}  // namespace heed::sm80
