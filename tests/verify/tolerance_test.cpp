// What is allowed of an output, and that nothing which is no attention fits into it.
#include "verify/tolerance.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/random.hpp"
#include "testing.hpp"
#include "verify/gate.hpp"
#include "verify/given_features.hpp"
#include "verify/scenario.hpp"

namespace heed::verify {
namespace {

Scenario given(const std::string& name, Mask mask) {
  QkvTensors tensors =
      read_qkv_safetensors(std::string(testing_support::kSourceFolder) + "/tests/cases/" + name, Layout::bhld);
  tensors.workload.mask = mask;
  return {tensors.workload, values_of(tensors)};
}

constexpr const char* kQwen_bf16 = "qwen_bf16_300_40.safetensors";
constexpr const char* kQwen_fp16 = "qwen_fp16_4000_200.safetensors";
constexpr const char* kFarBelow = "one_logit_far_below_fp32_d512.safetensors";

std::size_t row_number(const Scenario& s, const RowIndex& row) {
  const Workload& w = s.scene.workload();
  return static_cast<std::size_t>((row.batch * w.heads + row.head) * w.len_q + row.row);
}

// One channel of K at +300 and of Q at +40, scores near 1,100: bf16 scores would be off by 4, fp32 scores are by 1e-3.
TEST(Tolerance, OutlierChannelsOfAModelLetNoZerosPass) {
  Scenario s = given(kQwen_bf16, Mask::causal_top_left);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  EXPECT_LT(s.reference.unfused.rel_rms, 4e-3);
  EXPECT_LT(s.reference.tolerance.rel_rms, 0.02);
  EXPECT_LT(s.reference.tolerance.worst_row, 0.1);
  EXPECT_EQ(s.reference.tolerance.unresolved, 0);
  Scenario zeros = s;
  zeros.change_all([&](const RowIndex& row, std::int64_t, float value) {
    return s.reference.oracle.lse[row_number(s, row)] > 200 ? 0.0F : value;
  });
  EXPECT_EQ(zeros.compare().finding, Finding::inexact);
  Scenario one_row = s;
  one_row.change_all(
      [&](const RowIndex& row, std::int64_t, float value) { return row == RowIndex{0, 3, 63} ? 0.0F : value; });
  EXPECT_EQ(one_row.compare().finding, Finding::inexact);
}

// Scaled scores of 7.2e4, beyond fp16; fp32 rounds them by about 0.05, which moves an honest output by as much.
TEST(Tolerance, ScoresBeyondFp16AreJudgedByTheirFp32Error) {
  Scenario s = given(kQwen_fp16, Mask::causal_top_left);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  EXPECT_LT(s.reference.tolerance.rel_rms, 0.66);
  EXPECT_EQ(s.reference.tolerance.unresolved, 0);
  for (const float factor : {0.0F, -1.0F, 0.2F, 2.0F}) {
    Scenario wrong = s;
    wrong.change_all([&](const RowIndex&, std::int64_t, float value) { return value * factor; });
    EXPECT_EQ(wrong.compare().finding, Finding::inexact) << factor;
  }
}

// Beside V in e4m3 P has as few digits, which is allowed, and little more; beside int8 it has those of the dtype.
TEST(Tolerance, ProbabilitiesHaveTheElementsOfV) {
  const Scenario fp8("h2l60k200d64:quantised=qkv/e4m3/head");
  EXPECT_GT(fp8.reference.unfused.rel_rms, 0.01);
  EXPECT_LT(fp8.reference.unfused.rel_rms, 0.04);
  EXPECT_LT(fp8.reference.tolerance.rel_rms, 0.1);
  EXPECT_LT(fp8.reference.tolerance.worst_row, 0.2);
  EXPECT_LT(fp8.reference.tolerance.lse, 0.05);
  for (const float factor : {0.8F, 1.2F}) {
    Scenario wrong = fp8;
    wrong.hard_limit = false;
    wrong.change_all([&](const RowIndex&, std::int64_t, float value) { return value * factor; });
    EXPECT_EQ(wrong.compare().finding, Finding::inexact) << factor;
  }
  const Scenario int8("h2l60k200d64:quantised=qkv/int8/head");
  EXPECT_LT(int8.reference.tolerance.rel_rms, 2e-3);
  EXPECT_LT(int8.reference.tolerance.lse, 0.01);
}

// A score of -2430 as a sum of 512 products of one sign: an honest fp32 sum was seen 0.009 off.
TEST(Tolerance, LogSumExpIsJudgedByTheSizeOfTheScores) {
  Scenario s = given(kFarBelow, Mask::none);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  const double exact = s.reference.oracle.lse[0];
  s.set_lse({0, 0, 0}, static_cast<float>(exact - 0.0091));
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  const double limit = s.reference.tolerance.rows[0].lse;
  EXPECT_LT(limit, 0.1);
  s.set_lse({0, 0, 0}, static_cast<float>(exact + 10 * limit));
  const Comparison result = s.compare();
  EXPECT_EQ(result.finding, Finding::wrong_lse);
  EXPECT_THAT(result.text, ::testing::HasSubstr(fmt::format("within {:.3g}", limit)));
}

TEST(Tolerance, LogSumExpOfSmallScoresIsTight) {
  for (const char* text : {"b1h2l40k70d64:fp32", "b1h2l40k70d64:fp16", "b1h2l40k70d64:bf16"}) {
    Scenario s(text);
    const double limit = s.reference.tolerance.rows[7].lse;
    EXPECT_LT(limit, 1e-2) << text;
    s.set_lse({0, 0, 7}, static_cast<float>(s.reference.oracle.lse[7] + 10 * limit));
    EXPECT_EQ(s.compare().finding, Finding::wrong_lse) << text;
  }
}

// Whatever the inputs: zeros, one value everywhere, V's rows, a head of zeros, one row of zeros, and rows a few percent
// too large are wrong.
TEST(Tolerance, NothingPassesThatIsNoAttention) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
    for (const InputClass inputs : all_input_classes()) {
      if (inputs == InputClass::equal_heads) continue;  // its own test
      Workload w = parse_workload("b1h2l60d64");
      w.dtype = dtype;
      const Scenario s(w, make_inputs(w, inputs, 3));
      const std::string name = fmt::format("{} {}", to_string(dtype), to_string(inputs));
      EXPECT_EQ(s.compare().finding, Finding::none) << name << s.compare().text;
      EXPECT_LT(s.reference.tolerance.worst_row, 0.9) << name;
      EXPECT_LE(s.reference.tolerance.rel_rms, 0.65) << name;
      EXPECT_EQ(s.reference.tolerance.unresolved, 0) << name;
      const auto finding = [&](const auto& change) {
        Scenario wrong = s;
        wrong.change_all(change);
        return wrong.compare().finding;
      };
      const auto is_wrong = [&](const char* what, const auto& change) {
        const Finding found = finding(change);
        EXPECT_TRUE(found == Finding::inexact || found == Finding::hard_limit) << name << ": " << what;
      };
      is_wrong("zeros", [](const RowIndex&, std::int64_t, float) { return 0.0F; });
      is_wrong("a constant", [](const RowIndex&, std::int64_t, float) { return 0.25F; });
      is_wrong("a head of zeros", [](const RowIndex& row, std::int64_t, float x) { return row.head == 1 ? 0.0F : x; });
      is_wrong("a row of zeros",
               [](const RowIndex& row, std::int64_t, float x) { return row == RowIndex{0, 1, 31} ? 0.0F : x; });
      is_wrong("a scaled row",
               [](const RowIndex& row, std::int64_t, float x) { return row == RowIndex{0, 0, 30} ? 1.1F * x : x; });
      if (inputs != InputClass::one_hot && inputs != InputClass::own_key)
        is_wrong("another row", [&](const RowIndex& row, std::int64_t d, float x) {
          return row == RowIndex{0, 0, 30} ? static_cast<float>(s.reference.oracle.out[static_cast<std::size_t>(d)]) * 2
                                           : x;
        });
    }
}

// Values that cancel: an output of nearly nothing may be off by the rounding of what cancels, a zero passes there, and
// rows beside it are judged as strictly as without it.
TEST(Tolerance, RowsThatCancelDoNotLoosenOthers) {
  const Workload w = parse_workload("b1h1l64d64:fp16");
  InputValues values = make_inputs(w, InputClass::normal, 3);
  const Scenario plain(w, values);
  std::fill_n(values.q.begin() + 5 * 64, 64, 0.0F);  // row 5: the mean of all values, which is made nothing
  for (std::int64_t j = 1; j < 64; j += 2)
    for (std::int64_t d = 0; d < 64; ++d)
      values.v[static_cast<std::size_t>(j * 64 + d)] = -values.v[static_cast<std::size_t>((j - 1) * 64 + d)];
  Scenario s(w, values);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  EXPECT_LT(s.reference.tolerance.worst_row, 2 * plain.reference.tolerance.worst_row);
  for (std::int64_t d = 0; d < 64; ++d) s.set({0, 0, 5}, d, d % 2 == 0 ? 2e-5F : -2e-5F);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  for (std::int64_t d = 0; d < 64; ++d) s.set({0, 0, 6}, d, 0.0F);
  EXPECT_EQ(s.compare().finding, Finding::inexact);
}

// Scores that fp32 rounds by more than they differ by: no row is told right from wrong, but zeros are.
TEST(Tolerance, RowsBeyondFp32ScoresMustStillBeMeansOfTheirValues) {
  const Workload w = parse_workload("b1h1l40d64:bf16");
  InputValues values = make_inputs(w, InputClass::normal, 3);
  for (std::size_t i = 0; i < values.q.size(); i += 64) values.q[i] = 3e4F;
  for (std::size_t i = 0; i < values.k.size(); i += 64) values.k[i] = 1e4F;
  Scenario s(w, values);
  EXPECT_GT(s.reference.tolerance.unresolved, 20);
  EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
  s.change_all([](const RowIndex&, std::int64_t, float) { return 0.0F; });
  EXPECT_EQ(s.compare().finding, Finding::inexact);
}

TEST(Tolerance, MustBeNumbers) {
  const Workload w = parse_workload("b1h1l1k2d4:fp32");
  const ReferenceRows oracle{.out = {1, 2, 3, 4}, .lse = {1}};
  std::vector<RowCondition> condition(1);
  ErrorStats unfused;
  EXPECT_NO_THROW((void)calibrated_tolerance(w, {{0, 0, 0}}, oracle, condition, {1, 2, 3, 4}, {1}, unfused));
  condition[0].score_size = NAN;
  testing_support::expect_error(ErrorCode::internal, "must be a number", [&] {
    (void)calibrated_tolerance(w, {{0, 0, 0}}, oracle, condition, {1, 2, 3, 4}, {1}, unfused);
  });
}

TEST(Tolerance, ScoreErrorIsThatOfASumInFp32) {
  EXPECT_DOUBLE_EQ(fp32_score_error(-40, 64), (8 + 4) * 40 * 0x1p-24);
  // Sums of 64 products of one size and sign in fp32.
  Random random(1);
  double worst = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    float sum = 0;
    double exact = 0;
    for (int d = 0; d < 64; ++d) {
      const auto a = static_cast<float>(random.uniform(0.9, 1.1));
      const auto b = static_cast<float>(random.uniform(0.9, 1.1));
      sum = std::fma(a, b, sum);
      exact += static_cast<double>(a) * static_cast<double>(b);
    }
    worst = std::max(worst, std::abs(static_cast<double>(sum) - exact) / fp32_score_error(exact, 64));
  }
  EXPECT_LT(worst, 1);
  EXPECT_GT(worst, 0.05);
}

}  // namespace
}  // namespace heed::verify
