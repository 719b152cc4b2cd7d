// Each check of the gate, broken on purpose: images with one thing wrong, and what must be said of them.
#include "verify/compare.hpp"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>

#include "base/random.hpp"
#include "device/device.hpp"
#include "testing.hpp"
#include "verify/gate.hpp"
#include "verify/scenario.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

TEST(Compare, APerfectOutputPasses) {
  for (const char* text : {"b2h3l40k70d16:fp16", "b2h3l40k70d16:bf16:causal_bottom_right",
                           "b1h2l70k40d16:fp32:causal_bottom_right", "b2h2l20d16:fp16:blhd"})
    for (const std::int64_t padding : {0, 3}) {
      const Comparison result = Scenario(text, padding).compare();
      EXPECT_EQ(result.finding, Finding::none) << text << ": " << result.text;
    }
}

TEST(Compare, OneWrongElementIsFoundAndNamed) {
  Scenario s("b2h3l40k70d16:fp16");
  s.set({1, 2, 17}, 5, 9.0F);
  const Comparison result = s.compare();
  EXPECT_EQ(result.finding, Finding::inexact);
  EXPECT_THAT(result.text, ::testing::HasSubstr("(batch 1, head 2, row 17, column 5): got 9, expected"));
}

// Counters begin at zero, end at zero, and have guards of their own.
TEST(Compare, CountersMustBeZeroAgain) {
  LaunchPlan plan;
  plan.semaphores = 9;
  const Workload w = parse_workload("b1h2l40k70d16:fp16");
  const Scene scene(w, make_inputs(w, InputClass::normal, 5), plan, 6);
  ASSERT_EQ(scene.launch().semaphores, scene.semaphores().offset);
  EXPECT_EQ(scene.semaphores().bytes, 36U);
  EXPECT_LE(scene.image().size(), image_bytes(w, LaunchMemory::of(plan), 0));
  std::vector<std::byte> after = scene.image();
  for (std::uint64_t i = 0; i < 36; ++i) EXPECT_EQ(after[scene.semaphores().offset + i], std::byte{0});
  EXPECT_EQ(scene.forbidden_write(after.data()).finding, Finding::none);
  after[scene.semaphores().offset + 8 * 4 + 1] = std::byte{2};
  EXPECT_EQ(scene.forbidden_write(after.data()).finding, Finding::left_counters);
  EXPECT_THAT(scene.forbidden_write(after.data()).text, ::testing::HasSubstr("counter 8 at 512"));
  after = scene.image();
  after[scene.semaphores().offset + 36] ^= std::byte{1};
  EXPECT_EQ(scene.forbidden_write(after.data()).finding, Finding::wrote_outside);
  EXPECT_THAT(scene.forbidden_write(after.data()).text, ::testing::HasSubstr("1 bytes past the end of the semaphores"));
  EXPECT_EQ(Scene(w, make_inputs(w, InputClass::normal, 5), LaunchPlan{}, 6).launch().semaphores, worker::kNull);
}

// What a caller compares by itself is left out, and nothing beside it.
TEST(Compare, PartsOfTheMemoryAreLeftOut) {
  const Workload w = parse_workload("b1h2l20d16:fp16:out_norm=1e-6/h:out_gate=head");
  LaunchPlan plan;
  plan.semaphores = 1;
  const Scene scene(w, make_inputs(w, InputClass::normal, 5), plan, 6);
  const auto found = [&](std::uint64_t changed, const Scene::Skipped& skipped) {
    std::vector<std::byte> after = scene.image();
    after[changed] ^= std::byte{1};
    return scene.forbidden_write(after.data(), skipped).finding;
  };
  for (const Place* input : {&scene.q(), &scene.k(), &scene.v(), &scene.feature(Scene::out_gate)}) {
    EXPECT_EQ(found(input->offset, {}), Finding::input_modified);
    EXPECT_EQ(found(input->offset, {.inputs = true}), Finding::none);
    EXPECT_EQ(found(input->offset, {.keys = true}), input == &scene.k() ? Finding::none : Finding::input_modified);
    for (const bool inputs : {false, true}) {
      EXPECT_EQ(found(input->offset - 1, {.inputs = inputs}), Finding::wrote_outside);
      EXPECT_EQ(found(input->offset + input->bytes, {.inputs = inputs}), Finding::wrote_outside);
    }
  }
  EXPECT_EQ(found(scene.semaphores().offset, {.inputs = true}), Finding::left_counters);
  EXPECT_EQ(found(scene.semaphores().offset, {.semaphores = true}), Finding::none);
  EXPECT_EQ(found(0, {.inputs = true, .keys = true, .semaphores = true}), Finding::wrote_outside);
  EXPECT_EQ(found(scene.image().size() - 1, {.inputs = true, .semaphores = true}), Finding::wrote_outside);
}

// O lies as the plan says where it does, whatever lies between the rows of Q, K and V.
TEST(Compare, AnOutputThatIsDenseHasNoPadding) {
  for (const char* text : {"b2h3l40k70d16:fp16", "b2h3l40k70d16:fp16:blhd"}) {
    const Workload w = parse_workload(text);
    LaunchPlan plan;
    plan.o_strides = sized_problem_of(w, true).sizes.o_strides;
    const SceneOptions padded{.with_lse = true, .padding_rows = 3};
    const Scene scene(w, make_inputs(w, InputClass::normal, 5), plan, 6, padded);
    EXPECT_EQ(scene.launch().shape.o_strides, *plan.o_strides);
    EXPECT_EQ(scene.o().bytes, 2U * 3 * 40 * 16 * 2);
    EXPECT_EQ(scene.launch().shape.q_strides.batch, 3 * (40 + 3) * 16);
    EXPECT_EQ(scene.launch().shape.k_strides.batch, 3 * (70 + 3) * 16);
    EXPECT_EQ(scene.launch().shape.v_strides.batch, 3 * (70 + 3) * 16);
    EXPECT_LE(scene.image().size(), image_bytes(w, LaunchMemory::of(plan), 3));
    // All of it may be written to, and nothing behind it.
    std::vector<std::byte> after = scene.image();
    std::memset(after.data() + scene.o().offset, 0, scene.o().bytes);
    EXPECT_EQ(scene.forbidden_write(after.data()).finding, Finding::none) << scene.forbidden_write(after.data()).text;
    after[scene.o().offset + scene.o().bytes] ^= std::byte{1};
    EXPECT_EQ(scene.forbidden_write(after.data()).finding, Finding::wrote_outside);
    const Scene any(w, make_inputs(w, InputClass::normal, 5), LaunchPlan{}, 6, padded);
    EXPECT_EQ(any.launch().shape.o_strides, any.launch().shape.q_strides);
  }
}

TEST(Compare, AnUnwrittenElementIsFound) {
  Scenario s("b1h2l40k70d16:fp16");
  std::memset(s.after.data() + s.scene.o().offset + s.index({0, 1, 39}, 15) * 2, 0xff, 2);
  EXPECT_EQ(s.compare().finding, Finding::unwritten_output);
}

TEST(Compare, NaNAndInfinityAreFound) {
  Scenario s("b1h2l40k70d16:fp16");
  s.set({0, 0, 3}, 1, INFINITY);
  EXPECT_EQ(s.compare().finding, Finding::not_finite);
  EXPECT_THAT(s.compare().text, ::testing::HasSubstr("is inf"));
}

TEST(Compare, ASmallErrorEverywhereIsFoundByRms) {
  Scenario s("b1h2l40k70d16:fp16");
  Random random(1);
  for (const RowIndex& row : s.reference.rows)
    for (std::int64_t d = 0; d < 16; ++d) {
      const std::size_t i = s.index(row, d);
      const float value = fp16_to_float(reinterpret_cast<const std::uint16_t*>(s.after.data() + s.scene.o().offset)[i]);
      s.set(row, d,
            value * (1 + (random.chance(0.5) ? 1 : -1) * 1.5e-3F));  // below the absolute limit, three half-ulps
    }
  EXPECT_EQ(s.compare().finding, Finding::inexact);
}

// A loose absolute tolerance lets zeros pass at long sequences, where outputs are small; the relative checks do not.
TEST(Compare, ZerosDoNotPassAtLongSequences) {
  Scenario s("b1h1l4k6000d16:fp16");
  for (const RowIndex& row : s.reference.rows)
    for (std::int64_t d = 0; d < 16; ++d) s.set(row, d, 0.0F);
  EXPECT_EQ(s.compare().finding, Finding::inexact);
}

TEST(Compare, OneWrongRowAmongManyIsFound) {
  Scenario s("b1h1l600k50d16:bf16");
  for (std::int64_t d = 0; d < 16; ++d)
    s.set({0, 0, 599}, d,
          bf16_to_float(
              reinterpret_cast<const std::uint16_t*>(s.after.data() + s.scene.o().offset)[s.index({0, 0, 599}, d)]) *
              1.05F);
  EXPECT_EQ(s.compare().finding, Finding::inexact);
}

TEST(Compare, WrongLogSumExpIsFound) {
  Scenario s("b1h2l40k70d16:fp16");
  float value = 0;
  std::byte* at = s.after.data() + s.scene.lse().offset + 7 * 4;
  std::memcpy(&value, at, 4);
  value += 0.01F;
  std::memcpy(at, &value, 4);
  EXPECT_EQ(s.compare().finding, Finding::wrong_lse);
  std::memset(at, 0xff, 4);
  EXPECT_EQ(s.compare().finding, Finding::unwritten_output);
}

TEST(Compare, AFiniteLogSumExpOfAnEmptyRowIsWrong) {
  Scenario s("b1h1l20k10d16:fp16:causal_bottom_right");
  const float zero = 0;
  std::memcpy(s.after.data() + s.scene.lse().offset, &zero, 4);
  EXPECT_EQ(s.compare().finding, Finding::wrong_lse);
}

TEST(Compare, EveryByteOutsideTheOutputsIsWatched) {
  for (const std::int64_t padding : {0, 3}) {
    Scenario s("b2h2l10k12d16:fp16", padding);
    const auto touched = [&](std::uint64_t offset) {
      std::vector<std::byte> before = s.after;
      s.after[offset] ^= std::byte{0x10};
      const Finding finding = s.compare().finding;
      s.after = std::move(before);
      return finding;
    };
    EXPECT_EQ(touched(s.scene.q().offset), Finding::input_modified);
    EXPECT_EQ(touched(s.scene.k().offset + s.scene.k().bytes - 1), Finding::input_modified);
    EXPECT_EQ(touched(s.scene.v().offset + 33), Finding::input_modified);
    EXPECT_EQ(touched(0), Finding::wrote_outside);
    EXPECT_EQ(touched(s.scene.o().offset - 1), Finding::wrote_outside);
    EXPECT_EQ(touched(s.scene.o().offset + s.scene.o().bytes), Finding::wrote_outside);
    EXPECT_EQ(touched(s.scene.lse().offset - 1), Finding::wrote_outside);
    EXPECT_EQ(touched(s.scene.lse().offset + s.scene.lse().bytes), Finding::wrote_outside);
    EXPECT_EQ(touched(s.scene.image().size() - 1), Finding::wrote_outside);
    if (padding > 0) {
      EXPECT_EQ(touched(s.scene.o().offset + s.index({0, 0, 10}, 0) * 2), Finding::wrote_outside)
          << "a padding row of O";
    }
  }
}

TEST(Compare, SaysWhereItWrote) {
  Scenario s("b1h1l10d16:fp16");
  s.after[s.scene.o().offset + s.scene.o().bytes + 5] ^= std::byte{1};
  EXPECT_THAT(s.compare().text, ::testing::HasSubstr("6 bytes past the end of O"));
}

TEST(Rows, LargeWorkloadsAreSampledSmallOnesAreNot) {
  const Workload small = parse_workload("b1h8l512d64");
  EXPECT_EQ(choose_rows(small, 1e9, 1).size(), 8U * 512);
  const Workload large = parse_workload("b1h32l16384d64");
  const std::vector<RowIndex> rows = choose_rows(large, 0.6e9, 1);
  EXPECT_LT(rows.size(), 1000U);
  EXPECT_GE(rows.size(), 64U);
  std::map<std::int64_t, std::set<std::int64_t>> of_heads;
  for (const RowIndex& row : rows) of_heads[row.head].insert(row.row);
  EXPECT_GE(of_heads.size(), 6U);
  EXPECT_EQ(of_heads.begin()->first, 0) << "the first head, always";
  EXPECT_EQ(of_heads.rbegin()->first, 31) << "and the last";
  for (const auto& [head, seen] : of_heads) {
    EXPECT_EQ(seen.count(0), 1U);
    EXPECT_EQ(seen.count(16383), 1U);
  }
  EXPECT_NE(rows, choose_rows(large, 0.6e9, 2)) << "nobody can know which rows are looked at";
}

// Where the budget allows it, rows of every head.
TEST(Rows, AreOfEveryHeadWhereThatIsCheap) {
  std::set<std::pair<std::int64_t, std::int64_t>> heads;
  for (const RowIndex& row : choose_rows(parse_workload("b64h12l128d64"), 0.6e9, 1))
    heads.insert({row.batch, row.head});
  EXPECT_EQ(heads.size(), 768U);
  EXPECT_EQ(choose_rows(parse_workload("b1h1l100000d64"), 0.6e9, 1).front(), (RowIndex{0, 0, 0}));
}

TEST(Inputs, AreWhatTheyAreCalled) {
  const Workload w = parse_workload("b1h2l64k96d32");
  for (const InputClass inputs : all_input_classes()) {
    const InputValues a = make_inputs(w, inputs, 3);
    EXPECT_EQ(a.q, make_inputs(w, inputs, 3).q) << to_string(inputs);
    EXPECT_NE(a.q, make_inputs(w, inputs, 4).q) << to_string(inputs);
    for (const float x : a.k) ASSERT_TRUE(std::isfinite(x));
  }
  // No value that the dtype cannot hold, at any scale, in any class.
  for (const char* text :
       {"b1h2l64k96d32", "b1h2l64k96d32:scale=1e-10", "b1h2l64k96d32:scale=1e30", "b1h2l64k96d32:scale=1.2e-38",
        "b1h2l64k96d32:bf16:scale=2e38", "b1h2l64k96d32:bf16:scale=1.2e-38", "b1h2l5d64:scale=100"})
    for (const InputClass inputs : all_input_classes()) {
      const Workload scaled = parse_workload(text);
      const InputValues values = make_inputs(scaled, inputs, 3);
      for (const Values* tensor : {&values.q, &values.k, &values.v})
        for (const float x : *tensor)
          ASSERT_TRUE(std::isfinite(round_to(scaled.dtype, x))) << text << ' ' << to_string(inputs);
    }
  for (const float x : make_inputs(w, InputClass::zero_k, 1).k) EXPECT_EQ(x, 0.0F);
  const InputValues constant = make_inputs(w, InputClass::constant_v, 1);
  EXPECT_EQ(constant.v[5], constant.v[32 * 95 + 5]);
  // Large logits: scores of about 60 at most.
  const InputValues large = make_inputs(w, InputClass::large_logits, 1);
  double largest = 0;
  for (std::int64_t i = 0; i < 64; ++i)
    for (std::int64_t j = 0; j < 96; ++j) {
      double score = 0;
      for (std::int64_t d = 0; d < 32; ++d)
        score += static_cast<double>(large.q[static_cast<std::size_t>(i * 32 + d)]) *
                 static_cast<double>(large.k[static_cast<std::size_t>(j * 32 + d)]);
      largest = std::max(largest, std::abs(score * w.softmax_scale()));
    }
  EXPECT_GT(largest, 40);
  EXPECT_LT(largest, 120);
}

// One head of the oracle stands for all: a head that computes something else is found, whichever it is and whatever
// else equals.
TEST(Inputs, EqualHeadsAreCheckedInEveryRow) {
  for (const char* text : {"b2h6hkv3l20k30d16:fp16", "b1h4l20d16:bf16:causal_top_left"}) {
    const Workload w = parse_workload(text);
    const InputValues values = make_inputs(w, InputClass::equal_heads, 3);
    const Scenario all(w, values);  // with every head's own oracle
    EXPECT_NE(std::vector<float>(values.v.begin(), values.v.begin() + 16),
              std::vector<float>(values.v.end() - 16, values.v.end()))
        << "columns are turned";
    Workload head = w;
    head.batch = head.heads = head.heads_kv = 1;
    Scenario s = all;
    s.reference = make_reference(s.scene, all_rows(head));
    s.reference.columns = equal_head_columns(w, 3);
    EXPECT_EQ(s.compare().finding, Finding::none) << s.compare().text;
    EXPECT_NEAR(s.reference.oracle.lse[7], all.reference.oracle.lse.at(all.reference.oracle.lse.size() - 20 + 7), 1e-9);
    for (const RowIndex& row : {RowIndex{0, 0, 3}, RowIndex{0, 3, 19}, RowIndex{w.batch - 1, w.heads - 1, 0}}) {
      Scenario wrong = s;
      for (std::int64_t d = 0; d < 16; ++d) wrong.set(row, d, 0.5F);
      EXPECT_EQ(wrong.compare().finding, Finding::inexact);
      EXPECT_THAT(wrong.compare().text, ::testing::HasSubstr(fmt::format("batch {}, head {}", row.batch, row.head)));
      Scenario wrong_lse = s;
      wrong_lse.set_lse(row, 9.0F);
      EXPECT_EQ(wrong_lse.compare().finding, Finding::wrong_lse);
    }
  }
}

// A launch that is asked for no log-sum-exp may not write one.
TEST(Compare, WhereNoLogSumExpIsAskedForNoneIsWritten) {
  Scenario s("b1h2l40k70d16:fp16");
  s.scene.drop_lse();
  EXPECT_EQ(s.scene.launch().lse, worker::kNull);
  EXPECT_EQ(s.compare().finding, Finding::wrote_outside);
  const Scenario fresh("b1h2l40k70d16:fp16");
  Scenario without = fresh;
  without.scene.drop_lse();
  std::memcpy(without.after.data() + fresh.scene.lse().offset, fresh.scene.image().data() + fresh.scene.lse().offset,
              fresh.scene.lse().bytes);
  EXPECT_EQ(without.compare().finding, Finding::none) << without.compare().text;
}

TEST(Neighbours, ShareTheProblemAndDifferInShape) {
  for (const char* text : {"b1h8l512d64", "b2h8hkv2l1d128:bf16:causal_top_left", "b1h1l1k1d64:fp32"}) {
    const Workload w = parse_workload(text);
    const DeviceFacts device = w.dtype == Dtype::fp32 ? cpu_facts() : gpu_limits("sm_90a");
    const std::vector<Workload> shapes =
        neighbours(parse_variant(w.dtype == Dtype::fp32 ? "fwd_cpu" : "fwd_sm80", w, device), w);
    EXPECT_GE(shapes.size(), 4U);
    for (const Workload& n : shapes) {
      validate(n);
      EXPECT_EQ(problem_of(n), problem_of(w)) << to_string(n);
      EXPECT_NE(n, w);
    }
  }
  // Numbers of features are others, and features are left out.
  const Workload caps = parse_workload("b1h2l64k150d64:fp32:softcap=2:page=16:bias=fp32/hlk");
  bool has_cap = false, has_page = false, has_own_bias = false, has_none = false;
  for (const Workload& n : neighbours(parse_variant("fwd_cpu", caps, cpu_facts()), caps)) {
    validate(n);
    has_cap = has_cap || (n.softcap > 0 && n.softcap != 2);
    has_page = has_page || (n.page_size > 0 && n.page_size != 16);
    has_own_bias = has_own_bias || (n.bias && n.bias->by_batch && n.batch > 1);
    has_none = has_none || (n.softcap == 0 && n.page_size == 0 && !n.bias);
  }
  EXPECT_TRUE(has_cap && has_page && has_own_bias && has_none);
  // A program for fixed sizes is asked for these alone, with other strides and another scale.
  const Workload w = parse_workload("b2h8l512d64");
  const Variant fixed = parse_variant("fwd_sm90_persistent:specialize=shape", w, gpu_limits("sm_90a"));
  const std::vector<Workload> shapes = neighbours(fixed, w);
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_TRUE(fixed.runs(shapes[0]));
  EXPECT_NE(shapes[0].layout, w.layout);
  EXPECT_NE(shapes[0].softmax_scale(), w.softmax_scale());
  // One for dense outputs runs no other layout.
  for (const char* text : {"b2h8l512d64", "b2h8l512d64:blhd"})
    for (const char* knobs : {"fwd_sm90_persistent:specialize=shape,o_layout=dense",
                              "fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on"}) {
      const Workload of = parse_workload(text);
      const Variant dense = parse_variant(knobs, of, gpu_limits("sm_90a"));
      const std::vector<Workload> all = neighbours(dense, of);
      ASSERT_EQ(all.size(), 1U);
      EXPECT_TRUE(dense.runs(all[0]));
      EXPECT_EQ(all[0].layout, of.layout);
      EXPECT_NE(all[0].softmax_scale(), of.softmax_scale());
    }
}

}  // namespace
}  // namespace heed::verify
