#include "base/random.hpp"
#include "testing.hpp"

namespace heed {
namespace {

using testing_support::expect_error;

TEST(Workload, ReadsTheCompactGrammar) {
  const Workload w = parse_workload("b8h32hkv4l1k8192d128");
  EXPECT_EQ(w.batch, 8);
  EXPECT_EQ(w.heads, 32);
  EXPECT_EQ(w.heads_kv, 4);
  EXPECT_EQ(w.len_q, 1);
  EXPECT_EQ(w.len_k, 8192);
  EXPECT_EQ(w.dim, 128);
  EXPECT_EQ(w.dim_v, 128);
  EXPECT_EQ(w.dtype, Dtype::fp16);
  EXPECT_FALSE(w.is_causal());
}

TEST(Workload, DefaultsFollowTheGivenParts) {
  const Workload w = parse_workload("l7d16");
  EXPECT_EQ(w.batch, 1);
  EXPECT_EQ(w.heads, 1);
  EXPECT_EQ(w.len_k, 7);
  EXPECT_DOUBLE_EQ(w.softmax_scale(), 0.25);
}

TEST(Workload, PrintsCanonically) {
  EXPECT_EQ(to_string(parse_workload("d64l512h8b1")), "b1h8l512d64:fp16");
  EXPECT_EQ(to_string(parse_workload("b1h8l512k512d64dv64:scale=0.125:causal_top_left:bf16")),
            "b1h8l512d64:bf16:causal_top_left:scale=0.125");
  EXPECT_EQ(to_string(parse_workload("b1h8l5d64:blhd:top-left")), "b1h8l5d64:fp16:causal_top_left:blhd");
}

TEST(Workload, CanonicalTextReadsBackExactly) {
  Random random(11);
  for (int i = 0; i < 2000; ++i) {
    Workload w;
    w.batch = 1 + static_cast<std::int64_t>(random.below(9));
    w.heads_kv = 1 + static_cast<std::int64_t>(random.below(6));
    w.heads = w.heads_kv * (1 + static_cast<std::int64_t>(random.below(5)));
    w.len_q = 1 + static_cast<std::int64_t>(random.below(5000));
    w.len_k = random.chance(0.5) ? w.len_q : 1 + static_cast<std::int64_t>(random.below(5000));
    w.dim = 1 + static_cast<std::int64_t>(random.below(256));
    w.dim_v = random.chance(0.7) ? w.dim : 1 + static_cast<std::int64_t>(random.below(256));
    w.dtype = static_cast<Dtype>(random.below(3));
    w.mask = static_cast<Mask>(random.below(3));
    w.layout = static_cast<Layout>(random.below(2));
    if (random.chance(0.3)) w.scale = random.uniform(1e-3, 10);
    ASSERT_EQ(parse_workload(to_string(w)), w) << to_string(w);
  }
  for (const Workload& w : testing_support::case_table()) EXPECT_EQ(parse_workload(to_string(w)), w);
}

TEST(Workload, RefusesWhatNoProblemCanBe) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "shape is empty"},
      {"512", "must start with its letters"},
      {"b1h8", "query length is missing"},
      {"b1h8l512", "head dim is missing"},
      {"b1h8l0d64", "l=0 is not positive"},
      {"b1h8l-5d64", "l=-5 is not positive"},
      {"b1h8l512d64x3", "unknown dimension \"x\""},
      {"b1h8l512l512d64", "\"l\" is given twice"},
      {"b1h8ld64", "unknown dimension \"ld\""},
      {"b1h8l512d", "\"d\" needs a number"},
      {"b1h8l512d64!", "must start with its letters"},
      {"b1h8l99999999999999999999d64", "too large"},
      {"b1h8l2147483648d64", "too large"},
      {"b1h8hkv3l512d64", "h must be a multiple of hkv"},
      {"b2147483647h2147483647l2147483647d512", "at most 2^40"},
      {"b1h8l512d64:fp8", "\"fp8\" is no dtype"},
      {"b1h8l512d64:fp16:bf16", "the dtype is given twice"},
      {"b1h8l512d64:scale=0", "finite and positive"},
      {"b1h8l512d64:scale=-1", "finite and positive"},
      {"b1h8l512d64:scale=nan", "finite and positive"},
      {"b1h8l512d64:scale=inf", "finite and positive"},
      {"b1h8l512d64:scale=x", "is not a number"},
      {"b1h8l512d64:scale=1e300", "which holds scales from 1.18e-38 to 2.36e+38"},
      {"b1h8l512d64:scale=3e38", "log2(e) in fp32"},
      {"b1h8l512d64:scale=1e-39", "log2(e) in fp32"},
      {"b1h8l512d64:", "is no dtype"},
      {"b1h8l512d64::fp16", "is no dtype"},
  };
  for (const auto& [text, words] : bad) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::invalid_workload, words, [text = text] { parse_workload(text); });
  }
}

TEST(Workload, VisibleScoresCountsThemAll) {
  for (const char* text : {"b2h3l5d8", "b1h1l7k4d8:causal_top_left", "b1h1l7k4d8:causal_bottom_right",
                           "b1h2l4k7d8:causal_top_left", "b1h2l4k7d8:causal_bottom_right", "b1h1l1k1d8:causal_top_left",
                           "b1h1l9k1d8:causal_bottom_right", "b1h1l1k9d8:causal_top_left"}) {
    const Workload w = parse_workload(text);
    double counted = 0;
    for (std::int64_t row = 0; row < w.len_q; ++row) counted += static_cast<double>(w.visible_keys(row));
    EXPECT_EQ(w.visible_scores(), counted * static_cast<double>(w.batch * w.heads)) << text;
  }
  EXPECT_EQ(parse_workload("b1h8l512d64").flops(), 4.0 * 8 * 512 * 512 * 64);
}

}  // namespace
}  // namespace heed
