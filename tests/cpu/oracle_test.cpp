// The root of all trust: the oracle against cases whose answer can be written down, and against the definition, term by
// term.
#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "testing.hpp"
#include "verify/reference.hpp"
#include "verify/small_matrix.hpp"
#include "verify/unfused.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

// Dense fp32 tensors in (batch, head, row, dim) order.
struct Tensors {
  explicit Tensors(const Workload& w, std::uint64_t seed = 1) : workload(w) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& x, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>(random.normal()));
    };
    fill(q, w.batch * w.heads * w.len_q * w.dim);
    fill(k, w.batch * w.heads_kv * w.len_k * w.dim);
    fill(v, w.batch * w.heads_kv * w.len_k * w.dim_v);
  }
  [[nodiscard]] HostTensors view() const {
    const Workload& w = workload;
    return {q.data(),
            k.data(),
            v.data(),
            {w.heads * w.len_q * w.dim, w.len_q * w.dim, w.dim},
            {w.heads_kv * w.len_k * w.dim, w.len_k * w.dim, w.dim},
            {w.heads_kv * w.len_k * w.dim_v, w.len_k * w.dim_v, w.dim_v}};
  }
  Workload workload;
  std::vector<float> q, k, v;
};

// The definition: no tiles, no running maximum, long double.
void by_definition(const Tensors& t, const RowIndex& at, std::vector<double>& out, double& lse) {
  const Workload& w = t.workload;
  const std::int64_t kv = at.head / (w.heads / w.heads_kv);
  const float* q = t.q.data() + ((at.batch * w.heads + at.head) * w.len_q + at.row) * w.dim;
  std::vector<long double> scores;
  const KeyRange seen = w.keys_of(at.row);
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    const float* k = t.k.data() + ((at.batch * w.heads_kv + kv) * w.len_k + j) * w.dim;
    long double score = 0;
    for (std::int64_t d = 0; d < w.dim; ++d) score += static_cast<long double>(q[d]) * static_cast<long double>(k[d]);
    scores.push_back(score * static_cast<long double>(w.softmax_scale()));
  }
  long double sum = 0;
  for (const long double score : scores) sum += std::exp(score);
  out.assign(static_cast<std::size_t>(w.dim_v), 0.0);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const float* v =
        t.v.data() + ((at.batch * w.heads_kv + kv) * w.len_k + seen.begin + static_cast<std::int64_t>(j)) * w.dim_v;
    for (std::int64_t d = 0; d < w.dim_v; ++d)
      out[static_cast<std::size_t>(d)] +=
          static_cast<double>(std::exp(scores[j]) / sum * static_cast<long double>(v[d]));
  }
  lse = scores.empty() ? -std::numeric_limits<double>::infinity() : static_cast<double>(std::log(sum));
}

class OracleAgainstDefinition : public ::testing::TestWithParam<const char*> {};

TEST_P(OracleAgainstDefinition, Agrees) {
  const Tensors t(parse_workload(GetParam()));
  const std::vector<RowIndex> rows = all_rows(t.workload);
  const ReferenceRows result = reference_attention(t.workload, t.view(), rows);
  std::vector<double> expected;
  double lse = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    by_definition(t, rows[i], expected, lse);
    for (std::int64_t d = 0; d < t.workload.dim_v; ++d)
      ASSERT_NEAR(result.out[i * static_cast<std::size_t>(t.workload.dim_v) + static_cast<std::size_t>(d)],
                  expected[static_cast<std::size_t>(d)], 1e-12)
          << "row " << i;
    if (std::isinf(lse))
      ASSERT_EQ(result.lse[i], lse);
    else
      ASSERT_NEAR(result.lse[i], lse, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OracleAgainstDefinition,
                         ::testing::Values("b1h1l1d1:fp32", "b2h3l17k33d5:fp32", "b1h2l64k64d16:fp32",
                                           "b1h1l65k129d64:fp32", "b1h6hkv2l20k70d8:fp32", "b1h2l40k100d8dv24:fp32",
                                           "b1h2l130d8:fp32:causal_top_left", "b1h2l130k70d8:fp32:causal_bottom_right",
                                           "b1h2l70k130d8:fp32:causal_bottom_right",
                                           "b1h2l70k130d8:fp32:causal_top_left", "b1h1l130k70d8:fp32:causal_top_left",
                                           "b1h1l30d16:fp32:scale=3", "b1h2l130d8:fp32:causal_top_left:window=9",
                                           "b1h2l130k300d8:fp32:causal_bottom_right:window=63",
                                           "b1h6hkv2l20k270d8:fp32:window=70/5", "b1h1l130k70d8:fp32:window=0/3",
                                           "b1h1l300k70d8:fp32:window_top_left=64/100", "b1h1l3k200d8:fp32:window=90",
                                           "b1h1l30k200d8:fp32:window=-1/100"));

TEST(Oracle, OneKeyGivesItsValue) {
  const Tensors t(parse_workload("b1h1l3k1d4:fp32"));
  const ReferenceRows result = reference_attention(t.workload, t.view(), all_rows(t.workload));
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t d = 0; d < 4; ++d) EXPECT_DOUBLE_EQ(result.out[row * 4 + d], t.v[d]);
}

TEST(Oracle, TwoKeysAreALogisticFunction) {
  Tensors t(parse_workload("b1h1l1k2d1:fp32:scale=1"));
  t.q = {2.0F};
  t.k = {1.5F, -0.25F};
  t.v = {1.0F, 0.0F};
  const ReferenceRows result = reference_attention(t.workload, t.view(), all_rows(t.workload));
  EXPECT_NEAR(result.out[0], 1.0 / (1.0 + std::exp(-(3.0 - -0.5))), 1e-15);
  EXPECT_NEAR(result.lse[0], std::log(std::exp(3.0) + std::exp(-0.5)), 1e-15);
}

TEST(Oracle, ZeroKeysGiveTheMeanOfVisibleValues) {
  Tensors t(parse_workload("b1h1l5k9d4:fp32:causal_bottom_right"));
  std::fill(t.k.begin(), t.k.end(), 0.0F);
  const ReferenceRows result = reference_attention(t.workload, t.view(), all_rows(t.workload));
  for (std::int64_t row = 0; row < 5; ++row) {
    double mean = 0;
    for (std::int64_t j = 0; j < row + 5; ++j) mean += t.v[static_cast<std::size_t>(j * 4)];
    mean /= static_cast<double>(row + 5);
    EXPECT_NEAR(result.out[static_cast<std::size_t>(row * 4)], mean, 1e-14);
    EXPECT_NEAR(result.lse[static_cast<std::size_t>(row)], std::log(static_cast<double>(row + 5)), 1e-14);
  }
}

TEST(Oracle, NothingToAttendToGivesZeros) {
  const Tensors t(parse_workload("b1h1l6k2d4:fp32:causal_bottom_right"));
  const ReferenceRows result = reference_attention(t.workload, t.view(), all_rows(t.workload));
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(result.lse[row], -std::numeric_limits<double>::infinity());
    for (std::size_t d = 0; d < 4; ++d) EXPECT_EQ(result.out[row * 4 + d], 0.0);
  }
}

TEST(Oracle, HiddenKeysMayHoldAnything) {
  for (const char* text : {"b1h1l10k40d8:fp32:causal_top_left", "b1h1l40k40d8:fp32:causal_top_left"}) {
    Tensors clean(parse_workload(text));
    Tensors dirty = clean;
    const Workload& w = clean.workload;
    const std::int64_t first_hidden = w.keys_of(9).end;
    for (std::int64_t i = first_hidden * 8; i < w.len_k * 8; ++i)
      dirty.k[static_cast<std::size_t>(i)] = dirty.v[static_cast<std::size_t>(i)] = NAN;
    std::vector<RowIndex> rows;
    for (std::int64_t row = 0; row < 10; ++row) rows.push_back({0, 0, row});
    EXPECT_EQ(reference_attention(w, clean.view(), rows).out, reference_attention(w, dirty.view(), rows).out) << text;
  }
}

TEST(Oracle, HiddenKeysInFrontMayHoldAnything) {
  for (const char* text : {"b1h1l10k300d8:fp32:causal_bottom_right:window=100", "b1h1l70k100d8:fp32:window=3/20"}) {
    Tensors clean(parse_workload(text));
    Tensors dirty = clean;
    const Workload& w = clean.workload;
    std::vector<RowIndex> rows;
    for (std::int64_t row = w.len_q - 5; row < w.len_q; ++row) rows.push_back({0, 0, row});
    const std::int64_t first_seen = w.keys_of(w.len_q - 5).begin;
    ASSERT_GT(first_seen, 0);
    for (std::int64_t i = 0; i < first_seen * 8; ++i)
      dirty.k[static_cast<std::size_t>(i)] = dirty.v[static_cast<std::size_t>(i)] = NAN;
    EXPECT_EQ(reference_attention(w, clean.view(), rows).out, reference_attention(w, dirty.view(), rows).out) << text;
    EXPECT_EQ(unfused_attention(w, clean.view(), rows, 1).out, unfused_attention(w, dirty.view(), rows, 1).out) << text;
    // One key more to the left, and the first of these rows is another.
    Tensors one_less = dirty;
    for (std::int64_t d = 0; d < 8; ++d) one_less.v[static_cast<std::size_t>(first_seen * 8 + d)] = NAN;
    EXPECT_TRUE(std::isnan(reference_attention(w, one_less.view(), rows).out[0])) << text;
  }
}

// What a row sees of NaN and infinity shows in it, and in no other row.
TEST(Oracle, NaNShowsInTheRowsThatSeeIt) {
  const Workload w = parse_workload("b1h1l8d4:fp32:causal_top_left");
  const auto finite_rows = [&](const auto& change) {
    Tensors t(w);
    change(t);
    const ReferenceRows result = reference_attention(w, t.view(), all_rows(w));
    std::string rows;
    for (std::size_t i = 0; i < 8; ++i) {
      bool finite = true;
      for (std::size_t d = 0; d < 4; ++d) finite = finite && std::isfinite(result.out[i * 4 + d]);
      rows += finite ? '.' : 'x';
      EXPECT_EQ(std::isnan(result.lse[i]), rows.back() == 'x' && !std::isnan(t.v[3 * 4 + 1])) << i;
    }
    return rows;
  };
  EXPECT_EQ(finite_rows([](Tensors& t) { t.q[5 * 4 + 2] = NAN; }), ".....x..");
  EXPECT_EQ(finite_rows([](Tensors& t) { t.k[3 * 4 + 1] = NAN; }), "...xxxxx");
  EXPECT_EQ(finite_rows([](Tensors& t) { t.v[3 * 4 + 1] = NAN; }), "...xxxxx");
  // Beyond fp32: above it everywhere; below it a row that sees nothing else, which is not a row that sees nothing.
  const auto all_of = [](std::vector<float>& x, float value) { std::fill(x.begin(), x.end(), value); };
  EXPECT_EQ(finite_rows([&](Tensors& t) { all_of(t.q, 1e20F), all_of(t.k, 1e20F); }), "xxxxxxxx");
  EXPECT_EQ(finite_rows([&](Tensors& t) { all_of(t.q, 1e20F), all_of(t.k, -1e20F); }), "xxxxxxxx");
  EXPECT_EQ(finite_rows([&](Tensors& t) {
              all_of(t.q, 1e20F), all_of(t.k, -1e20F);
              std::fill_n(t.k.begin() + 2 * 4, 4, 1e-20F);
            }),
            "xx......");
}

// What the gate's tolerance is made of, against sums written out.
TEST(Oracle, RowConditionsAreWhatTheySay) {
  const Tensors t(parse_workload("b1h1l3k70d8:fp32"));
  const Workload& w = t.workload;
  std::vector<RowCondition> condition;
  const ReferenceRows result = reference_attention(w, t.view(), all_rows(w), condition);
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<double> p(70), k_square(70), v_square(70);
    double sum = 0, query = 0, score_size = 0, value_size = 0, spread = 0;
    for (std::size_t d = 0; d < 8; ++d) query += std::pow(t.q[i * 8 + d] * w.softmax_scale(), 2);
    for (std::size_t j = 0; j < 70; ++j) {
      double score = 0;
      for (std::size_t d = 0; d < 8; ++d) {
        score += w.softmax_scale() * static_cast<double>(t.q[i * 8 + d]) * static_cast<double>(t.k[j * 8 + d]);
        k_square[j] += std::pow(t.k[j * 8 + d], 2);
        v_square[j] += std::pow(t.v[j * 8 + d], 2);
      }
      sum += p[j] = std::exp(score);
    }
    for (std::size_t j = 0; j < 70; ++j) {
      score_size += p[j] / sum * k_square[j];
      value_size += std::pow(p[j] / sum, 2) * v_square[j];
      for (std::size_t d = 0; d < 8; ++d)
        spread += p[j] / sum * std::pow(static_cast<double>(t.v[j * 8 + d]) - result.out[i * 8 + d], 2);
    }
    EXPECT_NEAR(condition[i].score_size, std::sqrt(query * score_size), 1e-9);
    EXPECT_NEAR(condition[i].value_size, std::sqrt(value_size), 1e-9);
    EXPECT_NEAR(condition[i].value_spread, std::sqrt(spread), 1e-9);
    EXPECT_FALSE(condition[i].may_leave_fp32);
  }
}

TEST(Oracle, LargeScoresDoNotOverflow) {
  Tensors t(parse_workload("b1h1l4k100d8:fp32"));
  for (float& x : t.q) x *= 1e4F;
  for (float& x : t.k) x *= 1e4F;
  const ReferenceRows result = reference_attention(t.workload, t.view(), all_rows(t.workload));
  for (const double x : result.out) EXPECT_TRUE(std::isfinite(x));
}

TEST(Oracle, RowsByThemselvesAreTheSameAsAllTogether) {
  const Tensors t(parse_workload("b2h4hkv2l200k90d16:fp32"));
  const std::vector<RowIndex> rows = all_rows(t.workload);
  const ReferenceRows together = reference_attention(t.workload, t.view(), rows);
  for (const std::size_t i : {std::size_t{0}, std::size_t{333}, rows.size() - 1}) {
    const RowIndex one[] = {rows[i]};
    const ReferenceRows alone = reference_attention(t.workload, t.view(), one, 1);
    for (std::size_t d = 0; d < 16; ++d) EXPECT_EQ(alone.out[d], together.out[i * 16 + d]);
  }
}

TEST(Unfused, AgreesWithTheOracleInFp32) {
  for (const char* text :
       {"b1h2l70k130d24:fp32", "b1h2l70k130d24:fp32:causal_bottom_right", "b1h2l130k70d24:fp32:causal_bottom_right"}) {
    const Tensors t(parse_workload(text));
    const std::vector<RowIndex> rows = all_rows(t.workload);
    const ReferenceRows oracle = reference_attention(t.workload, t.view(), rows);
    const UnfusedRows unfused = unfused_attention(t.workload, t.view(), rows);
    for (std::size_t i = 0; i < unfused.out.size(); ++i) ASSERT_NEAR(unfused.out[i], oracle.out[i], 2e-6) << text;
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (std::isfinite(oracle.lse[i])) {
        ASSERT_NEAR(unfused.lse[i], oracle.lse[i], 1e-5) << text;
      }
  }
}

// Rounding three times in 16 bits costs what it must: neither nothing nor much more than the type's precision.
TEST(Unfused, ErrorInHalfPrecisionIsOfTheTypesSize) {
  Workload w = parse_workload("b1h2l64k256d64:fp16");
  const Tensors t(w);
  std::vector<std::uint16_t> q, k, v;
  for (const float x : t.q) q.push_back(float_to_fp16(x));
  for (const float x : t.k) k.push_back(float_to_fp16(x));
  for (const float x : t.v) v.push_back(float_to_fp16(x));
  HostTensors view = t.view();
  view.q = q.data();
  view.k = k.data();
  view.v = v.data();
  const std::vector<RowIndex> rows = all_rows(w);
  const ReferenceRows oracle = reference_attention(w, view, rows);
  const std::vector<float> unfused = unfused_attention(w, view, rows).out;
  double worst = 0;
  for (std::size_t i = 0; i < unfused.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(unfused[i]) - oracle.out[i]));
  EXPECT_GT(worst, 1e-5);
  EXPECT_LT(worst, 2e-3);
}

TEST(SmallMatrix, AgreesWithTheDefinitionForAllRowCounts) {
  Random random(2);
  constexpr std::int64_t kColumns = 32;
  for (std::int64_t rows = 1; rows <= 9; ++rows)
    for (const std::int64_t depth : {0, 1, 7, 33}) {
      std::vector<double> a(static_cast<std::size_t>(rows * depth)), b(static_cast<std::size_t>(depth * kColumns)),
          c(static_cast<std::size_t>(rows * kColumns));
      for (auto* x : {&a, &b, &c})
        for (double& value : *x) value = random.normal();
      std::vector<double> expected = c;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < kColumns; ++j)
          for (std::int64_t k = 0; k < depth; ++k)
            expected[static_cast<std::size_t>(r * kColumns + j)] +=
                a[static_cast<std::size_t>(r * depth + k)] * b[static_cast<std::size_t>(k * kColumns + j)];
      multiply_add(c.data(), kColumns, a.data(), depth, b.data(), kColumns, rows, kColumns, depth);
      for (std::size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], expected[i], 1e-12);
    }
}

}  // namespace
}  // namespace heed
