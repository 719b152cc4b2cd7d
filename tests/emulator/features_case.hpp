/// An attention problem with features for an emulated kernel, and comparison with a computation in double precision
/// that reads the same tensors and shares no code with kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "features_tensors.hpp"
#include "row_sums.hpp"

namespace heed::emulator {

class FeatureCase : public FeatureTensors {
 public:
  using FeatureTensors::FeatureTensors;
  virtual ~FeatureCase() = default;

  /// The first thing that is wrong with outputs and log-sum-exps; empty where nothing is.
  [[nodiscard]] std::string difference() const {
    std::vector<bool> written(o_.size());
    std::vector<bool> written_lse(lse_.size());
    const Numbers numbers{k_.all(), v_.all()};
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < shape_.heads; ++h)
        for (int i = 0; i < entries_[at(b)].len_q; ++i) {
          const std::string row =
              "batch " + std::to_string(b) + " head " + std::to_string(h) + " row " + std::to_string(i) + ": ";
          Row expected = row_of(numbers, b, h, i);
          const double growth = std::max(1.0, finish(b, h, i, expected.out));
          for (int c = 0; c < problem_.head_dim; ++c) {
            const std::size_t place = query_place(b, h, i) + at(c);
            written[place] = true;
            const double got = o_.get(place);
            const double wanted = expected.out[at(c)];
            const double bound = growth * allowed(wanted, expected.size[at(c)], expected.squares[at(c)]);
            if (expected.weightless ? got != 0 : !(std::fabs(got - wanted) < bound))
              return row + "column " + std::to_string(c) + " is " + std::to_string(got) + " instead of " +
                     std::to_string(wanted);
          }
          const std::size_t place = lse_place(b, h, i);
          written_lse[place] = true;
          const double got = lse_[place];
          const bool same = std::isinf(expected.lse) ? got == expected.lse
                                                     : std::fabs(got - expected.lse) < allowed_of_lse(expected.lse);
          if (!same)
            return row + "log-sum-exp is " + std::to_string(got) + " instead of " + std::to_string(expected.lse);
        }
    for (std::size_t i = 0; i < o_.size(); ++i)
      if (!written[i] && !o_.is_untouched(i)) return "element " + std::to_string(i) + " of the output is written";
    for (std::size_t i = 0; i < lse_.size(); ++i)
      if (!written_lse[i] && !std::isnan(lse_[i])) return "log-sum-exp " + std::to_string(i) + " is written";
    return "";
  }

 protected:
  /// What a number of the output may be off by.
  /// @param size the sum of its terms without their signs, of which `squares` is the sum of squares
  [[nodiscard]] virtual double allowed(double wanted, double /*size*/, double /*squares*/) const {
    return largest_error(problem_.element, wanted, shape_.score_scale);
  }
  [[nodiscard]] virtual double allowed_of_lse(double wanted) const {
    return largest_lse_error(problem_.element, wanted, shape_.score_scale);
  }

 private:
  struct Row {
    std::vector<double> out;
    double lse;
    bool weightless;  ///< sees no key
    std::vector<double> size;
    std::vector<double> squares;
  };

  struct Numbers {
    std::vector<double> k, v;
  };

  /// By counting: buckets of 32 and 128 of either kind.
  [[nodiscard]] int bucket(int ahead) const {
    const bool both = shape_.relative->all > shape_.relative->side;
    constexpr int kOfSixteen[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    constexpr int kOfThirtyTwo[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                                    19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    const int distance = both ? std::abs(ahead) : std::max(-ahead, 0);
    int bucket = 0;
    if (both)
      for (const int first : kOfSixteen) bucket += distance >= first ? 1 : 0;
    else
      for (const int first : kOfThirtyTwo) bucket += distance >= first ? 1 : 0;
    return both && ahead > 0 ? bucket + 16 : bucket;
  }

  /// What a probability is multiplied by, by the words of kernels/attention/dropout.hpp.
  [[nodiscard]] double kept(int b, int h, int row, int key) const {
    if (shape_.dropout == 0) return 1;
    key += shape_.cut_keys;
    const std::uint64_t of_lane = seed_[1] + static_cast<std::uint64_t>((b + first_entry_) * shape_.heads + h) * 32 +
                                  static_cast<std::uint64_t>(row % 8 * 4 + key % 8 / 2);
    const auto half = [](std::uint64_t word, int i) { return static_cast<unsigned>(word >> (32 * i)); };
    const Philox4 numbers = philox4x32(
        {{half(of_lane, 0), half(of_lane, 1), static_cast<unsigned>(row / 16), static_cast<unsigned>(key / 32)}},
        half(seed_[0], 0), half(seed_[0], 1), 7);
    const unsigned number = numbers.word[key % 32 / 8] >> (row % 16 / 8 * 16 + key % 2 * 8) & 0xff;
    const double share = number / 255.0;
    return share > static_cast<double>(1 - static_cast<float>(shape_.dropout)) || shape_.dropout == 1
               ? 0
               : 1 / (1 - shape_.dropout);
  }

  /// Norms and gates a row. @return what its errors grow by at most
  double finish(int b, int h, int row, std::vector<double>& out) const {
    double of_norm = 1;
    double most = 0;
    if (shape_.norm != 0) {
      double squares = 0;
      for (const double x : out) squares += x * x;
      of_norm = 1 / std::sqrt(squares / columns() + shape_.norm_eps);
    }
    for (int c = 0; c < columns(); ++c) {
      double factor = shape_.norm == 0 ? 1 : weights_[at((shape_.norm == 2 ? h * columns() : 0) + c)];
      if (shape_.gate != 0) factor /= 1 + std::exp(-static_cast<double>(gates_.get(gate_place(b, h, row, c))));
      out[at(c)] *= of_norm * factor;
      most = std::max(most, std::fabs(factor));
    }
    return of_norm * most;
  }

  // ---- the same in double precision
  [[nodiscard]] Row row_of(const Numbers& numbers, int b, int h, int row) const {
    const FeatureEntry& e = entries_[at(b)];
    const int d = problem_.head_dim;
    std::vector<double> p(at(e.len_k), -INFINITY);
    std::vector<double> query(at(d));
    for (int c = 0; c < d; ++c) query[at(c)] = q_.get(query_place(b, h, row) + at(c));
    const double sink = shape_.sinks.empty() ? -INFINITY : shape_.sinks[at(h)];
    double most = sink;
    for (int j = 0; j < e.len_k; ++j) {
      if (!sees(b, row, j) || !lists(b, h, row, j)) continue;
      const std::size_t key = key_place(b, h / p_.group_size, j);
      double s = dot(query.data(), &numbers.k[key], d) * p_.scale;
      if (shape_.softcap != 0) s = shape_.softcap * std::tanh(s / shape_.softcap);
      if (shape_.bias && !is_full(b, h, row, j)) s += bias_at(b, h, row, j);
      if (shape_.relative) s += relative_[at(h * shape_.relative->all + bucket(j - (row + e.len_k - e.len_q)))];
      if (shape_.slopes != 0)
        s -= slopes_[at((shape_.slopes == 2 ? b * shape_.heads : 0) + h)] * std::abs(row + e.len_k - e.len_q - j);
      p[at(j)] = s;
      most = std::max(most, s);
    }
    const std::vector<double> zeros(at(d));
    Row result{zeros, -INFINITY, true, zeros, zeros};
    if (most == -INFINITY) return result;
    double sum = std::exp(sink - most);
    for (double& x : p) {
      result.weightless = result.weightless && x == -INFINITY;
      sum += x = std::exp(x - most);
    }
    result.lse = most + std::log(sum);
    for (int j = 0; j < e.len_k; ++j) {
      if (p[at(j)] == 0) continue;
      const std::size_t key = key_place(b, h / p_.group_size, j);
      const double weight = p[at(j)] / sum * kept(b, h, row, j);
      add_terms(weight, &numbers.v[key], d, result.out.data(), result.size.data(), result.squares.data());
    }
    return result;
  }
};

}  // namespace heed::emulator
