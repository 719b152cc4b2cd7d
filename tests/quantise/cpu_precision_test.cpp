// heed_options.precision on a CPU, through the C interface: results, log-sum-exps, and what is refused.
#include <cmath>
#include <cstring>
#include <limits>

#include "api/cpu_programs.hpp"
#include "base/random.hpp"
#include "precision_case.hpp"

namespace heed {
namespace {

using testing_support::PrecisionCase;
using testing_support::PrecisionRun;
using testing_support::TemporaryFolder;
using verify::InputClass;

class CpuPrecision : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    testing_support::write_cpu_programs(
        folder_->file("heed.programs"),
        {"l64d64:fp32:quantised=qk/int8/head", "l64d64:fp32:quantised=qkv/e4m3/head",
         "l64d64:fp32:quantised=qk/int8/head+v/e4m3/head", "l64d64:fp32:causal_top_left:quantised=qk/int8/head",
         "l64d64:fp32:causal_top_left:quantised=qkv/e4m3/head", "l64d64:fp32:window=9/3:quantised=qk/int8/head",
         "l64d64:fp16:quantised=qkv/e4m3/head", "l64d64:bf16:quantised=qk/int8/head"},
        kAllFeatures);
  }
  static void TearDownTestSuite() { delete folder_; }

  static heed_options options(const std::string& precision) {
    static const std::string path = folder_->file("heed.programs");
    static std::vector<std::unique_ptr<std::string>> names;  // texts of options outlive them
    names.push_back(std::make_unique<std::string>(precision));
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.book = "";
    o.precision = names.back()->c_str();
    return o;
  }
  static void run(PrecisionCase& one, const std::string& precision) {
    const PrecisionRun plan(one.problem(), options(precision));
    EXPECT_EQ(plan.run(one.tensors()), HEED_OK) << precision << ": " << heed_last_error();
    EXPECT_EQ(one.forbidden_write(), "") << precision;
  }
  static void refused(const heed_problem& problem, const std::string& precision, heed_status expected,
                      const std::string& words) {
    const heed_options o = options(precision);
    heed_plan* plan = nullptr;
    EXPECT_STREQ(heed_status_name(heed_plan_create(&problem, &o, &plan)), heed_status_name(expected)) << precision;
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(words)) << precision;
    EXPECT_EQ(plan, nullptr);
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* CpuPrecision::folder_ = nullptr;

// What is left between the results and those of the gate, where both have the same quantised numbers: sums in fp32.
void expect_same_numbers(const PrecisionCase& one, const quantise::Mode& mode, double tolerance) {
  const ReferenceRows expected = one.quantised(mode);
  const std::vector<double> out = one.out();
  const verify::Accuracy error = verify::accuracy_of(one.rows(), out, expected.out);
  EXPECT_LT(error.rel_rms, tolerance) << to_string(one.workload()) << " " << mode.name;
}

// The mode's own cost on these tensors: as little as nothing would say that nothing was quantised.
void expect_calibrated(const PrecisionCase& one, const quantise::Mode& mode, double rounding) {
  const double cost = verify::accuracy_of(one.rows(), one.quantised(mode).out, one.exact().out).rel_rms;
  const double error = verify::accuracy_of(one.rows(), one.out(), one.exact().out).rel_rms;
  EXPECT_LT(error, 1.1 * cost + rounding) << to_string(one.workload()) << " " << mode.name;
  EXPECT_GT(error, 0.5 * cost) << to_string(one.workload()) << " " << mode.name;
}

// Log-sum-exps are those of the given tensors, but for what quantising does to a score.
void expect_log_sums(const PrecisionCase& one, double tolerance, const std::string& what) {
  const std::vector<double> lse = one.lse();
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(one.exact().lse[i]))
      ASSERT_EQ(lse[i], one.exact().lse[i]) << what << " row " << i;
    else
      ASSERT_NEAR(lse[i], one.exact().lse[i], tolerance) << what << " row " << i;
  }
}

// e4m3 beside P: both operands of the product with values are rounded to it.
double tolerance_of(const quantise::Mode& mode) {
  return mode.tensors.find("v/e4m3") != std::string_view::npos ||
                 mode.tensors.find("qkv/e4m3") != std::string_view::npos
             ? 4e-2
             : 1e-4;
}

TEST_F(CpuPrecision, EveryModeIsAsExactAsItsQuantisedNumbers) {
  for (const quantise::Mode& mode : quantise::modes())
    for (const InputClass inputs : {InputClass::normal, InputClass::channel_offsets}) {
      PrecisionCase one("b2h4hkv2l70k150d64:fp32", inputs);
      run(one, std::string(mode.name));
      expect_same_numbers(one, mode, tolerance_of(mode));
      expect_calibrated(one, mode, tolerance_of(mode));
      expect_log_sums(one, mode.smooths || inputs == InputClass::normal ? 0.1 : 1.5, std::string(mode.name));
    }
}

TEST_F(CpuPrecision, MasksLengthsAndLayoutsAreThoseOfTheCaller) {
  for (const char* text :
       {"b2h4hkv2l70k150d64:fp32:causal_bottom_right", "b1h4hkv2l70k150d64:fp32:causal_top_left",
        "b2h2l70k150d64:fp32:window=9/3", "b3h4hkv2l70k150d64:fp32:key_lengths", "b2h4hkv2l70k90d64:fp32:blhd",
        "b2h2l70k90d64:fp32:alibi:bias=fp32", "b2h2l1k150d64:fp32:causal_bottom_right",
        "b2h4hkv2l70k150d64:fp32:causal_top_left:prefix=90", "b1h2l200k256d64:fp32:blocks=64/window1"})
    for (const char* name : {"int8_smooth", "int8_token_smooth", "fp8_smooth_rotated", "fp8_block_smooth_rotated"}) {
      const quantise::Mode& mode = quantise::find_mode(name);
      if (std::string_view(text).find("window=") != std::string_view::npos && mode.rotates) continue;  // no program
      PrecisionCase one(text, InputClass::channel_offsets);
      run(one, name);
      expect_calibrated(one, mode, 2 * tolerance_of(mode));
      expect_log_sums(one, 0.15, std::string(text) + " " + name);
    }
}

TEST_F(CpuPrecision, RaggedRowsHaveFactorsOfRowsAndHeads) {
  for (const char* name : {"int8_token_smooth", "fp8_smooth_rotated", "fp8"}) {
    PrecisionCase one("b4h4hkv2l70k150d64:fp32:ragged");
    run(one, name);
    expect_calibrated(one, quantise::find_mode(name), 2 * tolerance_of(quantise::find_mode(name)));
    expect_log_sums(one, 0.15, name);
  }
  const PrecisionCase one("b4h4hkv2l70k150d64:fp32:ragged");
  refused(one.problem(), "int8", HEED_UNSUPPORTED,
          "entries of a ragged batch begin within blocks; take a mode by heads or by rows; the modes that are served "
          "here: int8_token_smooth, fp8, fp8_smooth, fp8_rotated, fp8_smooth_rotated");
}

TEST_F(CpuPrecision, HeadDimsThatNoProgramHasArePadded) {
  for (const auto& [text, name] : {std::pair{"b2h2l40k70d40:fp32", "fp8_smooth"},
                                   {"b2h2l40k70d40:fp32", "int8_smooth"},
                                   {"b2h2l40k70d32:fp32", "fp8_smooth_rotated"}}) {
    PrecisionCase one(text, InputClass::channel_offsets);
    const PrecisionRun plan(one.problem(), options(name));
    ASSERT_EQ(plan.run(one.tensors()), HEED_OK) << heed_last_error();
    expect_calibrated(one, quantise::find_mode(name), 2 * tolerance_of(quantise::find_mode(name)));
    expect_log_sums(one, 0.15, text);
  }
  refused(PrecisionCase("b2h2l40k70d40:fp32").problem(), "fp8_rotated", HEED_UNSUPPORTED,
          "whose size is a power of two; the head dim is 40; the modes that are served here: int8, int8_smooth, "
          "int8_token_smooth, int8_fp8_smooth, fp8, fp8_smooth");
}

TEST_F(CpuPrecision, SixteenBitInputsAreServed) {
  for (const auto& [text, name] :
       {std::pair{"b1h2l70k150d64:fp16", "fp8_smooth_rotated"}, {"b1h2l70k150d64:bf16", "int8_smooth"}}) {
    PrecisionCase one(text);
    run(one, name);
    expect_calibrated(one, quantise::find_mode(name), 4e-2);
  }
}

TEST_F(CpuPrecision, PlansSayWhatTheyDo) {
  const PrecisionCase one("b2h4hkv2l70k150d64:fp32");
  const PrecisionRun plain(one.problem(), options(""));
  EXPECT_EQ(plain.plan(), nullptr);  // the file has no program for inputs as they are
  const heed_options o = options("fp8_smooth");
  const PrecisionRun plan(one.problem(), o);
  ASSERT_NE(plan.plan(), nullptr) << heed_last_error();
  EXPECT_STREQ(plan.info().precision, "fp8_smooth");
  EXPECT_STREQ(plan.info().family, "fwd_cpu");
  EXPECT_THAT(plan.info().reason, ::testing::StartsWith("fp8_smooth: Q in e4m3, K in e4m3, V in e4m3; "));
  // Elements of Q, K and V and a factor for each head, at the least.
  EXPECT_GT(plan.info().workspace_bytes, std::size_t{2} * (4 * 70 + 2 * 150 + 2 * 150) * 64);
  const heed_problem problem = one.problem();
  char text[2048];
  heed_explain(&problem, &o, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("precision fp8_smooth: "));
  EXPECT_THAT(text, ::testing::HasSubstr("quantised=qkv/e4m3/head"));
  EXPECT_THAT(text, ::testing::HasSubstr("error     relative RMS error of O on b1h4l1024d128:fp16: 4.7e-02 normal, "));
  EXPECT_THAT(text, ::testing::HasSubstr("runs      fwd_cpu"));
  std::size_t names = 0;
  while (heed_precision_name(names) != nullptr) ++names;
  EXPECT_EQ(names, quantise::modes().size());
}

TEST_F(CpuPrecision, WhatAModeCannotDoIsRefusedByName) {
  const auto problem = [](const char* text) { return PrecisionCase(text).problem(); };
  refused(problem("b1h2l20d64:fp32"), "int4", HEED_INVALID_ARGUMENT, "unknown mode \"int4\"");
  refused(problem("b1h2l20d64:fp32:softcap=20"), "int8_smooth", HEED_UNSUPPORTED, "with a softcap that is another");
  refused(problem("b1h2l20d64:fp32:sinks"), "fp8_smooth", HEED_UNSUPPORTED, "with attention sinks that is another");
  refused(problem("b1h2l20d64:fp32:page=8"), "fp8", HEED_UNSUPPORTED,
          "keys in pages are a cache that outlives it; quantise the pages as they are written, in 8 bits with scale "
          "factors of your own");
  refused(problem("b1h2l20d64:fp32:quantised=k/int8/head"), "fp8", HEED_INVALID_PROBLEM, "quantised already");
  refused(problem("b1h2l20d64:fp16:window=3/2"), "fp8", HEED_UNSUPPORTED, "no precision mode is served here");
  refused(problem("b1h2l20d64:fp16"), "int8", HEED_UNSUPPORTED, "the modes that are served here: fp8, fp8_smooth");
  heed_options o = options("fp8");
  o.reserved[0] = 1;
  const heed_problem p = problem("b1h2l20d64:fp32");
  heed_plan* plan = nullptr;
  EXPECT_EQ(heed_plan_create(&p, &o, &plan), HEED_INVALID_ARGUMENT);
  const PrecisionCase one("b1h2l20d64:fp32");
  const PrecisionRun made(one.problem(), options("fp8"));
  heed_tensors none;
  heed_tensors_init(&none);
  EXPECT_EQ(made.run(none), HEED_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("the address of Q is null"));
}

TEST_F(CpuPrecision, NothingToComputeTakesNoMode) {
  heed_problem p = PrecisionCase("b1h2l20d64:fp32").problem();
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = {};
  p.len_k = 0;
  std::vector<float> o(2 * 20 * 64, 7), lse(2 * 20, 7);
  heed_tensors t;
  heed_tensors_init(&t);
  t.o = o.data();
  t.lse = lse.data();
  const PrecisionRun keyless(p, options("int8_smooth"));
  ASSERT_EQ(keyless.run(t), HEED_OK) << heed_last_error();
  for (const float x : o) ASSERT_EQ(x, 0);
  for (const float x : lse) ASSERT_EQ(x, -INFINITY);
  p.batch = 0;
  const PrecisionRun empty(p, options("int8_smooth"));
  EXPECT_EQ(empty.run(t), HEED_OK) << heed_last_error();
}

// Dense tensors of one head, to be changed at will.
class Plain {
 public:
  Plain() : problem_(PrecisionCase("b1h1l64k128d64:fp32").problem()) {
    problem_.q_strides = problem_.k_strides = problem_.v_strides = problem_.o_strides = {};
    Random random(5);
    for (auto* x : {&q_, &k_, &v_})
      for (float& value : *x) value = static_cast<float>(2 * random.uniform() - 1);
  }
  [[nodiscard]] const heed_problem& problem() const { return problem_; }
  heed_tensors tensors() {
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = q_.data(), t.k = k_.data(), t.v = v_.data(), t.o = o_.data(), t.lse = lse_.data();
    return t;
  }
  [[nodiscard]] bool is_nan(int row) const { return std::isnan(o_[static_cast<std::size_t>(row) * 64]); }

  heed_problem problem_;
  std::vector<float> q_ = std::vector<float>(64 * 64);
  std::vector<float> k_ = std::vector<float>(128 * 64);
  std::vector<float> v_ = std::vector<float>(128 * 64);
  std::vector<float> o_ = std::vector<float>(64 * 64);
  std::vector<float> lse_ = std::vector<float>(64);
};

TEST_F(CpuPrecision, NanAndInfinityShow) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const char* name : {"fp8", "fp8_smooth", "fp8_rotated"}) {
      Plain one;
      one.q_[10 * 64 + 3] = bad;  // of a row of Q: that row alone
      const PrecisionRun plan(one.problem(), options(name));
      ASSERT_EQ(plan.run(one.tensors()), HEED_OK) << heed_last_error();
      for (int row = 0; row < 64; ++row) ASSERT_EQ(one.is_nan(row), row == 10) << name << " row " << row;
      EXPECT_TRUE(std::isnan(one.lse_[10])) << name;
      EXPECT_TRUE(std::isfinite(one.lse_[11])) << name;
    }
    Plain key;
    key.k_[100 * 64 + 3] = bad;  // of a key: all rows see it
    const PrecisionRun fp8(key.problem(), options("fp8_smooth"));
    ASSERT_EQ(fp8.run(key.tensors()), HEED_OK) << heed_last_error();
    for (int row = 0; row < 64; ++row) ASSERT_TRUE(key.is_nan(row)) << row;
    Plain value;
    value.v_[100 * 64 + 3] = bad;
    ASSERT_EQ(fp8.run(value.tensors()), HEED_OK) << heed_last_error();
    EXPECT_TRUE(std::isnan(value.o_[3]));
    EXPECT_FALSE(std::isnan(value.o_[4]));
    // int8 has no NaN: the rows that share a factor, 32 of Q, are NaN.
    Plain block;
    block.q_[10 * 64 + 3] = bad;
    const PrecisionRun int8(block.problem(), options("int8_smooth"));
    ASSERT_EQ(int8.run(block.tensors()), HEED_OK) << heed_last_error();
    for (int row = 0; row < 64; ++row) ASSERT_EQ(block.is_nan(row), row < 32) << row;
  }
}

heed_options with_debug(heed_options o) {
  o.debug = 1;
  return o;
}

TEST_F(CpuPrecision, DebugSaysWhatIsLost) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto expect_lost = [&](const std::string& name, Plain& one, const std::string& words) {
    const PrecisionRun plan(one.problem(), with_debug(options(name)));
    ASSERT_EQ(plan.run(one.tensors()), HEED_INVALID_ARGUMENT) << name;
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(name + " lost " + words));
    const std::vector<float> o = one.o_;
    const PrecisionRun without(one.problem(), options(name));
    ASSERT_EQ(without.run(one.tensors()), HEED_OK) << heed_last_error();
    EXPECT_EQ(std::memcmp(o.data(), one.o_.data(), o.size() * sizeof(float)), 0) << "O is written as without";
  };
  Plain finite;
  const PrecisionRun plan(finite.problem(), with_debug(options("fp8_smooth_rotated")));
  ASSERT_EQ(plan.run(finite.tensors()), HEED_OK) << heed_last_error();
  finite.q_[70] = std::numeric_limits<float>::quiet_NaN();  // shows in O
  EXPECT_EQ(plan.run(finite.tensors()), HEED_OK) << heed_last_error();

  Plain infinite;
  infinite.q_[10 * 64 + 3] = infinity;
  infinite.k_[100 * 64 + 5] = infinite.k_[101 * 64] = -infinity;
  infinite.v_[7] = infinity;
  const std::string of_q = "1 value of Q, the first in batch entry 0, head 0, row 10, column 3";
  const std::string of_k = ", and 2 values of K, the first in batch entry 0, head 0, row 100, column 5";
  expect_lost("fp8_smooth", infinite,
              of_q + of_k + ", and 1 value of V, the first in batch entry 0, head 0, row 0, column 7");
  expect_lost("int8", infinite, of_q + of_k + ": ");  // V stays as it is
  expect_lost("int8_fp8_smooth", infinite, of_q + of_k + ", and 1 value of V");
  // fp32 is left where a row is rotated, and where the mean is taken out; else such values are served.
  Plain large;
  std::fill_n(large.q_.begin() + 20 * 64, 64, 3e38F);
  for (std::size_t row = 0; row < 128; ++row) large.k_[row * 64 + 9] = row == 90 ? 3e38F : -3e38F;
  expect_lost("fp8_rotated", large, "");
  EXPECT_THAT(std::string(heed_last_error()),
              ::testing::HasSubstr("of Q, the first in batch entry 0, head 0, row 20, "));
  expect_lost("fp8_smooth", large, "1 value of K, the first in batch entry 0, head 0, row 90, column 9");
  const PrecisionRun by_heads(large.problem(), with_debug(options("fp8")));
  EXPECT_EQ(by_heads.run(large.tensors()), HEED_OK) << heed_last_error();
}

TEST_F(CpuPrecision, TheEnvironmentAsksForDebugToo) {
  Plain one;
  one.q_[3] = std::numeric_limits<float>::infinity();
  for (const auto& [value, expected] : {std::pair{"", HEED_OK}, {"0", HEED_OK}, {"1", HEED_INVALID_ARGUMENT}}) {
    const testing_support::EnvironmentVariable debug("HEED_DEBUG", value);
    const PrecisionRun plan(one.problem(), options("fp8"));
    EXPECT_EQ(plan.run(one.tensors()), expected) << value << ": " << heed_last_error();
  }
  const testing_support::EnvironmentVariable debug("HEED_DEBUG", "yes");
  refused(one.problem(), "fp8", HEED_INVALID_ARGUMENT, "HEED_DEBUG is \"yes\"; give 1 for checks");
}

TEST_F(CpuPrecision, ZerosHaveAFactor) {
  for (const quantise::Mode& mode : quantise::modes()) {
    Plain one;
    std::fill(one.k_.begin(), one.k_.begin() + 64 * 64, 0.0F);
    std::fill(one.q_.begin(), one.q_.end(), 0.0F);
    std::fill(one.v_.begin(), one.v_.end(), 0.0F);
    const PrecisionRun plan(one.problem(), options(std::string(mode.name)));
    ASSERT_EQ(plan.run(one.tensors()), HEED_OK) << heed_last_error();
    for (const float x : one.o_) ASSERT_EQ(x, 0) << mode.name;
    for (const float x : one.lse_) ASSERT_NEAR(x, std::log(128.0), 1e-5) << mode.name;
  }
}

// Rows whose elements lie apart, and one head of K and V for all entries.
TEST_F(CpuPrecision, AnyStridesAreRead) {
  for (const char* name : {"fp8_smooth_rotated", "int8_smooth"}) {
    Plain dense;
    const PrecisionRun plan(dense.problem(), options(name));
    ASSERT_EQ(plan.run(dense.tensors()), HEED_OK) << heed_last_error();
    Plain apart = dense;
    const auto spread = [](const std::vector<float>& from, std::size_t rows) {
      std::vector<float> to(from.size());
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t d = 0; d < 64; ++d) to[d * rows + r] = from[r * 64 + d];
      return to;
    };
    apart.q_ = spread(dense.q_, 64), apart.k_ = spread(dense.k_, 128), apart.v_ = spread(dense.v_, 128);
    apart.problem_.q_strides = {0, 0, 1, 64};
    apart.problem_.k_strides = apart.problem_.v_strides = {0, 0, 1, 128};
    const PrecisionRun of_apart(apart.problem(), options(name));
    ASSERT_EQ(of_apart.run(apart.tensors()), HEED_OK) << heed_last_error();
    EXPECT_EQ(apart.o_, dense.o_) << name;
    EXPECT_EQ(apart.lse_, dense.lse_) << name;
  }
}

void in_reverse(void* counter, int tasks, void (*task)(void*, int), void* argument) {
  ++*static_cast<int*>(counter);
  for (int i = tasks - 1; i >= 0; --i) task(argument, i);
}

TEST_F(CpuPrecision, ThreadsOfTheCallerGiveTheSameBits) {
  Plain one;
  const PrecisionRun own(one.problem(), options("fp8_smooth"));
  ASSERT_EQ(own.run(one.tensors()), HEED_OK) << heed_last_error();
  Plain again;
  int calls = 0;
  heed_options o = options("fp8_smooth");
  o.threads = 3;
  o.parallel_for = in_reverse;
  o.parallel_context = &calls;
  const PrecisionRun callers(again.problem(), o);
  const heed_tensors t = again.tensors();
  ASSERT_EQ(heed_plan_run_many(callers.plan(), &t, 1, callers.workspace(), nullptr, 0, nullptr), HEED_OK);
  EXPECT_EQ(again.o_, one.o_);
  EXPECT_EQ(calls, 3);  // magnitudes, elements, attention: sums of one chunk of keys are one piece
  EXPECT_EQ(heed_plan_run_many(callers.plan(), &t, 1, callers.workspace(), nullptr, HEED_RUN_DEPENDENT, nullptr),
            HEED_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace heed
