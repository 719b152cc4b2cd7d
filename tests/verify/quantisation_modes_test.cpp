// Named ways to quantise: what they leave as it is, what they cost, and what they refuse.
#include "verify/quantisation_modes.hpp"

#include <cmath>

#include "testing.hpp"
#include "verify/scene.hpp"

namespace heed::verify {
namespace {

constexpr quantise::Mode kSmooth{"smooth", "qk/int8/token", true, false, ""};
constexpr quantise::Mode kRotated{"rotated", "qk/int8/token", false, true, ""};
constexpr quantise::Mode kPlain{"plain", "qk/int8/token", false, false, ""};

ReferenceRows exact(const Workload& w, const InputValues& values, const std::vector<RowIndex>& rows) {
  const Scene scene(w, values, LaunchPlan{}, 1);
  return reference_attention(w, scene.tensors(), rows);
}

TEST(QuantisationModes, LeaveExactAttentionAsItIs) {
  for (const char* text : {"b2h4hkv2l37k51d64:fp32", "b2h4hkv2l37k51d64:fp32:causal_bottom_right:alibi",
                           "b3h4hkv2l37k51d64:fp32:ragged"}) {
    const Workload w = parse_workload(text);
    const InputValues values = make_inputs(w, InputClass::channel_offsets, 3);
    const Scene scene(w, values, LaunchPlan{}, 1);
    const std::vector<RowIndex> rows = rows_that_are_there(scene, all_rows(w));
    const ReferenceRows before = exact(w, values, rows);
    for (const quantise::Mode& mode : {kSmooth, kRotated}) {
      const InputValues prepared = prepared_by(w, mode, values, 7);
      EXPECT_NE(prepared.k[5], values.k[5]);
      const ReferenceRows after = exact(w, prepared, rows);
      for (std::size_t i = 0; i < before.out.size(); ++i)
        ASSERT_NEAR(after.out[i], before.out[i], 3e-5) << text << " " << mode.name << " " << i;
      // A rotation leaves scores, and smoothing moves those of a row together.
      for (std::size_t i = 0; mode.rotates && i < rows.size(); ++i) {
        if (std::isfinite(before.lse[i])) {
          ASSERT_NEAR(after.lse[i], before.lse[i], 1e-4);
        }
      }
    }
  }
}

TEST(QuantisationModes, TheMeanIsOutOfK) {
  const Workload w = parse_workload("b2h2l40d64:fp16");
  const InputValues prepared = prepared_by(w, kSmooth, make_inputs(w, InputClass::channel_offsets, 3), 7);
  for (std::size_t head = 0; head < 4; ++head)
    for (std::size_t d = 0; d < 64; ++d) {
      double sum = 0;
      for (std::size_t j = 0; j < 40; ++j) sum += prepared.k[(head * 40 + j) * 64 + d];
      ASSERT_NEAR(sum / 40, 0, 1e-5);
    }
}

// What each is for: offsets of channels, and outliers of one.
TEST(QuantisationModes, HelpWhereTheyAreMadeFor) {
  const Workload w = parse_workload("b1h2l256d64:fp16");
  const std::vector<RowIndex> rows = all_rows(w);
  const auto cost = [&](const quantise::Mode& mode, InputClass inputs) {
    return cost_of(w, mode, make_inputs(w, inputs, 5), rows, 7).rel_rms;
  };
  EXPECT_LT(cost(kSmooth, InputClass::channel_offsets), 0.4 * cost(kPlain, InputClass::channel_offsets));
  EXPECT_LT(cost(kSmooth, InputClass::outlier_channel), 0.3 * cost(kPlain, InputClass::outlier_channel));
  EXPECT_LT(cost(kRotated, InputClass::outliers), 0.7 * cost(kPlain, InputClass::outliers));
  const Accuracy normal = cost_of(w, kPlain, make_inputs(w, InputClass::normal, 5), rows, 7);
  EXPECT_GT(normal.rel_rms, 1e-3);
  EXPECT_LT(normal.rel_rms, 3e-2);
  EXPECT_GT(normal.cosine, 0.999);
}

TEST(QuantisationModes, EveryOneHasAWorkloadAndAName) {
  const Workload w = parse_workload("b1h2l64d64:bf16:causal_top_left");
  for (const quantise::Mode& mode : quantise::modes()) {
    EXPECT_TRUE(quantise::quantised_by(w, mode).quantised) << mode.name;
    EXPECT_EQ(&quantise::find_mode(mode.name), &mode);
    const Accuracy cost = cost_of(w, mode, make_inputs(w, InputClass::normal, 5), all_rows(w), 7);
    EXPECT_GT(cost.rel_rms, 1e-4) << mode.name;
    EXPECT_LT(cost.rel_rms, 0.1) << mode.name;
  }
}

TEST(QuantisationModes, RefuseWhatTheyCannotLeaveAsItIs) {
  using testing_support::expect_error;
  expect_error(ErrorCode::usage, "unknown mode \"int4\"", [] { (void)quantise::find_mode("int4"); });
  const auto refused = [](ErrorCode code, const char* words, const char* text, const quantise::Mode& mode) {
    expect_error(code, words, [&] { (void)quantise::quantised_by(parse_workload(text), mode); });
  };
  refused(ErrorCode::unsupported, "a softcap", "l64d64:softcap=20", kSmooth);
  refused(ErrorCode::unsupported, "attention sinks", "l64d64:sinks", kSmooth);
  refused(ErrorCode::unsupported, "the head dim is 96", "l64d96", kRotated);
  refused(ErrorCode::invalid_workload, "quantised already", "l64d64:quantised=k/int8/head", kPlain);
  refused(ErrorCode::invalid_workload, "is ragged", "b2l64d64:ragged", quantise::find_mode("int8"));
}

TEST(QuantisationModes, AKeylessEntryAndZerosHaveNoCost) {
  const Workload w = parse_workload("b2h2l16d64:fp16:key_lengths");
  InputValues values = make_inputs(w, InputClass::normal, 3);
  values.lengths = {{16, 16}, {16, 0}};
  EXPECT_TRUE(std::isfinite(cost_of(w, kSmooth, values, all_rows(w), 7).rel_rms));
  std::fill(values.v.begin(), values.v.end(), 0.0F);
  const Accuracy zeros = cost_of(w, kPlain, values, all_rows(w), 7);
  EXPECT_EQ(zeros.rel_rms, 0);
  EXPECT_EQ(zeros.cosine, 1);
}

}  // namespace
}  // namespace heed::verify
