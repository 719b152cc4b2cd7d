/// What tests of the C interface share: a problem, tensors in host memory, and attention in double precision.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "api/problem.hpp"
#include "base/random.hpp"
#include "heed/heed.h"

namespace heed::testing_support {

/// The problem of a workload's text, dense, on the first device of its kind. @param flags HEED_WANTS_LSE, ...
inline heed_problem problem_of(std::string_view workload, DeviceKind device, std::uint32_t flags = 0) {
  heed_problem p = api::problem_of(parse_workload(workload), device);
  p.flags |= flags;
  return p;
}
inline heed_problem cpu_problem(std::string_view workload = "b1h1l1d16:fp32", std::uint32_t flags = 0) {
  return problem_of(workload, DeviceKind::cpu, flags);
}
inline heed_problem gpu_problem(std::string_view workload, std::uint32_t flags = 0) {
  return problem_of(workload, DeviceKind::cuda, flags);
}

/// Expects a status and a sentence.
inline void expect_status(heed_status status, heed_status expected, const std::string& words) {
  EXPECT_STREQ(heed_status_name(status), heed_status_name(expected)) << heed_last_error();
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(words));
}

/// heed_plan_create, which must say no.
inline void expect_refused(const heed_problem& problem, heed_status expected, const std::string& words,
                           const heed_options* options = nullptr) {
  heed_plan* plan = nullptr;
  expect_status(heed_plan_create(&problem, options, &plan), expected, words);
  EXPECT_EQ(plan, nullptr);
}

/// fp32 tensors of a problem, where its strides say, and what their attention is.
class HostCase {
 public:
  explicit HostCase(const heed_problem& problem, std::uint64_t seed = 1) : p_(problem) {
    Random random(seed);
    for (auto* x : {&q_, &k_, &v_}) {
      const bool is_q = x == &q_;
      x->resize(size(is_q ? p_.heads : p_.heads_kv, is_q ? p_.len_q : p_.len_k, x == &v_ ? p_.dim_v : p_.dim,
                     is_q       ? p_.q_strides
                     : x == &k_ ? p_.k_strides
                                : p_.v_strides));
      for (float& value : *x) value = static_cast<float>(4 * random.uniform() - 2);
    }
    o_.assign(size(p_.heads, p_.len_q, p_.dim_v, p_.o_strides), kUntouched);
    lse_.assign(static_cast<std::size_t>(p_.batch * p_.heads * p_.len_q), kUntouched);
  }

  [[nodiscard]] heed_tensors tensors() {
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = q_.data();
    t.k = k_.data();
    t.v = v_.data();
    t.o = o_.data();
    t.lse = lse_.data();
    return t;
  }

  /// Rounds Q, K and V to what another element type holds.
  template <typename Round>
  void round_inputs(const Round& round) {
    for (auto* x : {&q_, &k_, &v_})
      for (float& value : *x) value = round(value);
  }
  [[nodiscard]] const std::vector<float>& q() const { return q_; }
  [[nodiscard]] const std::vector<float>& k() const { return k_; }
  [[nodiscard]] const std::vector<float>& v() const { return v_; }
  [[nodiscard]] std::vector<float>& o() { return o_; }
  [[nodiscard]] std::vector<float>& lse() { return lse_; }

  /// Compares O, and the log-sum-exp if the problem wants it.
  void check(double tolerance = 2e-5) const {
    const double scale = p_.scale > 0 ? p_.scale : 1 / std::sqrt(static_cast<double>(p_.dim));
    for (std::int64_t b = 0; b < p_.batch; ++b)
      for (std::int64_t h = 0; h < p_.heads; ++h)
        for (std::int64_t i = 0; i < p_.len_q; ++i) {
          const std::int64_t kv = h / (p_.heads / p_.heads_kv);
          std::vector<double> weights(static_cast<std::size_t>(p_.len_k), 0);
          double sum = 0;
          double most = -INFINITY;
          for (std::int64_t j = 0; j < p_.len_k; ++j) {
            double s = 0;
            for (std::int64_t c = 0; c < p_.dim; ++c)
              s += q_[at(p_.q_strides, p_.heads, p_.len_q, p_.dim, b, h, i, c)] *
                   static_cast<double>(k_[at(p_.k_strides, p_.heads_kv, p_.len_k, p_.dim, b, kv, j, c)]);
            weights[static_cast<std::size_t>(j)] = sees(i, j) ? s * scale : -INFINITY;
            most = std::max(most, weights[static_cast<std::size_t>(j)]);
          }
          for (double& w : weights) sum += w = most == -INFINITY ? 0 : std::exp(w - most);
          for (std::int64_t c = 0; c < p_.dim_v; ++c) {
            double expected = 0;
            for (std::int64_t j = 0; j < p_.len_k; ++j)
              expected += sum == 0 ? 0
                                   : weights[static_cast<std::size_t>(j)] / sum *
                                         v_[at(p_.v_strides, p_.heads_kv, p_.len_k, p_.dim_v, b, kv, j, c)];
            ASSERT_NEAR(o_[at(p_.o_strides, p_.heads, p_.len_q, p_.dim_v, b, h, i, c)], expected, tolerance)
                << "batch " << b << " head " << h << " row " << i << " column " << c;
          }
          const float lse = lse_[static_cast<std::size_t>((b * p_.heads + h) * p_.len_q + i)];
          if ((p_.flags & HEED_WANTS_LSE) == 0)
            ASSERT_EQ(lse, kUntouched);
          else if (sum == 0)
            ASSERT_EQ(lse, -std::numeric_limits<float>::infinity());
          else
            ASSERT_NEAR(lse, most + std::log(sum), 1e-4 + tolerance);
        }
  }

  static constexpr float kUntouched = 77;

 private:
  [[nodiscard]] bool sees(std::int64_t i, std::int64_t j) const {
    if (p_.mask == HEED_MASK_NONE) return true;
    const bool at_the_right = p_.mask == HEED_MASK_CAUSAL_BOTTOM_RIGHT || p_.mask == HEED_MASK_WINDOW_BOTTOM_RIGHT;
    const std::int64_t own = i + (at_the_right ? p_.len_k - p_.len_q : 0);
    const bool is_causal = p_.mask == HEED_MASK_CAUSAL_TOP_LEFT || p_.mask == HEED_MASK_CAUSAL_BOTTOM_RIGHT;
    const std::int64_t right = is_causal ? 0 : p_.window_right;
    return (right < 0 || j <= own + right) && (p_.window_left < 0 || j >= own - p_.window_left);
  }
  [[nodiscard]] static std::size_t at(const heed_strides& s, std::int64_t heads, std::int64_t rows, std::int64_t dim,
                                      std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) {
    if (s.dim == 0) return static_cast<std::size_t>(((b * heads + h) * rows + i) * dim + c);
    return static_cast<std::size_t>(b * s.batch + h * s.head + i * s.row + c * s.dim);
  }
  [[nodiscard]] std::size_t size(std::int64_t heads, std::int64_t rows, std::int64_t dim, const heed_strides& s) const {
    if (p_.batch * heads * rows == 0) return 0;
    return at(s, heads, rows, dim, p_.batch - 1, heads - 1, rows - 1, dim - 1) + 1;
  }

  heed_problem p_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> o_;
  std::vector<float> lse_;
};

}  // namespace heed::testing_support
