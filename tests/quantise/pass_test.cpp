// The pass that quantises: its numbers beside their definition, element by element.
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.hpp"
#include "quantise/quantise.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::quantise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// One head of keys, quantised alone.
class Keys {
 public:
  Keys(int rows, int dim, Element to, int rows_of_factor)
      : x(static_cast<std::size_t>(rows * dim)), rows_(rows), dim_(dim) {
    Random random(3);
    for (float& value : x) value = static_cast<float>(8 * random.uniform() - 3);
    pass.rows = {.cu_seqlens_q = nullptr,
                 .cu_seqlens_k = nullptr,
                 .seqused_k = nullptr,
                 .prefix_lengths = nullptr,
                 .batch = 1,
                 .len_q = 1,
                 .len_k = rows,
                 .total_q = 0,
                 .total_k = 0,
                 .mask = static_cast<int>(MaskKind::none),
                 .left_offset = 0,
                 .right_offset = 0,
                 .aligned_to_the_end = 0};
    TensorPass& k = pass.k;
    k.count = rows_of_factor > 0 ? (rows + rows_of_factor - 1) / rows_of_factor : 1;
    elements.assign(x.size(), 0xee);
    factors.assign(static_cast<std::size_t>(k.count), -1);
    largest_.assign(static_cast<std::size_t>(k.count), 99);
    k.from_strides = k.to_strides = {0, 0, dim};
    k.scales.rows = rows_of_factor > 0 ? rows_of_factor : 1;
    k.scales.strides.row = rows_of_factor > 0 ? 1 : 0;
    k.from_step = 1;
    k.element = static_cast<int>(Element::fp32);
    k.to_element = static_cast<int>(to);
    k.heads = 1;
    k.dim = k.to_dim = dim;
    k.are_keys = 1;
  }

  void run() {
    TensorPass& k = pass.k;
    k.from = x.data();
    k.to = elements.data();
    k.factors = factors.data();
    k.largest = largest_.data();
    quantise_on_host(pass);
  }
  void smooth() {
    sums_.assign(static_cast<std::size_t>(chunks_of(rows_) * dim_), -5);
    mean.assign(static_cast<std::size_t>(dim_), -5);
    pass.sums = sums_.data();
    pass.mean = mean.data();
  }
  [[nodiscard]] float number(int row, int column) const {
    const auto at = static_cast<std::size_t>(row * dim_ + column);
    const float factor =
        factors[pass.k.scales.strides.row == 0 ? 0 : static_cast<std::size_t>(row / pass.k.scales.rows)];
    return load_element(static_cast<Dtype>(pass.k.to_element), elements.data(), at) * factor;
  }

  Pass pass{};
  std::vector<float> x;
  std::vector<unsigned char> elements;
  std::vector<float> factors;
  std::vector<float> mean;

 private:
  int rows_;
  int dim_;
  std::vector<unsigned> largest_;
  std::vector<double> sums_;
};

TEST(Pass, FactorsAreThoseOfTheLargestMagnitude) {
  for (const Element to : {Element::e4m3, Element::e5m2, Element::int8})
    for (const int rows_of_factor : {0, 1, 7, 64}) {
      Keys keys(300, 48, to, rows_of_factor);
      keys.run();
      const int block = rows_of_factor == 0 ? 300 : rows_of_factor;
      for (int begin = 0; begin < 300; begin += block) {
        float most = 0;
        for (int i = begin * 48; i < std::min(300, begin + block) * 48; ++i)
          most = std::max(most, std::abs(keys.x[static_cast<std::size_t>(i)]));
        ASSERT_EQ(keys.factors[static_cast<std::size_t>(begin / block)], most / largest_element(static_cast<int>(to)));
      }
      // Half a step of a number's size in e4m3 (4 digits) and e5m2 (3), and of the largest in int8.
      for (int row = 0; row < 300; ++row)
        for (int d = 0; d < 48; ++d) {
          const float given = keys.x[static_cast<std::size_t>(row * 48 + d)];
          const float factor = keys.factors[rows_of_factor == 0 ? 0 : static_cast<std::size_t>(row / block)];
          const float step = to == Element::int8   ? 0.5F * factor
                             : to == Element::e4m3 ? std::max(std::abs(given) / 16, factor * 0x1p-10F)
                                                   : std::max(std::abs(given) / 8, factor * 0x1p-17F);
          ASSERT_NEAR(keys.number(row, d), given, 1.0001F * step) << row << " " << d;
        }
    }
}

TEST(Pass, SmoothingTakesTheMeanOfSeenKeysOut) {
  Keys keys(300, 8, Element::e4m3, 0);
  keys.smooth();
  // Keys 250 and later are hidden, and hold what they like.
  keys.pass.rows.mask = static_cast<int>(MaskKind::causal);
  keys.pass.rows.right_offset = 249;
  for (int i = 250 * 8; i < 300 * 8; ++i) keys.x[static_cast<std::size_t>(i)] = kNotANumber;
  keys.run();
  for (int d = 0; d < 8; ++d) {
    double sum = 0;
    for (int j = 0; j < 250; ++j) sum += keys.x[static_cast<std::size_t>(j * 8 + d)];
    ASSERT_NEAR(keys.mean[static_cast<std::size_t>(d)], sum / 250, 1e-6);
    double left = 0;
    for (int j = 0; j < 250; ++j) left += keys.number(j, d);
    ASSERT_NEAR(left / 250, 0, 0.02);
  }
  EXPECT_TRUE(std::isfinite(keys.factors[0]));
  EXPECT_EQ(keys.elements[250 * 8], 0xee) << "a key that no row sees is written";
}

TEST(Pass, WhatIsNoNumber) {
  for (const float bad : {kNotANumber, kInfinity, -kInfinity}) {
    Keys fp8(64, 16, Element::e4m3, 32);
    fp8.x[40 * 16 + 5] = bad;
    fp8.smooth();
    fp8.run();
    EXPECT_TRUE(std::isnan(fp8.number(40, 5)));
    EXPECT_TRUE(std::isfinite(fp8.number(40, 4)) && std::isfinite(fp8.number(41, 5)));
    EXPECT_TRUE(std::isfinite(fp8.factors[0]) && std::isfinite(fp8.factors[1]));
    EXPECT_TRUE(std::isfinite(fp8.mean[5]));
    Keys int8(64, 16, Element::int8, 32);
    int8.x[40 * 16 + 5] = bad;
    int8.run();
    EXPECT_TRUE(std::isfinite(int8.factors[0]));
    EXPECT_TRUE(std::isnan(int8.factors[1]));
  }
}

TEST(Pass, FactorsArePositive) {
  Keys keys(64, 16, Element::e4m3, 32);
  std::fill(keys.x.begin(), keys.x.begin() + 32 * 16, 0.0F);
  std::fill(keys.x.begin() + 32 * 16, keys.x.end(), std::numeric_limits<float>::denorm_min());
  keys.run();
  EXPECT_EQ(keys.factors[0], 1.0F);
  EXPECT_EQ(keys.factors[1], std::numeric_limits<float>::min());
  std::fill(keys.x.begin(), keys.x.end(), kNotANumber);
  keys.run();
  EXPECT_EQ(keys.factors[0], 1.0F);
  std::fill(keys.x.begin(), keys.x.end(), std::numeric_limits<float>::max());
  keys.run();
  EXPECT_EQ(keys.number(3, 3), std::numeric_limits<float>::max());
}

TEST(Pass, ARotationIsOrthogonal) {
  for (const int dim : {1, 2, 16, 64, 512}) {
    unsigned signs[kSignWords];
    draw_signs(9, dim, signs);
    std::vector<float> a(static_cast<std::size_t>(dim), 0), b(static_cast<std::size_t>(dim));
    Random random(4);
    for (float& x : b) x = static_cast<float>(random.uniform() - 0.5);
    a[static_cast<std::size_t>(dim) / 2] = 100;
    const double before = 100.0 * b[static_cast<std::size_t>(dim) / 2];
    rotate(a, signs);
    rotate(b, signs);
    double after = 0;
    for (std::size_t i = 0; i < a.size(); ++i) after += static_cast<double>(a[i]) * b[i];
    EXPECT_NEAR(after, before, 1e-4);
    for (const float x : a) EXPECT_NEAR(std::abs(x), 100 / std::sqrt(dim), 1e-4);  // an outlier spreads
  }
}

// How many values the pass as it stands loses, and the first.
Lost lost_of(Keys& keys) {
  Lost lost[3];
  std::fill(std::begin(lost), std::end(lost), Lost{0, kNoneLost});
  keys.pass.lost = lost;
  for (long long piece = 0; piece < pieces_of(keys.pass, Stage::lost); ++piece)
    run_piece(keys.pass, Stage::lost, piece);
  keys.pass.lost = nullptr;
  EXPECT_EQ(lost[0].count + lost[2].count, 0U);
  return lost[1];
}

TEST(Pass, FactorsOfTheLargestMagnitudeLoseNothing) {
  for (const Element to : {Element::e4m3, Element::e5m2, Element::int8})
    for (const float most : {std::numeric_limits<float>::max(), 448.0F, std::numeric_limits<float>::denorm_min()}) {
      Keys keys(300, 48, to, 7);
      for (std::size_t i = 0; i < keys.x.size(); i += 5) keys.x[i] = i % 2 == 0 ? most : -most;
      keys.x[17] = kNotANumber;  // shows in O as without quantising
      keys.run();
      EXPECT_EQ(pieces_of(keys.pass, Stage::lost), 0) << "nobody asks";
      EXPECT_EQ(lost_of(keys).count, 0U);
    }
}

TEST(Pass, InfinityIsLostWhateverItsElement) {
  for (const Element to : {Element::e4m3, Element::e5m2, Element::int8}) {
    Keys keys(300, 16, to, 32);
    keys.x[140 * 16 + 5] = kInfinity;
    keys.x[141 * 16] = -kInfinity;
    keys.run();
    const Lost lost = lost_of(keys);
    EXPECT_EQ(lost.count, 2U);
    EXPECT_EQ(lost.first, 140U * 16 + 5);
  }
}

TEST(Pass, SmoothingAndRotatingMayLeaveFp32) {
  constexpr float kMost = std::numeric_limits<float>::max();
  Keys smoothed(64, 16, Element::e4m3, 0);
  for (std::size_t row = 0; row < 64; ++row) smoothed.x[row * 16 + 3] = row == 50 ? kMost : -kMost;
  smoothed.smooth();
  smoothed.run();
  EXPECT_EQ(lost_of(smoothed).count, 1U);
  EXPECT_EQ(lost_of(smoothed).first, 50U * 16 + 3);
  Keys rotated(64, 16, Element::e4m3, 0);
  std::fill_n(rotated.x.begin() + 9 * 16, 16, kMost);
  draw_signs(7, 16, rotated.pass.signs);
  rotated.pass.norm = rotation_norm(16);
  rotated.pass.k.is_rotated = 1;
  rotated.run();
  const Lost lost = lost_of(rotated);
  EXPECT_GT(lost.count, 0U);
  EXPECT_EQ(lost.first / 16, 9U);
}

// Factors that do not cover the values: what a pass by largest magnitudes never has.
TEST(Pass, ElementsBeyondTheLargestSaturateAndAreCounted) {
  for (const auto& [to, most] :
       {std::pair{Element::e4m3, 464.0F}, {Element::e5m2, 61440.0F}, {Element::int8, 127.5F}}) {
    Keys keys(64, 16, to, 0);
    keys.run();
    constexpr float kFactor = 0x1p-9F;
    *keys.pass.k.largest = detail::bits_of_float(kFactor * largest_element(static_cast<int>(to)));
    for (long long piece = 0; piece < pieces_of(keys.pass, Stage::elements); ++piece)
      run_piece(keys.pass, Stage::elements, piece);
    Lost expected{0, kNoneLost};
    for (std::size_t i = 0; i < keys.x.size(); ++i) {
      const float scaled = keys.x[i] / kFactor;
      if (!(scaled > most || scaled < -most - (to == Element::int8 ? 1 : 0))) continue;
      if (expected.count++ == 0) expected.first = i;
      EXPECT_NEAR(std::abs(keys.number(static_cast<int>(i / 16), static_cast<int>(i % 16))),
                  kFactor * largest_element(static_cast<int>(to)), kFactor);
    }
    EXPECT_EQ(lost_of(keys).count, expected.count);
    EXPECT_EQ(lost_of(keys).first, expected.first);
    EXPECT_EQ(expected.count > 0, to != Element::e5m2);
  }
}

TEST(Pass, PiecesAreIndependent) {
  Keys forward(700, 32, Element::int8, 64), backward(700, 32, Element::int8, 64);
  forward.smooth();
  forward.run();
  backward.smooth();
  backward.run();  // binds addresses
  std::fill(backward.elements.begin(), backward.elements.end(), static_cast<unsigned char>(0));
  std::fill_n(backward.pass.k.largest, backward.pass.k.count, 0U);
  for (const Stage stage : {Stage::sums, Stage::means, Stage::largest, Stage::elements})
    for (long long piece = pieces_of(backward.pass, stage); piece-- > 0;) run_piece(backward.pass, stage, piece);
  EXPECT_EQ(forward.elements, backward.elements);
  EXPECT_EQ(forward.factors, backward.factors);
}

}  // namespace
}  // namespace heed::quantise
