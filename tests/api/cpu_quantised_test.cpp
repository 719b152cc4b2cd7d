// Quantised tensors on a CPU, through the C interface alone: results against the oracle, and what is refused.
#include "cpu_programs.hpp"
#include "feature_case.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::expect_status;
using testing_support::FeatureCase;
using testing_support::TemporaryFolder;

// Programs of fwd_cpu for some element types, with all features.
class CpuQuantised : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    testing_support::write_cpu_programs(
        folder_->file("heed.programs"),
        {"b1h2l33k50d16:fp32:quantised=qkv/e4m3/head", "b1h2l33k50d16:fp32:causal_top_left:quantised=qkv/e4m3/head",
         "b1h2l33k50d16:fp32:window=9/3:quantised=qk/int8/head",
         "b1h2l33k50d16:fp32:quantised=k/e5m2/head+v/int8/head"},
        kAllFeatures);
  }
  static void TearDownTestSuite() { delete folder_; }

  static heed_plan* plan_of(const heed_problem& problem) {
    static const std::string path = folder_->file("heed.programs");
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
    return plan;
  }
  static heed_status run(const heed_problem& problem, const heed_tensors& tensors) {
    heed_plan* plan = plan_of(problem);
    if (plan == nullptr) return HEED_INTERNAL;
    const heed_status status = heed_plan_run(plan, &tensors, nullptr, nullptr);
    heed_plan_destroy(plan);
    return status;
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* CpuQuantised::folder_ = nullptr;

const std::string kScaledShape = "b3h4hkv2l37k51d16:fp32";

TEST_F(CpuQuantised, AreWhatTheOracleSays) {
  for (const char* tensors : {"qkv/e4m3/tensor", "qkv/e4m3/head", "qkv/e4m3/token", "qkv/e4m3/block8",
                              "q/e4m3/block16+k/e4m3/token+v/e4m3/channel"})
    for (const char* rest : {"", ":causal_bottom_right", ":blhd", ":softcap=3:bias=fp32:sinks", ":key_lengths",
                             ":page=8", ":page=7:key_lengths:alibi"}) {
      FeatureCase one(kScaledShape + rest + ":quantised=" + tensors);
      EXPECT_EQ(run(one.problem(), one.tensors()), HEED_OK) << heed_last_error();
      one.check();
    }
  for (const char* text : {":window=9/3:quantised=qk/int8/block8", ":window_top_left=9/3:quantised=qk/int8/token",
                           ":window=3/2:prefix=9:quantised=qk/int8/block4", ":quantised=k/e5m2/block3+v/int8/channel",
                           ":ragged:quantised=k/e5m2/token+v/int8/head",
                           ":ragged:page=8:quantised=k/e5m2/block4+v/int8/token", ":ragged:quantised=qkv/e4m3/token"}) {
    FeatureCase one(kScaledShape + text);
    EXPECT_EQ(run(one.problem(), one.tensors()), HEED_OK) << heed_last_error();
    one.check();
  }
}

TEST_F(CpuQuantised, FactorsThatCannotBeAreRefused) {
  for (const char* tensors : {"qkv/e4m3/tensor", "qkv/e4m3/head", "qkv/e4m3/token", "qkv/e4m3/block8",
                              "q/e4m3/block16+k/e4m3/token+v/e4m3/channel"})
    for (const float bad : {0.0F, -0.5F, -0.0F, NAN, INFINITY, -INFINITY}) {
      FeatureCase one(kScaledShape + ":quantised=" + tensors);
      const heed_problem p = one.problem();
      for (const auto& [member, scene, name] : {std::tuple{&heed_tensors::q_scale, verify::Scene::q_scales, "q_scale"},
                                                {&heed_tensors::k_scale, verify::Scene::k_scales, "k_scale"},
                                                {&heed_tensors::v_scale, verify::Scene::v_scales, "v_scale"}}) {
        heed_tensors t = one.tensors();
        std::vector<float> factors(one.scene().feature(scene).bytes / sizeof(float));
        std::memcpy(factors.data(), t.*member, factors.size() * sizeof(float));
        factors.front() = bad;  // the first entry's first head's
        t.*member = factors.data();
        expect_status(run(p, t), HEED_INVALID_ARGUMENT, fmt::format("{}[0] is", name));
        t.*member = nullptr;
        expect_status(run(p, t), HEED_INVALID_ARGUMENT, fmt::format("the address of {} is null", name));
      }
    }
  // Of keys that no row sees a factor may be anything.
  FeatureCase one(kScaledShape + ":causal_top_left:quantised=qkv/e4m3/token");
  const heed_problem p = one.problem();
  heed_tensors t = one.tensors();
  std::vector<float> factors(one.scene().feature(verify::Scene::k_scales).bytes / sizeof(float));
  std::memcpy(factors.data(), t.k_scale, factors.size() * sizeof(float));
  factors[40] = NAN;  // beyond the last of 37 rows' own keys
  t.k_scale = factors.data();
  EXPECT_EQ(run(p, t), HEED_OK) << heed_last_error();
  one.check();
  factors[36] = NAN;
  expect_status(run(p, t), HEED_INVALID_ARGUMENT, "k_scale[36] is nan");
}

TEST_F(CpuQuantised, LayoutsOfFactorsThatCannotBeAreRefused) {
  const auto refused = [](const std::string& words, auto change, const std::string& rest = "") {
    heed_problem p = cpu_problem(kScaledShape + rest + ":quantised=qkv/e4m3/head");
    change(p);
    expect_refused(p, HEED_INVALID_ARGUMENT, words);
  };
  refused("q_scales.batch is -1", [](heed_problem& p) { p.q_scales.batch = -1; });
  refused("k_scales.rows is -8", [](heed_problem& p) { p.k_scales.rows = -8; });
  refused("v_scales.dim is 2", [](heed_problem& p) { p.v_scales.dim = 2; });
  refused("k_scales.dim is 1, and only V has factors of columns", [](heed_problem& p) { p.k_scales.dim = 1; });
  refused("factors of columns and of rows", [](heed_problem& p) { p.v_scales.dim = 1, p.v_scales.row = 16; });
  refused("q_scales.rows is 64 and its row is 0", [](heed_problem& p) { p.q_scales.rows = 64; });
  refused("q_scales.rows is 0; a block of rows has 1 to", [](heed_problem& p) { p.q_scales = {100, 10, 1, 0, 0}; });
  refused("v_scales.rows is 2097152", [](heed_problem& p) { p.v_scales = {9, 3, 1, 0, 1 << 21}; });
  refused(
      "Q is ragged and q_scales has factors of 64 rows", [](heed_problem& p) { p.q_scales = {0, 100, 1, 0, 64}; },
      ":ragged");
  refused("dtype_k is of 8 bits, which are nothing without scale factors",
          [](heed_problem& p) { p.flags &= ~HEED_SCALED, p.dtype_q = HEED_FP32, p.q_scales = {}; });
  refused("q_scales is given, and Q is not quantised", [](heed_problem& p) { p.dtype_q = HEED_FP32; });
  refused("none of Q, K and V has elements of 8 bits", [](heed_problem& p) {
    p.dtype_q = p.dtype_k = p.dtype_v = HEED_FP32;
    p.q_scales = p.k_scales = p.v_scales = {};
  });
  heed_problem p = cpu_problem(kScaledShape + ":quantised=qkv/e4m3/head");
  p.v_scales.head = std::int64_t{1} << 60;
  expect_refused(p, HEED_INVALID_PROBLEM, "the strides of v_scale reach beyond 2^60 bytes");
  p = cpu_problem(kScaledShape + ":quantised=qkv/e4m3/head");
  p.dtype_v = HEED_FP16;
  p.v_scales = {};
  expect_refused(p, HEED_UNSUPPORTED, "different element types");
  p = cpu_problem(kScaledShape + ":quantised=qkv/e4m3/head");
  p.q_strides = {4 * 37 * 32, 37 * 32, 32, 2};
  expect_refused(p, HEED_UNSUPPORTED, "no tensors are copied beside quantised ones");
  // A tensor of factors that the problem has no place for.
  FeatureCase one(kScaledShape + ":quantised=k/e5m2/head+v/int8/head");
  heed_tensors t = one.tensors();
  t.q_scale = t.k_scale;
  expect_status(run(one.problem(), t), HEED_INVALID_ARGUMENT,
                "q_scale is given, which is of problems with HEED_SCALED");
}

TEST_F(CpuQuantised, TextsAndFactorsOfAProblemAreThoseOfTheWorkload) {
  for (const char* tensors :
       {"qkv/e4m3/head", "q/int8/block16+k/int8/block8+v/e4m3/channel", "kv/e5m2/token", "v/int8/tensor"}) {
    const std::string text = kScaledShape + ":quantised=" + tensors;
    const heed_problem p = cpu_problem(text);
    char found[256];
    heed_problem_text(&p, found, sizeof found);
    EXPECT_EQ(found, text);
  }
}

TEST_F(CpuQuantised, BlocksOfZerosAreZeros) {
  FeatureCase one("b1h2l8k16d16:fp32:quantised=qkv/e4m3/block8");
  heed_tensors t = one.tensors();
  const heed_problem p = one.problem();
  std::vector<unsigned char> zeros(2 * 30 * 16, 0);
  t.v = zeros.data();
  ASSERT_EQ(run(p, t), HEED_OK) << heed_last_error();
  const auto* const o = static_cast<const float*>(t.o);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(o[i], 0.0F);
}

}  // namespace
}  // namespace heed
