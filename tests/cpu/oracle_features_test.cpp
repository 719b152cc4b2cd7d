// The oracle with features: answers that can be written down, and the definition, term by term.
#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "testing.hpp"
#include "verify/gate.hpp"
#include "verify/reference.hpp"
#include "verify/scene.hpp"
#include "verify/unfused.hpp"
#include "workload/half.hpp"
#include "workload/relative_bias.hpp"

namespace heed::verify {
namespace {

// Inputs of a workload, laid out as the gate does.
Scene scene_of(const Workload& w, InputValues values, std::uint64_t seed = 3) {
  SceneOptions options;
  options.padding_rows = 2;
  return {w, values, LaunchPlan{}, seed, options};
}
Scene scene_of(const Workload& w, std::uint64_t seed = 3) {
  return scene_of(w, make_inputs(w, InputClass::normal, seed), seed);
}

// From the dense values alone: what is laid out, ragged or in pages, does not matter here.
void by_definition(const Workload& w, const InputValues& values, const RowIndex& at, std::vector<double>& out,
                   double& lse) {
  const EntryLengths lengths = values.lengths[static_cast<std::size_t>(at.batch)];
  const std::int64_t kv = at.head / (w.heads / w.heads_kv);
  const auto rounded = [&](float x) { return w.dtype == Dtype::fp32 ? x : round_to(w.dtype, x); };
  const float* q = values.q.data() + ((at.batch * w.heads + at.head) * w.len_q + at.row) * w.dim;
  const bool to_end = w.mask == Mask::causal_bottom_right || w.mask == Mask::window_bottom_right;
  const std::int64_t own = at.row + (to_end ? lengths.len_k - lengths.len_q : 0);
  const BiasSizes sizes = bias_sizes(w);
  long double sum = w.sinks ? std::exp(static_cast<long double>(values.sinks[static_cast<std::size_t>(at.head)])) : 0;
  out.assign(static_cast<std::size_t>(w.dim_v), 0.0);
  std::vector<long double> mean(out.size(), 0.0L);
  for (std::int64_t j = 0; j < lengths.len_k; ++j) {
    const bool in_prefix = w.prefix > 0 && j < values.prefix_lengths[static_cast<std::size_t>(at.batch)];
    if (w.has_right_bound() && !in_prefix && j > own + (w.window.right == Window::kAll ? 0 : w.window.right)) continue;
    if (w.window.left != Window::kAll && j < own - w.window.left) continue;
    if (w.blocks && !values.blocks.has(at.batch, at.head, at.row / w.blocks->rows, j / w.blocks->keys)) continue;
    const float* k = values.k.data() + ((at.batch * w.heads_kv + kv) * w.len_k + j) * w.dim;
    long double score = 0;
    for (std::int64_t d = 0; d < w.dim; ++d)
      score += static_cast<long double>(rounded(q[d])) * static_cast<long double>(rounded(k[d]));
    score *= static_cast<long double>(w.softmax_scale());
    if (w.softcap != 0) score = w.softcap * std::tanh(score / w.softcap);
    if (w.bias) {
      const std::int64_t index =
          (((sizes.batch > 1 ? at.batch : 0) * sizes.head + (sizes.head > 1 ? at.head : 0)) * sizes.row +
           (sizes.row > 1 ? at.row : 0)) *
              sizes.key +
          (sizes.key > 1 ? j : 0);
      float bias = values.bias[static_cast<std::size_t>(index)];
      if (w.bias->dtype == BiasDtype::boolean) {
        if (bias == 0) continue;
      } else {
        if (w.bias->dtype != BiasDtype::fp32) bias = round_to(dtype_of(w.bias->dtype), bias);
        if (bias < -6e4F) continue;
        score += static_cast<long double>(bias);
      }
    }
    if (w.relative) {
      const std::int64_t ahead = j - (at.row + lengths.len_k - lengths.len_q);
      const int bucket =
          relative_bucket(buckets_of(*w.relative), static_cast<int>(ahead), [](float x) { return std::log2(x); });
      score += static_cast<long double>(
          values.relative_bias[static_cast<std::size_t>(at.head * w.relative->buckets + bucket)]);
    }
    if (w.alibi)
      score -= static_cast<long double>(values.alibi_slopes[static_cast<std::size_t>(at.head)]) *
               static_cast<long double>(std::abs(at.row + lengths.len_k - lengths.len_q - j));
    const long double p = std::exp(score);
    sum += p;
    const float* v = values.v.data() + ((at.batch * w.heads_kv + kv) * w.len_k + j) * w.dim_v;
    long double kept = 1;
    if (w.dropout > 0) {
      const auto row = static_cast<int>(at.row), key = static_cast<int>(j);
      const HeadDropout of_head = dropout_of_head(values.dropout_seed, values.dropout_offset,
                                                  values.dropout_first_entry + static_cast<int>(at.batch),
                                                  static_cast<int>(at.head), static_cast<int>(w.heads));
      const unsigned number = dropout_byte(dropout_numbers(of_head, row, key), row, key);
      kept =
          number >= dropout_threshold(w.dropout) || w.dropout == 1 ? 0 : 1 / (1 - static_cast<long double>(w.dropout));
    }
    for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += kept * p * static_cast<long double>(rounded(v[d]));
  }
  for (std::size_t d = 0; d < mean.size(); ++d) out[d] = sum > 0 ? static_cast<double>(mean[d] / sum) : 0.0;
  if (w.out_norm) {
    long double squares = 0;
    for (const double x : out) squares += static_cast<long double>(x) * static_cast<long double>(x);
    const long double root =
        std::sqrt(squares / static_cast<long double>(w.dim_v) + static_cast<long double>(w.out_norm->eps));
    const float* weight =
        values.out_norm_weight.data() + (w.out_norm->by_head ? static_cast<std::size_t>(at.head * w.dim_v) : 0);
    for (std::size_t d = 0; d < out.size(); ++d)
      out[d] = static_cast<double>(static_cast<long double>(out[d]) / root * static_cast<long double>(weight[d]));
  }
  for (std::size_t d = 0; d < out.size() && w.out_gate != OutGate::none; ++d) {
    const auto row = static_cast<std::size_t>((at.batch * w.heads + at.head) * w.len_q + at.row);
    const float gate = rounded(values.out_gate[w.out_gate == OutGate::head ? row : row * out.size() + d]);
    out[d] /= 1 + std::exp(-static_cast<double>(gate));
  }
  lse = sum > 0 ? static_cast<double>(std::log(sum)) : -std::numeric_limits<double>::infinity();
}

class OracleWithFeatures : public ::testing::TestWithParam<const char*> {};

TEST_P(OracleWithFeatures, AgreesWithTheDefinition) {
  const Workload w = parse_workload(GetParam());
  InputValues values = make_inputs(w, InputClass::normal, 5);
  if (w.batch > 4) draw_lengths(w, 6, values);
  const Scene scene = scene_of(w, values);
  const Reference reference = make_reference(w, scene.tensors(), all_rows(w));
  const UnfusedRows unfused = unfused_attention(w, scene.tensors(), reference.rows);
  ASSERT_FALSE(reference.rows.empty());
  std::vector<double> expected;
  double lse = 0;
  int hidden = 0;
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    by_definition(w, values, reference.rows[i], expected, lse);
    for (std::size_t d = 0; d < expected.size(); ++d) {
      ASSERT_NEAR(reference.oracle.out[i * expected.size() + d], expected[d], 1e-11) << "row " << i;
      ASSERT_NEAR(unfused.out[i * expected.size() + d], expected[d], 2e-2) << "row " << i;
    }
    if (std::isinf(lse)) {
      ++hidden;
      ASSERT_EQ(reference.oracle.lse[i], lse) << "row " << i;
      ASSERT_EQ(unfused.lse[i], lse) << "row " << i;
    } else {
      ASSERT_NEAR(reference.oracle.lse[i], lse, 1e-11) << "row " << i;
      ASSERT_NEAR(unfused.lse[i], lse, 1e-3) << "row " << i;
    }
  }
  if ((w.bias && w.bias->by_row && w.bias->by_key && !w.sinks) || (w.blocks && w.blocks->density > 0)) {
    EXPECT_GT(hidden, 0) << "some rows are hidden altogether";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Features, OracleWithFeatures,
    ::testing::Values(
        "b1h2l70d16:fp32:softcap=2", "b2h4hkv2l90k60d16:fp32:bias=fp32", "b2h2l60k50d8:fp32:bias=fp16/hlk",
        "b2h2l60k50d8:fp16:bias=bf16/blk", "b2h2l60k50d8:fp32:bias=bool", "b3h2l20k50d8:fp32:bias=bool/bk",
        "b2h2l60k50d8:fp32:bias=fp32/h", "b1h4l70k50d8:fp32:alibi:causal_bottom_right", "b1h4l50d8:fp32:sinks",
        "b1h2l60k20d8:fp32:sinks:causal_bottom_right", "b3h2l40k50d8:fp32:key_lengths:causal_bottom_right",
        "b9h2l40k50d8:fp32:key_lengths:window=5/3", "b9h2l30k50d8:fp32:ragged:causal_bottom_right",
        "b9h2l30k50d8:fp16:ragged:blhd:sinks", "b2h2l30k50d8:fp32:page=16",
        "b9h4hkv2l30k50d8:fp32:ragged:page=1:causal_top_left:alibi", "b1h2l150k200d8:fp32:blocks=64/density0.1@3",
        "b2h4hkv2l150k200d8:fp16:blocks=64x128/random1@5/bh",
        "b2h2l150d8:fp32:window=90/30:blocks=64/window0+wavefront3",
        "b9h2l130k140d8:fp32:ragged:causal_bottom_right:blocks=128x64/stride2:sinks",
        "b3h2l60k50d8:fp32:causal_bottom_right:prefix=30",
        "b9h2l60k80d8:fp32:causal_top_left:window=9:key_lengths:prefix=40", "b2h4hkv2l150k160d16:fp32:relative=32/128",
        "b1h2l200k90d8:fp32:causal_bottom_right:relative=32/128/past",
        "b9h2l130k150d8:fp32:ragged:relative=8/40:alibi:bias=fp16/hlk", "b2h4hkv2l90k60d16:fp32:dropout=0.5",
        "b1h2l60k50d8:fp16:causal_top_left:dropout=0.25:sinks", "b9h2l30k50d8:fp32:ragged:window=9:dropout=0.75",
        "b1h2l30k50d8:fp32:dropout=1", "b2h4hkv2l50k60d16:fp32:out_norm=1e-05",
        "b2h2l60k50d8:fp32:causal_bottom_right:out_norm=0.01/h:out_gate=head", "b2h2l60k50d8:fp16:out_gate=element",
        "b9h2l30k50d8:fp32:ragged:sinks:out_norm=1e-05/h:out_gate=element",
        "b9h2l30k50d8:fp32:ragged:blhd:out_gate=head",
        "b7h2l1k70d8:bf16:key_lengths:page=64:softcap=3:bias=fp32/bk:alibi:sinks:window=30"),
    [](const auto& one) { return "W" + std::to_string(one.index); });

TEST(OracleWithFeatures, ASinkTakesTheShareThatItsScoreHas) {
  // All scores are 0: of n keys and a sink of ln(n), each side has half.
  const Workload w = parse_workload("b1h1l1k8d4:fp32:sinks");
  InputValues values = make_inputs(w, InputClass::constant_v, 1);
  std::fill(values.q.begin(), values.q.end(), 0.0F);
  values.sinks = {std::log(8.0F)};
  const Scene scene = scene_of(w, values);
  const ReferenceRows rows = reference_attention(w, scene.tensors(), all_rows(w));
  for (std::size_t d = 0; d < 4; ++d) EXPECT_NEAR(rows.out[d], values.v[d] / 2, 1e-6);
  EXPECT_NEAR(rows.lse[0], std::log(16.0), 1e-6);
}

TEST(OracleWithFeatures, SinksFarAboveAndBelowStayNumbers) {
  const Workload w = parse_workload("b1h3l1k8d4:fp32:sinks");
  InputValues values = make_inputs(w, InputClass::normal, 1);
  values.sinks = {10000.0F, -10000.0F, -INFINITY};
  const Scene scene = scene_of(w, values);
  const ReferenceRows rows = reference_attention(w, scene.tensors(), all_rows(w));
  EXPECT_NEAR(rows.out[0], 0, 1e-300);
  EXPECT_NEAR(rows.lse[0], 10000, 1e-3);
  EXPECT_TRUE(std::isfinite(rows.lse[1]) && std::isfinite(rows.lse[2]));
}

TEST(Scenes, KeysThatNoEntryHasAreNaN) {
  const Workload w = parse_workload("b4h1l8k40d4:fp32:key_lengths:page=16");
  const Scene scene = scene_of(w);
  const RowPlaces& places = scene.places();
  // Spare pages, and rows past an entry's last key.
  std::int64_t keys = 0;
  for (const EntryLengths& entry : places.lengths()) keys += entry.len_k;
  std::int64_t numbers = 0;
  for (std::uint64_t i = 0; i < scene.k().bytes / 4; ++i)
    numbers += std::isfinite(load_element(Dtype::fp32, scene.image().data() + scene.k().offset, i)) ? 1 : 0;
  EXPECT_EQ(numbers, keys * 4);
  EXPECT_LT(keys, places.key_blocks() * places.key_rows());
}

TEST(Scenes, KeysOfBlocksThatNoListHasArePoisoned) {
  const Workload w = parse_workload("b2h4hkv2l130k400d4:fp32:blocks=64/density0.2@3/bh");
  InputValues values = make_inputs(w, InputClass::normal, 1);
  poison_unseen_keys(w, values);
  std::int64_t poisoned = 0;
  for (std::int64_t i = 0; i < w.batch * w.heads_kv * w.len_k; ++i) {
    const std::int64_t head = i / w.len_k % 2, block = i % w.len_k / 64;
    bool listed = false;
    for (std::int64_t reader = 2 * head; reader < 2 * head + 2; ++reader)
      for (std::int64_t row = 0; row < 3; ++row)
        listed = listed || values.blocks.has(i / w.len_k / 2, reader, row, block);
    ASSERT_EQ(std::isnan(values.k[static_cast<std::size_t>(i * 4)]), !listed) << i;
    poisoned += listed ? 0 : 1;
  }
  EXPECT_GT(poisoned, 0);
}

TEST(Scenes, ChangedFeatureInputsAreForbiddenWrites) {
  const Workload w =
      parse_workload("b4h2l8k40d4:fp32:key_lengths:page=16:sinks:alibi:bias=bool:prefix=9:blocks=64:relative=32/128");
  const Scene scene = scene_of(w);
  for (const auto& [input, name] : {std::pair{Scene::bias, "bias"},
                                    {Scene::alibi_slopes, "ALiBi"},
                                    {Scene::sinks, "sinks"},
                                    {Scene::seqused_k, "seqused_k"},
                                    {Scene::page_table, "page table"},
                                    {Scene::block_counts, "block counts"},
                                    {Scene::block_indices, "block indices"},
                                    {Scene::prefix_lengths, "prefix lengths"},
                                    {Scene::relative_bias, "relative bias"}}) {
    std::vector<std::byte> after = scene.image();
    ASSERT_GT(scene.feature(input).bytes, 0U) << name;
    after[scene.feature(input).offset + 1] ^= std::byte{1};
    const Scene::ForbiddenWrite forbidden_write = scene.forbidden_write(after.data());
    EXPECT_EQ(forbidden_write.finding, Finding::input_modified) << name;
    EXPECT_NE(forbidden_write.text.find(name), std::string::npos) << forbidden_write.text;
  }
}

TEST(Scenes, AnImageIsNoLargerThanWasAskedFor) {
  for (const char* text : {"b2h4l64k70d64:bf16:bias=fp32", "b7h4l33k70d64:fp16:ragged:page=1",
                           "b3h2l9k70d64:fp32:key_lengths:page=64:sinks:alibi",
                           "b3h2l200k300d64:fp16:blocks=64x128/density0.5/bh", "b5h2l9k70d16:fp16:ragged:bias=bool"})
    for (const std::int64_t padding : {std::int64_t{0}, kPaddingRows}) {
      const Workload w = parse_workload(text);
      SceneOptions options;
      options.padding_rows = padding;
      InputValues values = make_inputs(w, InputClass::normal, 1);
      for (EntryLengths& entry : values.lengths) entry = {w.ragged ? w.len_q : entry.len_q, w.len_k};
      const Scene scene(w, values, LaunchPlan{}, 1, options);
      EXPECT_LE(scene.image().size(), image_bytes(w, {}, padding)) << text;
    }
}

}  // namespace
}  // namespace heed::verify
