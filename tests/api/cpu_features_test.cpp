// Features on a CPU: results against the oracle, and which program runs.
#include "cpu_features.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::CpuFeatures;
using testing_support::expect_status;
using testing_support::FeatureCase;

TEST_F(CpuFeatures, AreWhatTheOracleSays) {
  for (const char* features : {"",
                               ":softcap=3",
                               ":bias=fp32",
                               ":bias=fp16/hlk",
                               ":bias=bf16/bk",
                               ":bias=bool/blk",
                               ":bias=bool/bk",
                               ":alibi",
                               ":sinks",
                               ":key_lengths",
                               ":ragged",
                               ":page=7",
                               ":page=16:key_lengths",
                               ":page=1:ragged",
                               ":softcap=2:bias=fp32:alibi:sinks:page=8:ragged",
                               ":softcap=2:bias=bool/bhlk:alibi:sinks:ragged:blhd",
                               ":relative=32/128",
                               ":relative=8/20/past",
                               ":relative=16/40:alibi:bias=fp16/hlk:ragged",
                               ":dropout=0.3",
                               ":dropout=1",
                               ":bias=bool/bk:sinks:page=8:ragged:dropout=0.5"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3", ":window_top_left=9/3"})
      run_and_check(kShape + mask + features);
}

TEST_F(CpuFeatures, ListsOfBlocksAreWhatTheOracleSays) {
  for (const char* blocks :
       {":blocks=64/density0.4@3", ":blocks=64x128/window0+random1@2/bh", ":sinks:blocks=128x64/density0.3/h",
        ":key_lengths:blocks=64/stride2/b", ":ragged:blocks=64/window0", ":page=16:bias=bool/bk:blocks=64/wavefront2"})
    for (const char* mask : {"", ":causal_bottom_right", ":window=90/3"})
      run_and_check(std::string("b3h4hkv2l137k251d16:fp32") + mask + blocks);
}

TEST_F(CpuFeatures, PrefixesAreWhatTheOracleSays) {
  for (const char* features : {"", ":key_lengths", ":ragged:bias=bool/bhlk", ":page=8:blocks=64/density0.5@3"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3"})
      run_and_check(std::string("b4h4hkv2l37k71d16:fp32") + mask + ":prefix=40" + features);
  FeatureCase one("b2h2l9k21d16:fp32:causal_top_left:prefix=20");
  heed_tensors t = one.tensors();
  const heed_problem p = one.problem();
  const auto output = [&](const std::vector<std::int32_t>& lengths) {
    t.prefix_lengths = lengths.data();
    return outputs_of(one, p, t);
  };
  EXPECT_EQ(output({-7, 4000}), output({0, 21}));
}

// Numbers that stand for no block, counts beyond the room and below 0: in any order.
TEST_F(CpuFeatures, NumbersOfBlocksThatThereAreNotShowNothing) {
  FeatureCase one("b1h1l130k200d16:fp32:blocks=64");
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  p.block_most = 3;
  p.block_index_strides = {0, 0, 3, 1};
  const auto output = [&](const std::vector<std::int32_t>& counts, const std::vector<std::int32_t>& numbers) {
    t.block_counts = counts.data();
    t.block_indices = numbers.data();
    return outputs_of(one, p, t);
  };
  EXPECT_EQ(output({3, 100, -5}, {-1, 2, 1 << 30, 4, 0, 3, 0, 1, 2}), output({1, 2, 0}, {2, 0, 0, 0, 3, 0, 0, 0, 0}));
}

// More queries than keys, so that masks at the bottom right hide whole rows.
TEST_F(CpuFeatures, RowsThatSeeNothingAreZeros) {
  for (const char* features : {":sinks", ":key_lengths", ":ragged:sinks", ":bias=bool/bk:sinks"})
    run_and_check(std::string("b3h2l41k9d16:fp32:causal_bottom_right") + features);
}

// Rows of 20 elements are copied to rows of 32: ragged ones as those of one entry, pages as they lie.
TEST_F(CpuFeatures, PassThroughCopies) {
  for (const char* features : {":softcap=3:bias=fp16/hlk", ":alibi:sinks:key_lengths", ":ragged:blhd", ":ragged:sinks",
                               ":page=7:key_lengths", ":page=16:ragged:bias=fp32"}) {
    const std::string text = std::string("b3h4hkv2l37k51d20:fp32:causal_bottom_right") + features;
    FeatureCase one(text);
    heed_plan* plan = plan_of(one.problem());
    EXPECT_THAT(reason_of(plan), ::testing::HasSubstr("rows of 20 elements to rows of 32"));
    heed_plan_destroy(plan);
    run(one.problem(), one.tensors());
    one.check();
  }
}

// The slopes of each entry are those that all entries of a problem of its own would have.
TEST_F(CpuFeatures, AlibiSlopesMayDifferByEntry) {
  FeatureCase one("b2h4l9k21d16:fp32:alibi");
  const std::vector<float> slopes = {0.5F, 0.25F, 1, 2, 0.1F, 0.2F, 0.3F, 0.4F};
  heed_tensors t = one.tensors();
  heed_problem p = one.problem();
  const auto output = [&](const float* first) {
    t.alibi_slopes = first;
    run(p, t);
    const auto* const o = reinterpret_cast<const float*>(t.o);
    return std::vector<float>(o, o + 2 * p.o_strides.batch);
  };
  const std::vector<float> first = output(slopes.data()), second = output(slopes.data() + 4);
  p.flags |= HEED_ALIBI_BY_BATCH;
  const std::vector<float> both = output(slopes.data());
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 9 * 16; ++i) {
        const auto at = static_cast<std::size_t>(b * p.o_strides.batch + h * p.o_strides.head + i);
        ASSERT_EQ(both[at], (b == 0 ? first : second)[at]) << b << ' ' << h << ' ' << i;
      }
}

TEST_F(CpuFeatures, RowsWithoutKeysHaveTheirSink) {
  heed_problem p = cpu_problem("b2h3l5k1d16:fp32:sinks", HEED_WANTS_LSE | HEED_HAS_SINKS);
  p.len_k = 0;
  std::vector<float> o(2 * 3 * 5 * 16, 7), lse(2 * 3 * 5, 7);
  const std::vector<float> sinks = {1, -2, 3};
  heed_tensors t;
  heed_tensors_init(&t);
  t.o = o.data();
  t.lse = lse.data();
  heed_plan* plan = plan_of(p);
  expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the address of sinks is null");
  t.sinks = sinks.data();
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  for (const float value : o) ASSERT_EQ(value, 0);
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_EQ(lse[i], sinks[i / 5 % 3]);
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, ASinkThatIsNotANumberChangesAllOfItsHead) {
  for (const int len_q : {2, 40}) {
    heed_problem p = cpu_problem(fmt::format("b1h2l{}k9d16:fp32:sinks", len_q), HEED_WANTS_LSE | HEED_HAS_SINKS);
    const auto count = static_cast<std::size_t>(2 * len_q);
    std::vector<float> q(count * 16, 0.5F), k(2 * 9 * 16, 0.25F), v(2 * 9 * 16, 3), o(count * 16, 7), lse(count, 7);
    const std::vector<float> sinks = {NAN, -INFINITY};
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = q.data();
    t.k = k.data();
    t.v = v.data();
    t.o = o.data();
    t.lse = lse.data();
    t.sinks = sinks.data();
    heed_plan* plan = plan_of(p);
    std::vector<unsigned char> room(1 << 20);
    ASSERT_EQ(heed_plan_run(plan, &t, room.data(), nullptr), HEED_OK) << heed_last_error();
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_first = i < count / 2;
      ASSERT_EQ(std::isnan(lse[i]), is_first) << i;
      for (std::size_t d = 0; d < 16; ++d)
        if (is_first)
          ASSERT_TRUE(std::isnan(o[i * 16 + d])) << i;
        else
          ASSERT_NEAR(o[i * 16 + d], 3, 1e-5) << i;
    }
    heed_plan_destroy(plan);
  }
}

// A head dim without a program runs on copies, which lie in the workspace.
TEST_F(CpuFeatures, RaggedRowsWithoutKeysAreZeros) {
  heed_problem p = cpu_problem("b2h3l5k1d16:fp32:ragged", HEED_WANTS_LSE | HEED_RAGGED);
  p.len_k = p.total_k = 0;
  p.total_q = 7;
  p.o_strides = {};
  std::vector<float> o(7 * 3 * 16 + 1, 7), lse(3 * 7 + 1, 7);
  heed_tensors t;
  heed_tensors_init(&t);
  t.o = o.data();
  t.lse = lse.data();
  heed_plan* plan = plan_of(p);
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  for (std::size_t i = 0; i + 1 < o.size(); ++i) ASSERT_EQ(o[i], 0);
  for (std::size_t i = 0; i + 1 < lse.size(); ++i) ASSERT_EQ(lse[i], -INFINITY);
  EXPECT_EQ(o.back() + lse.back(), 14) << "past the last row";
  heed_plan_destroy(plan);
}

TEST_F(CpuFeatures, NormsAndGatesAreWhatTheOracleSays) {
  for (const char* features : {":out_norm=1e-05", ":out_norm=0.01/h", ":out_gate=element", ":out_gate=head",
                               ":out_norm=1e-05/h:out_gate=element", ":sinks:ragged:out_norm=0.1:out_gate=element",
                               ":key_lengths:out_norm=0.1/h:out_gate=head", ":ragged:blhd:out_gate=element",
                               ":bias=bool/bk:page=8:ragged:dropout=0.5:out_norm=1e-05:out_gate=head"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=9/3"}) {
      FeatureCase one(kShape + mask + features);
      run(one.problem(), one.tensors());
      one.check(3e-4);  // a norm multiplies by some ten what is off by 3e-5
    }
}

TEST_F(CpuFeatures, RowsThatSeeNothingAreZerosBehindANorm) {
  FeatureCase one("b1h2l30k20d16:fp32:causal_bottom_right:out_norm=1e-20:out_gate=element");
  run(one.problem(), one.tensors());
  one.check(3e-4);
  for (int i = 0; i < 10 * 16; ++i) ASSERT_EQ(static_cast<const float*>(one.tensors().o)[i], 0) << i;
}

// Each tensor of a feature in turn is null, lies between two elements, is given to a problem without, or is written to.
// A batch in parts is the batch, seeds change what is dropped, and the last of them is another than the first.
TEST_F(CpuFeatures, DropoutFollowsFromItsNumbersAlone) {
  FeatureCase one("b2h2l37k51d16:fp32:dropout=0.5");
  const heed_problem p = one.problem();
  heed_tensors t = one.tensors();
  const std::vector<std::byte> whole = outputs_of(one, p, t);
  EXPECT_EQ(outputs_of(one, p, t), whole);
  const auto rows = [&](std::int64_t entry) {
    const auto* const o = static_cast<const float*>(one.tensors().o) + entry * p.o_strides.batch;
    return std::vector<float>(o, o + 37 * 16);
  };
  const std::vector<float> second = rows(1);
  heed_problem half = p;
  half.batch = 1;
  const auto move = [&](auto& address, std::int64_t elements) {
    using Address = std::remove_reference_t<decltype(address)>;
    address = static_cast<Address>(static_cast<void*>(
        const_cast<float*>(static_cast<const float*>(static_cast<const void*>(address))) + elements));
  };
  move(t.q, p.q_strides.batch), move(t.k, p.k_strides.batch), move(t.v, p.v_strides.batch);
  move(t.o, p.o_strides.batch), move(t.lse, 2 * 37);
  run(half, t);
  EXPECT_NE(rows(1), second) << "the second entry's rows as those of a first one";
  ++t.dropout_first_entry;
  run(half, t);
  EXPECT_EQ(rows(1), second);
  for (std::uint64_t heed_tensors::*word : {&heed_tensors::dropout_seed, &heed_tensors::dropout_offset}) {
    heed_tensors other = t;
    other.*word ^= std::uint64_t{1} << 63;
    run(half, other);
    EXPECT_NE(rows(1), second);
  }
}

TEST_F(CpuFeatures, APlanSaysWhatElseItsProgramCanDo) {
  FeatureCase one(kShape + ":softcap=3:sinks");
  heed_plan* plan = plan_of(one.problem());
  for (const char* const words : {"it was built with biases or a mask tensor and ALiBi slopes and lengths of", "paged",
                                  "lists of blocks of keys and prefixes that all rows see and dropout and tables of",
                                  "relative-position biases and norms of output rows and output gates too"})
    EXPECT_THAT(reason_of(plan), ::testing::HasSubstr(words));
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_EQ(info.flops, 2.0 * 2 * 16 * 3 * 4 * 37 * 51);
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
