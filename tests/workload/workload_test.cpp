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
      {"l8d16:window=", "no number of keys of a window"},
      {"l8d16:window", "is no dtype"},
      {"l8d16:window=x", "no number of keys of a window"},
      {"l8d16:window=3/", "no number of keys of a window"},
      {"l8d16:window=3/4/5", "no number of keys of a window"},
      {"l8d16:window=-2", "no number of keys of a window"},
      {"l8d16:window=99999999999", "too large"},
      {"l8d16:window=9999999999999999999999", "too large"},
      {"l8d16:window=3:window=4", "the window is given twice"},
      {"l8d16:causal_top_left:window=3/4", "its window has no RIGHT: write window=3"},
      {"l8d16:causal_top_left:window_top_left=3", "already says how the mask is aligned; write window=3"},
      {"l2000000000k2000000000d1:window=3/4", "too many for a window"},
      {"b1h8l512d64:", "is no dtype"},
      {"b1h8l512d64::fp16", "is no dtype"},
  };
  for (const auto& [text, words] : bad) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::invalid_workload, words, [text = text] { parse_workload(text); });
  }
}

TEST(Workload, WindowsHaveOneText) {
  const std::pair<const char*, const char*> texts[] = {
      {"l8d16:window=3/2", "b1h1l8d16:fp16:window=3/2"},
      {"l8d16:window=3", "b1h1l8d16:fp16:window=3"},
      {"l8d16:window=3/-1", "b1h1l8d16:fp16:window=3"},
      {"l8d16:window=-1/2", "b1h1l8d16:fp16:window=-1/2"},
      {"l8d16:window_top_left=3/2", "b1h1l8d16:fp16:window=3/2"},  // square: both corners are one
      {"l8k9d16:window_top_left=3/2:bf16", "b1h1l8k9d16:bf16:window_top_left=3/2"},
      {"l8d16:causal_top_left:window=3:blhd:scale=0.5", "b1h1l8d16:fp16:causal_top_left:window=3:blhd:scale=0.5"},
      {"l8d16:window=3:causal_bottom_right", "b1h1l8d16:fp16:causal_bottom_right:window=3"},
      {"l8d16:causal_bottom_right:window=3/0", "b1h1l8d16:fp16:causal_bottom_right:window=3"},
      // RIGHT = 0 is the causal mask
      {"l8k9d16:window=3/0", "b1h1l8k9d16:fp16:causal_bottom_right:window=3"},
      {"l8k9d16:window_top_left=-1/0", "b1h1l8k9d16:fp16:causal_top_left"},
      // Bounds that hide nothing
      {"l8d16:window=-1/-1", "b1h1l8d16:fp16"},
      {"l8d16:window=7/7", "b1h1l8d16:fp16"},
      {"l8d16:window=6/7", "b1h1l8d16:fp16:window=6"},
      {"l8d16:window=7/6", "b1h1l8d16:fp16:window=-1/6"},
      {"l8d16:causal_top_left:window=7", "b1h1l8d16:fp16:causal_top_left"},
      {"l8d16:causal_top_left:window=6", "b1h1l8d16:fp16:causal_top_left:window=6"},
      {"l2k9d16:window=8/8", "b1h1l2k9d16:fp16"},
      {"l2k9d16:window=7/0", "b1h1l2k9d16:fp16:causal_bottom_right:window=7"},
      {"l9k2d16:window=1/5", "b1h1l9k2d16:fp16:window=-1/5"},
      {"l1k100d16:window=99/0", "b1h1l1k100d16:fp16"},
  };
  for (const auto& [text, canonical] : texts) {
    const Workload w = parse_workload(text);
    EXPECT_EQ(to_string(w), canonical) << text;
    EXPECT_EQ(parse_workload(to_string(w)), w) << text;
  }
}

// A reduced mask hides what the mask hid, and no bound is left that hides nothing.
TEST(Workload, ReducingAWindowChangesNoRow) {
  for (const char* corner : {"window=", "window_top_left=", "causal_top_left:window=", "causal_bottom_right:window="})
    for (int len_q = 1; len_q < 6; ++len_q)
      for (int len_k = 1; len_k < 6; ++len_k)
        for (int left = -1; left < 9; ++left)
          for (int right = -1; right < 9; ++right) {
            const std::string mask(corner);
            if (mask[0] == 'c' && right != -1) continue;
            Workload w = parse_workload(fmt::format("l{}k{}d8", len_q, len_k));
            w.mask = mask == "window="            ? Mask::window_bottom_right
                     : mask == "window_top_left=" ? Mask::window_top_left
                     : mask[7] == 't'             ? Mask::causal_top_left
                                                  : Mask::causal_bottom_right;
            w.window = {left, right};
            const Workload less = reduced(w);
            const std::string what = to_string(w) + " -> " + to_string(less);
            const int offset = mask.find("top_left") == std::string::npos ? len_k - len_q : 0;
            for (int row = 0; row < len_q; ++row)
              for (int key = 0; key < len_k; ++key) {
                const int distance = key - row - offset;
                const bool seen = (left < 0 || distance >= -left) &&
                                  (mask[0] == 'c' ? distance <= 0 : right < 0 || distance <= right);
                ASSERT_EQ(w.keys_of(row).contains(key), seen) << what << " row " << row << " key " << key;
                ASSERT_EQ(less.keys_of(row).contains(key), seen) << what << " row " << row << " key " << key;
              }
            ASSERT_EQ(parse_workload(to_string(less)), less) << what;
            ASSERT_EQ(parse_workload(to_string(w)), less) << what;
            if (less.has_left_bound()) {
              ASSERT_GT(less.keys_of(len_q - 1).begin, 0) << what;
            }
            if (less.window.right != Window::kAll) {
              ASSERT_LT(less.keys_of(0).end, len_k) << what;
            }
          }
}

TEST(Workload, TrafficIsOfTheKeysThatAreSeen) {
  EXPECT_EQ(parse_workload("l1k8192d128:window=1023").bytes(), (1 + 1024) * 256 * 2.0);
  EXPECT_EQ(parse_workload("l1k8192d128").bytes(), (1 + 8192) * 256 * 2.0);
  EXPECT_EQ(parse_workload("l1k8192d128:window=1023").seen_keys(), (KeyRange{8192 - 1024, 8192}));
}

TEST(Workload, VisibleScoresCountsThemAll) {
  for (const char* text :
       {"b2h3l5d8", "b1h1l7k4d8:causal_top_left", "b1h1l7k4d8:causal_bottom_right", "b1h2l4k7d8:causal_top_left",
        "b1h2l4k7d8:causal_bottom_right", "b1h1l1k1d8:causal_top_left", "b1h1l9k1d8:causal_bottom_right",
        "b1h1l1k9d8:causal_top_left", "b1h2l9k9d8:causal_top_left:window=3", "b1h1l9k5d8:causal_bottom_right:window=2",
        "b1h1l5k9d8:window=1/2", "b1h1l9k5d8:window_top_left=1/2", "b1h1l9k9d8:window=2", "b1h1l9k9d8:window=-1/2"}) {
    const Workload w = parse_workload(text);
    double counted = 0;
    for (std::int64_t row = 0; row < w.len_q; ++row)
      for (std::int64_t key = 0; key < w.len_k; ++key) counted += w.keys_of(row).contains(key) ? 1 : 0;
    EXPECT_EQ(w.visible_scores(), counted * static_cast<double>(w.batch * w.heads)) << text;
  }
  EXPECT_EQ(parse_workload("b1h8l512d64").flops(), 4.0 * 8 * 512 * 512 * 64);
}

}  // namespace
}  // namespace heed
