/// One attention problem for an emulated kernel: tensors, launch, comparison with double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "elements.hpp"
#include "kernels/attention/mask.hpp"
#include "simt.hpp"

namespace heed::emulator {

struct Shape {
  int batch = 1;
  int heads = 1;
  int heads_kv = 1;
  int len_q = 64;
  int len_k = 64;
  int causal_offset = 0;     ///< ForwardParams::right_offset
  int left_offset = 0;       ///< of windows; at most 0, as launches are trimmed
  float score_scale = 1;     ///< of Q: large scores
  float value_scale = 1;     ///< of V
  bool heads_inner = false;  ///< blhd instead of bhld
  int padding_rows = 0;      ///< after each head's rows, or each batch entry's where heads are inner: NaN
};

/// The problem of a program for launches of this shape alone.
constexpr Problem fixed(Problem problem, const Shape& s) {
  problem.sizes = {s.batch, s.heads, s.heads_kv, s.len_q, s.len_k, s.causal_offset};
  problem.sizes.left_offset = s.left_offset;
  problem.specialization.specialize = Specialize::shape;
  return problem;
}

/// And of whole Q tiles.
constexpr Problem whole(Problem problem, const Shape& s) {
  problem = fixed(problem, s);
  problem.specialization.specialize = Specialize::whole_tiles;
  return problem;
}

/// With no more code than the sizes that it knows need.
constexpr Problem pruned(Problem problem) {
  problem.specialization.prune = Prune::on;
  return problem;
}

/// And for outputs alone that have no padding, whatever Q has.
constexpr Problem dense(Problem problem, const Shape& s) {
  problem = fixed(problem, s);
  const long long d = problem.head_dim;
  problem.sizes.o_strides = s.heads_inner ? TensorStrides{s.len_q * s.heads * d, d, s.heads * d}
                                          : TensorStrides{s.heads * s.len_q * d, s.len_q * d, d};
  problem.specialization.o_layout = OutputLayout::dense;
  return problem;
}

/// What a program that knows its launches' sizes does not read: all of it wrong.
inline void misinform_of_sizes(ForwardParams& p) {
  p.batch = p.heads = p.heads_kv = p.len_q = p.len_k = 1;
  p.group_size = 100;
  p.right_offset = -1000;
  p.left_offset = 1000;
}
inline void misinform_of_outputs(ForwardParams& p) {
  misinform_of_sizes(p);
  p.o_strides = {7, 7, 7};
}

class AttentionCase {
 public:
  AttentionCase(const Problem& problem, const Shape& shape, std::uint64_t seed)
      : problem_(problem), shape_(shape), o_padding_(problem.sizes.o_strides.row == 0 ? shape.padding_rows : 0) {
    Random random(seed);
    const int d = problem.head_dim;
    params_.q_strides = fill(q_, shape.heads, shape.len_q, random, shape.score_scale);
    params_.k_strides = fill(k_, shape.heads_kv, shape.len_k, random, 1);
    params_.v_strides = fill(v_, shape.heads_kv, shape.len_k, random, shape.value_scale);
    params_.o_strides = strides(shape.heads, shape.len_q + o_padding_);
    o_ = Elements::untouched(
        problem.element, static_cast<std::size_t>(shape.batch) * shape.heads * (shape.len_q + o_padding_) * d + kGuard);
    lse_.assign(static_cast<std::size_t>(shape.batch) * shape.heads * shape.len_q + kGuard,
                std::numeric_limits<float>::quiet_NaN());
    // Keys no query attends to may hold anything.
    const int seen = visible_keys(problem.mask, shape.len_q - 1, shape.causal_offset, shape.len_k);
    for (int b = 0; b < shape.batch; ++b)
      for (int h = 0; h < shape.heads_kv; ++h)
        for (int r = seen; r < shape.len_k; ++r)
          for (int c = 0; c < d; ++c) {
            k_.set_nan(at(params_.k_strides, b, h, r) + static_cast<std::size_t>(c));
            v_.set_nan(at(params_.v_strides, b, h, r) + static_cast<std::size_t>(c));
          }
    params_.q = q_.data();
    params_.k = k_.data();
    params_.v = v_.data();
    params_.o = o_.data();
    params_.lse = lse_.data();
    params_ = with_sizes(params_, fixed(problem, shape).sizes);
    params_.scale = 1.0F / std::sqrt(static_cast<float>(d));
  }

  [[nodiscard]] ForwardParams& params() { return params_; }

  enum class Tensor { q, k, v };
  /// Changes one element.
  void set(Tensor tensor, int batch, int head, int row, int column, float x) {
    const TensorStrides& s = tensor == Tensor::q   ? params_.q_strides
                             : tensor == Tensor::k ? params_.k_strides
                                                   : params_.v_strides;
    Elements& e = tensor == Tensor::q ? q_ : tensor == Tensor::k ? k_ : v_;
    e.set(at(s, batch, head, row) + static_cast<std::size_t>(column), x);
  }

  /// As the launcher encodes them: lib/launch/tensor_map.cpp.
  [[nodiscard]] TensorMaps maps(int q_rows, int k_rows, int v_rows, int o_rows = 0, int o_columns = 64) const {
    TensorMaps maps{};
    const int seen = visible_keys(problem_.mask, shape_.len_q - 1, shape_.causal_offset, shape_.len_k);
    encode(maps.q, q_, params_.q_strides, shape_.len_q, shape_.heads, q_rows);
    encode(maps.k, k_, params_.k_strides, std::max(seen, 1), shape_.heads_kv, k_rows);
    encode(maps.v, v_, params_.v_strides, std::max(seen, 1), shape_.heads_kv, v_rows);
    if (o_rows > 0) encode(maps.o, o_, params_.o_strides, shape_.len_q, shape_.heads, o_rows, o_columns);
    return maps;
  }

  /// Compares output and log-sum-exp.
  void check(const std::string& name) const {
    const int d = problem_.head_dim;
    double worst = 0;
    const std::vector<double> q = q_.all();
    const std::vector<double> k = k_.all();
    const std::vector<double> v = v_.all();
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < shape_.heads; ++h)
        for (int r = 0; r < shape_.len_q; ++r) {
          const int kv = h / params_.group_size;
          const int end = visible_keys(problem_.mask, r, shape_.causal_offset, shape_.len_k);
          const int begin = hidden_keys(problem_.mask, r, shape_.left_offset, shape_.len_k);
          std::vector<double> p(static_cast<std::size_t>(end));
          double most = -INFINITY;
          for (int j = begin; j < end; ++j) {
            const double* const query = &q[at(params_.q_strides, b, h, r)];
            const double* const key = &k[at(params_.k_strides, b, kv, j)];
            double s = 0;
            for (int c = 0; c < d; ++c) s += query[c] * key[c];
            p[static_cast<std::size_t>(j)] = s * params_.scale;
            most = std::max(most, p[static_cast<std::size_t>(j)]);
          }
          double sum = 0;
          for (int j = begin; j < end; ++j) {
            double& x = p[static_cast<std::size_t>(j)];
            sum += x = std::exp(x - most);
          }
          std::vector<double> out(static_cast<std::size_t>(d));
          for (int j = begin; j < end; ++j) {
            const double share = p[static_cast<std::size_t>(j)] / sum;
            const double* const row = &v[at(params_.v_strides, b, kv, j)];
            for (int c = 0; c < d; ++c) out[static_cast<std::size_t>(c)] += share * row[c];
          }
          for (int c = 0; c < d; ++c) {
            const double expected = out[static_cast<std::size_t>(c)];
            const double got = value(o_, params_.o_strides, b, h, r, c);
            if (got == expected || (std::isnan(got) && std::isnan(expected))) continue;  // infinity and NaN
            const double difference = std::fabs(expected - got);
            ASSERT_TRUE(difference < largest_error(problem_.element, expected, shape_.score_scale))
                << name << ": batch " << b << " head " << h << " row " << r << " column " << c << ": " << got
                << " instead of " << expected;
            worst = std::max(worst, difference);
          }
          if (params_.lse == nullptr) continue;
          const float lse = lse_[(static_cast<std::size_t>(b) * shape_.heads + h) * shape_.len_q + r];
          if (end == begin)
            ASSERT_EQ(lse, -INFINITY) << name << ": row " << r;
          else if (std::isnan(sum))
            ASSERT_TRUE(std::isnan(lse)) << name << ": row " << r;
          else
            ASSERT_NEAR(lse, most + std::log(sum), largest_lse_error(problem_.element, most, shape_.score_scale))
                << name << ": row " << r;
        }
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < shape_.heads; ++h)
        for (int r = shape_.len_q; r < shape_.len_q + o_padding_; ++r)
          for (int c = 0; c < d; ++c)
            ASSERT_TRUE(o_.is_untouched(at(params_.o_strides, b, h, r) + static_cast<std::size_t>(c)))
                << name << " writes between rows";
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_TRUE(o_.is_untouched(o_.size() - kGuard + i)) << name << " writes behind its output";
      ASSERT_TRUE(std::isnan(lse_[lse_.size() - kGuard + i])) << name << " writes behind its log-sum-exps";
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;

  /// @param rows with the padding
  [[nodiscard]] TensorStrides strides(int heads, int rows) const {
    const long long d = problem_.head_dim;
    if (shape_.heads_inner) return {rows * heads * d, d, heads * d};
    return {heads * rows * d, rows * d, d};
  }
  [[nodiscard]] static std::size_t at(const TensorStrides& s, int b, int h, int r) {
    return static_cast<std::size_t>(b * s.batch + h * s.head + r * s.row);
  }
  TensorStrides fill(Elements& e, int heads, int rows, Random& random, float scale) {
    e = Elements(problem_.element,
                 static_cast<std::size_t>(shape_.batch) * heads * (rows + shape_.padding_rows) * problem_.head_dim);
    for (std::size_t place = 0; place < e.size(); ++place) {
      float sum = 0;
      for (int i = 0; i < 12; ++i) sum += static_cast<float>(random.uniform());
      e.set(place, (sum - 6.0F) * scale);
    }
    const TensorStrides s = strides(heads, rows + shape_.padding_rows);
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < heads; ++h)
        for (int r = rows; r < rows + shape_.padding_rows; ++r)
          for (int c = 0; c < problem_.head_dim; ++c) e.set_nan(at(s, b, h, r) + static_cast<std::size_t>(c));
    return s;
  }
  [[nodiscard]] double value(const Elements& e, const TensorStrides& s, int b, int h, int r, int c) const {
    return e.get(at(s, b, h, r) + static_cast<std::size_t>(c));
  }
  void encode(TensorMap& map, const Elements& e, const TensorStrides& s, int rows, int heads, int box_rows,
              int box_columns = 64) const {
    const EmulatedMap m{
        e.data(), {problem_.head_dim, rows, heads, shape_.batch}, {1, s.row, s.head, s.batch}, box_rows, box_columns};
    static_assert(sizeof(m) <= sizeof(map.opaque));
    std::memcpy(map.opaque, &m, sizeof(m));
  }

  Problem problem_;
  Shape shape_;
  int o_padding_;
  ForwardParams params_{};
  Elements q_, k_, v_, o_;
  std::vector<float> lse_;
};

}  // namespace heed::emulator
