// A launch of few queries over K and V in 8 bits, and what double precision says of the numbers that it is given.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "elements.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/eight_bits.hpp"

namespace heed::emulator {

enum class By { tensor, head, block, token, channel };

struct CacheShape {
  int batch = 2;
  int heads = 4;
  int heads_kv = 2;
  int len_q = 1;
  int len_k = 150;
  int right_offset = 0;
  int left_offset = 0;
  By by_k = By::head;
  By by_v = By::head;
  int rows_k = 1;     // of a block of factors
  int first_key = 0;  // TensorScales::first_row of K
  int page_size = 0;
  bool with_lengths = false;
  bool with_lse = true;
  bool with_sinks = false;
  float softcap = 0;
  float query_scale = 1;  // queries differ by powers of it from head to head
};

constexpr Problem cache_problem(Element element, Element k, Element v, int dim, MaskKind mask = MaskKind::none,
                                Features features = {}) {
  return {.element = element,
          .head_dim = dim,
          .mask = mask,
          .features = features,
          .inputs = {.quantised = true, .q = element, .k = k, .v = v}};
}

inline float widened(Element element, unsigned char bits) {
  return element == Element::e4m3   ? e4m3_to_float(bits)
         : element == Element::e5m2 ? e5m2_to_float(bits)
                                    : int8_to_float(bits);
}
inline unsigned char narrowed(Element element, float x) {
  return element == Element::e4m3 ? float_to_e4m3(x) : element == Element::e5m2 ? float_to_e5m2(x) : float_to_int8(x);
}

class CacheCase {
 public:
  CacheCase(const Problem& problem, const CacheShape& shape, std::uint64_t seed) : problem_(problem), s_(shape) {
    Random random(seed);
    const int d = problem.head_dim;
    FeatureParams& p = params_;
    p = FeatureParams{};
    p.batch = s_.batch;
    p.heads = s_.heads;
    p.heads_kv = s_.heads_kv;
    p.group_size = s_.heads / s_.heads_kv;
    p.len_q = s_.len_q;
    p.len_k = s_.len_k;
    p.right_offset = s_.right_offset;
    p.left_offset = s_.left_offset;
    p.aligned_to_the_end = 1;
    p.scale = 1 / std::sqrt(static_cast<float>(d));
    p.lse_head = s_.len_q;
    p.lse_batch = s_.heads * s_.len_q;
    const auto query_rows = static_cast<std::size_t>(s_.batch * s_.heads * s_.len_q);
    q_ = Elements(problem.element, query_rows * static_cast<std::size_t>(d));
    for (std::size_t i = 0; i < q_.size(); ++i) {
      const auto head = static_cast<int>(i) / (s_.len_q * d) % s_.heads;
      q_.set(i, static_cast<float>(random.normal() * std::pow(s_.query_scale, head)));
    }
    p.q_strides = p.o_strides = {s_.heads * s_.len_q * d, s_.len_q * d, d};
    const int rows = s_.page_size > 0 ? s_.page_size : s_.len_k;
    const int places = s_.page_size > 0 ? pages() : s_.batch;
    p.k_strides = p.v_strides = {s_.heads_kv * rows * d, rows * d, d};
    fill(k_, problem.inputs.k, places * s_.heads_kv * rows * d, random);
    fill(v_, problem.inputs.v, places * s_.heads_kv * rows * d, random);
    if (s_.page_size > 0) {  // from the last page on
      p.page_size = s_.page_size;
      p.pages = pages();
      p.page_table_batch = pages() / s_.batch;
      for (int i = 0; i < pages(); ++i) table_.push_back(pages() - 1 - i);
      p.page_table = table_.data();
    }
    if (s_.with_lengths) {
      for (int b = 0; b < s_.batch; ++b) lengths_.push_back(b == 0 ? s_.len_k : b * 37 % (s_.len_k + 1));
      p.seqused_k = lengths_.data();
    }
    p.k_scales = factors(k_factors_, s_.by_k, s_.rows_k, places, rows + s_.first_key, problem.inputs.k, random);
    p.k_scales.first_row = s_.first_key;
    p.v_scales = factors(v_factors_, s_.by_v, 1, s_.batch, 1, problem.inputs.v, random);
    // Keys that no query sees may hold anything, and so may factors of them alone.
    for (int b = 0; b < s_.batch; ++b) {
      const FeatureParams own = of_entry(p, b, {2, 1, 1, 2});
      for (int j = visible_keys(problem.mask, s_.len_q - 1, own.right_offset, own.len_k); j < s_.len_k; ++j)
        for (int h = 0; h < s_.heads_kv; ++h) {
          for (int c = 0; c < d; ++c) k_[key_place(b, h, j, c)] = v_[key_place(b, h, j, c)] = 0x7f;
          if (s_.by_k == By::token) k_factors_[static_cast<std::size_t>(key_scale_index(p, p.k_scales, b, h, j))] = NAN;
        }
    }
    p.softcap = s_.softcap;
    if (s_.with_sinks) {
      for (int h = 0; h < s_.heads; ++h) sinks_.push_back(static_cast<float>(random.normal()) + 2);
      p.sinks = sinks_.data();
    }
    o_ = Elements::untouched(problem.element, query_rows * static_cast<std::size_t>(d) + 64);
    lse_.assign(query_rows, NAN);
    p.q = q_.data();
    p.k = k_.data();
    p.v = v_.data();
    p.o = o_.data();
    p.lse = s_.with_lse ? lse_.data() : nullptr;
  }

  FeatureParams& params() { return params_; }
  void set_query(std::size_t i, float x) { q_.set(i, x); }
  void set_key(int b, int h, int j, int c, unsigned char bits) { k_[key_place(b, h, j, c)] = bits; }

  [[nodiscard]] const Problem& problem() const { return problem_; }

  /// What is wrong with the output; "" for nothing. Probabilities and outputs are rounded, the latter to the element.
  [[nodiscard]] std::string difference() const {
    const int d = problem_.head_dim;
    for (int b = 0; b < s_.batch; ++b) {
      const FeatureParams own = of_entry(params_, b, {2, 1, 1, 2});
      for (int h = 0; h < s_.heads; ++h)
        for (int r = 0; r < s_.len_q; ++r) {
          const int kv = h / params_.group_size;
          const int begin = hidden_keys(problem_.mask, r, own.left_offset, own.len_k);
          const int end = visible_keys(problem_.mask, r, own.right_offset, own.len_k);
          const std::size_t row = static_cast<std::size_t>((b * s_.heads + h) * s_.len_q + r);
          std::vector<double> p;
          double most = -INFINITY, sum = 0, sizes = 0;
          for (int j = begin; j < end; ++j) {
            double dot = 0, size = 0;
            for (int c = 0; c < d; ++c) {
              const double term = q_.get(row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)) *
                                  static_cast<double>(widened(problem_.inputs.k, k_[key_place(b, kv, j, c)]));
              dot += term;
              size += std::fabs(term);
            }
            const auto factor = static_cast<double>(
                k_factors_[static_cast<std::size_t>(key_scale_index(params_, params_.k_scales, b, kv, j))] *
                params_.scale);
            const auto cap = static_cast<double>(s_.softcap);
            p.push_back(cap > 0 ? cap * std::tanh(dot * factor / cap) : dot * factor);
            most = std::max(most, p.back());
            sizes = std::max(sizes, size * factor);
          }
          if (s_.with_sinks) most = std::max(most, static_cast<double>(sinks_[static_cast<std::size_t>(h)]));
          for (double& x : p) sum += x = std::exp(x - most);
          if (s_.with_sinks) sum += std::exp(static_cast<double>(sinks_[static_cast<std::size_t>(h)]) - most);
          const double score_error = 1e-6 * sizes;  // sums in fp32
          for (int c = 0; c < d; ++c) {
            double expected = 0, size = 0;
            const auto factor = static_cast<double>(v_factors_[static_cast<std::size_t>(
                scale_index(params_.v_scales, b, kv, 0) + c * params_.v_scales.channel)]);
            for (int j = begin; j < end; ++j) {
              const double term = p[static_cast<std::size_t>(j - begin)] / sum * factor *
                                  static_cast<double>(widened(problem_.inputs.v, v_[key_place(b, kv, j, c)]));
              expected += term;
              size += std::fabs(term);
            }
            const double got = o_.get(row * static_cast<std::size_t>(d) + static_cast<std::size_t>(c));
            const double allowed = (0x1p-10 + 2 * score_error) * size +
                                   (problem_.element == Element::bf16 ? 0x1p-8 : 0x1p-10) * std::fabs(expected) + 1e-6;
            if (!(std::fabs(expected - got) <= allowed))
              return fmt::format("batch {} head {} row {} column {}: {} instead of {} within {}", b, h, r, c, got,
                                 expected, allowed);
          }
          const double lse = begin < end || s_.with_sinks ? most + std::log(sum) : -INFINITY;
          const double got = static_cast<double>(lse_[row]);
          if (s_.with_lse && !(got == lse || std::fabs(got - lse) < 2e-4 + score_error))
            return fmt::format("log-sum-exp of batch {} head {} row {}: {} instead of {}", b, h, r, got, lse);
        }
    }
    for (std::size_t i = o_.size() - 64; i < o_.size(); ++i)
      if (!o_.is_untouched(i)) return "it writes behind its output";
    return {};
  }
  [[nodiscard]] double out(std::size_t i) const { return o_.get(i); }

 private:
  [[nodiscard]] int pages() const { return s_.batch * ((s_.len_k + s_.page_size - 1) / s_.page_size); }
  [[nodiscard]] std::size_t key_place(int b, int h, int j, int c) const {
    return static_cast<std::size_t>(h * params_.k_strides.head + key_offset(params_, params_.k_strides, b, j) + c);
  }
  static float spread_of(Element element) { return element == Element::int8 ? 40.0F : 16.0F; }
  static void fill(std::vector<unsigned char>& to, Element element, int count, Random& random) {
    to.resize(static_cast<std::size_t>(count));
    for (unsigned char& x : to) x = narrowed(element, static_cast<float>(random.normal()) * spread_of(element));
  }
  // Of numbers around N(0, 1).
  TensorScales factors(std::vector<float>& to, By by, int rows, int places, int len, Element element,
                       Random& random) const {
    const int blocks = by == By::block || by == By::token ? (len + rows - 1) / rows : 1;
    const int columns = by == By::channel ? problem_.head_dim : 1;
    const bool each_head = by != By::tensor;
    const int all = blocks * columns;
    to.resize(static_cast<std::size_t>(each_head ? places * s_.heads_kv * all : 1));
    for (float& x : to) x = static_cast<float>(0.75 + 0.75 * random.uniform()) / spread_of(element);
    return {.at = to.data(),
            .strides = {each_head ? s_.heads_kv * all : 0, each_head ? all : 0, by == By::block || by == By::token},
            .rows = rows,
            .channel = by == By::channel ? 1 : 0,
            .first_row = 0,
            .reserved = 0};
  }

  Problem problem_;
  CacheShape s_;
  std::vector<unsigned char> k_, v_;
  std::vector<float> k_factors_, v_factors_, lse_, sinks_;
  std::vector<int> table_, lengths_;
  Elements q_, o_;
  FeatureParams params_;
};

}  // namespace heed::emulator
