// Features of workloads: text, refusals, lengths and what they count.
#include "workload/features.hpp"

#include <numeric>

#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

TEST(WorkloadFeatures, EveryTextReadsBackTheSame) {
  for (const char* text :
       {"b2h4l64d64:fp16:softcap=50", "b2h4l64d64:fp16:bias=fp32", "b2h4l64k70d64:bf16:bias=bool/bk",
        "b2h4l64d64:fp16:bias=fp16/hlk", "b2h4l64d64:fp16:bias=bf16/", "b2h4l64d64:fp32:causal_top_left:alibi:sinks",
        "b2h4l64d64:fp16:causal_bottom_right:window=9:key_lengths", "b2h4l64d64:fp16:blhd:ragged",
        "b2h4l64d64:fp16:causal_top_left:prefix=30", "b2h4l64d64:fp16:sinks:dropout=0.1", "b2h4l64d64:fp16:dropout=1",
        "b2h4l64d64:fp16:out_norm=1e-05", "b2h4l64d64:fp16:sinks:out_norm=0.001/h:out_gate=element",
        "b2h4l64d64:fp16:out_gate=head", "b2h4l64d64:fp16:relative=32/128", "b2h4l64d64:fp16:relative=8/40/past:alibi",
        "b2h4l1k64d64:fp16:scale=0.5:softcap=2.5:bias=fp32/bl:alibi:sinks:key_lengths:page=16"})
    EXPECT_EQ(to_string(parse_workload(text)), text);
  // In any order.
  EXPECT_EQ(to_string(parse_workload("b2h4l64d64:sinks:page=1:bf16:softcap=1")),
            "b2h4l64d64:bf16:softcap=1:sinks:page=1");
}

TEST(WorkloadFeatures, PartsThatCannotBeAreNamed) {
  for (const auto& [part, named] : {std::pair{"softcap=0", "none"},
                                    {"softcap=-1", "softcap=-1"},
                                    {"softcap=x", "x"},
                                    {"softcap=nan", "nan"},
                                    {"softcap=inf", "inf"},
                                    {"softcap=1:softcap=2", "twice"},
                                    {"bias=int8", "int8"},
                                    {"bias=fp16/z", "z"},
                                    {"bias=fp16/bb", "bb"},
                                    {"bias=fp16:bias=bool", "twice"},
                                    {"sinks:sinks", "twice"},
                                    {"alibi:alibi", "twice"},
                                    {"page=0", "0"},
                                    {"page=-4", "-4"},
                                    {"page=2000000", "2000000"},
                                    {"page=16:page=16", "twice"},
                                    {"blocks=64:blocks=64", "twice"},
                                    {"prefix=0", "0"},
                                    {"prefix=-3", "-3"},
                                    {"prefix=x", "x"},
                                    {"prefix=4:prefix=4", "twice"},
                                    {"relative=32", "32/128"},
                                    {"relative=x/128", "x"},
                                    {"relative=32/128/future", "past"},
                                    {"relative=33/128", "33 buckets"},
                                    {"relative=32/4", "distance of 4"},
                                    {"relative=32/128:relative=32/128", "twice"},
                                    {"out_norm=0", "eps of a norm of output rows is 0"},
                                    {"out_norm=-1e-5", "-1e-05"},
                                    {"out_norm=nan", "nan"},
                                    {"out_norm=inf", "inf"},
                                    {"out_norm=1e-31", "1e-30 to 1e30"},
                                    {"out_norm=x", "x"},
                                    {"out_norm=", "not a number"},
                                    {"out_norm=1e-5/b", "out_norm=EPS/h"},
                                    {"out_norm=1:out_norm=1", "twice"},
                                    {"out_gate", "out_gate"},
                                    {"out_gate=none", "element or head"},
                                    {"out_gate=row", "element or head"},
                                    {"out_gate=head:out_gate=element", "twice"},
                                    {"dropout=0", "none"},
                                    {"dropout=1.5", "dropout=1.5"},
                                    {"dropout=-0.1", "dropout=-0.1"},
                                    {"dropout=nan", "dropout=nan"},
                                    {"dropout=x", "x"},
                                    {"dropout=0.1:dropout=0.1", "twice"},
                                    {"ragged:key_lengths", "key_lengths"},
                                    {"sink", "sink"}}) {
    try {
      parse_workload(std::string("b2h4l64d64:") + part);
      ADD_FAILURE() << part << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_workload) << part;
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << part << ": " << error.what();
    }
  }
}

TEST(WorkloadFeatures, AWindowOfEntriesKeepsItsCorner) {
  // Of equal lengths both corners are the same, of entries with lengths of their own they are not.
  EXPECT_EQ(to_string(parse_workload("b1h1l64d64:window_top_left=4/4")), "b1h1l64d64:fp16:window=4/4");
  EXPECT_EQ(to_string(parse_workload("b1h1l64d64:window_top_left=4/4:key_lengths")),
            "b1h1l64d64:fp16:window_top_left=4/4:key_lengths");
}

TEST(WorkloadFeatures, LengthsAreSpreadOverTheBatch) {
  const Workload w = parse_workload("b4h2l80k100d64:ragged");
  std::int64_t queries = 0, keys = 0;
  for (const EntryLengths& entry : lengths_of(w)) queries += entry.len_q, keys += entry.len_k;
  EXPECT_EQ(queries, 20 + 40 + 60 + 80);
  EXPECT_EQ(keys, 25 + 50 + 75 + 100);
  EXPECT_EQ(lengths_of(w), lengths_of(w));
  double scores = 0;
  for (const EntryLengths& entry : lengths_of(w)) scores += 2.0 * static_cast<double>(entry.len_q * entry.len_k);
  EXPECT_DOUBLE_EQ(w.visible_scores(), scores);
  // Of one entry all there are.
  EXPECT_EQ(lengths_of(parse_workload("b1h2l80k100d64:key_lengths")).front(), (EntryLengths{80, 100}));
}

TEST(WorkloadFeatures, RowsSeeThePrefixThatARightBoundHides) {
  const Workload w = parse_workload("b4h2l80k100d64:causal_top_left:prefix=40");
  EXPECT_EQ(w.keys_of(0), (KeyRange{0, 40}));
  EXPECT_EQ(w.keys_of(50), (KeyRange{0, 51}));
  EXPECT_EQ(parse_workload("b1h1l80d64:causal_top_left:window=10:prefix=40").keys_of(30), (KeyRange{20, 40}));
  EXPECT_EQ(parse_workload("b1h1l80k20d64:causal_top_left:prefix=40").keys_of(0), (KeyRange{0, 20}));
  double scores = 0;
  for (const std::int64_t prefix : {10, 20, 30, 40})
    for (std::int64_t row = 0; row < 80; ++row) scores += 2.0 * static_cast<double>(std::max(prefix, row + 1));
  EXPECT_DOUBLE_EQ(w.visible_scores(), scores);
  Workload listed = w;
  listed.blocks = BlockPattern{.rows = 64, .keys = 64, .stride = 1};  // all blocks
  EXPECT_DOUBLE_EQ(listed.visible_scores(), scores);
}

TEST(WorkloadFeatures, TheBytesOfGatesCount) {
  const double without = parse_workload("b2h4l64k32d64").bytes();
  EXPECT_EQ(parse_workload("b2h4l64k32d64:out_gate=element").bytes() - without, 2.0 * 4 * 64 * 64 * 2);
  EXPECT_EQ(parse_workload("b2h4l64k32d64:out_gate=head").bytes() - without, 2.0 * 4 * 64 * 2);
  EXPECT_EQ(parse_workload("b2h4l64k32d64:out_norm=1e-5").bytes(), without);
}

TEST(WorkloadFeatures, TheBytesOfABiasCount) {
  const double without = parse_workload("b2h4l64k32d64").bytes();
  EXPECT_DOUBLE_EQ(parse_workload("b2h4l64k32d64:bias=fp32").bytes(), without + 2 * 4 * 64 * 32 * 4);
  EXPECT_DOUBLE_EQ(parse_workload("b2h4l64k32d64:bias=bool/bk").bytes(), without + 2 * 32);
  // No more than what visible scores read, and once what entries share: a floor is made of it.
  const Workload shared = parse_workload("b4h2l64d64:causal_top_left:bias=fp32/lk");
  Workload plain = shared;
  plain.bias.reset();
  EXPECT_LE(shared.bytes() - plain.bytes(), (64 * 65 / 2) * 4);
  const Workload ragged = parse_workload("b4h2l64d64:ragged:bias=fp32/lk");
  plain = ragged;
  plain.bias.reset();
  EXPECT_LE(ragged.bytes() - plain.bytes(), 64 * 64 * 4);
}

TEST(WorkloadFeatures, CountsOfManyEntriesTakeNoMemoryForEach) {
  Workload w = parse_workload("b4096h2l64k32d64:ragged");
  const double of_some = w.visible_scores();
  const double bytes_of_some = w.bytes();
  w.batch = std::int64_t{1} << 30;
  EXPECT_NEAR(w.visible_scores() / of_some, 0x1p18, 1);
  EXPECT_NEAR(w.bytes() / bytes_of_some, 0x1p18, 1);
}

TEST(WorkloadFeatures, SupersetsCoverAndOthersDoNot) {
  const Features sinks{.sinks = true};
  const Features both{.softcap = true, .sinks = true};
  EXPECT_TRUE(covers(both, sinks));
  EXPECT_FALSE(covers(sinks, both));
  EXPECT_TRUE(covers({}, {}));
  EXPECT_FALSE(covers({}, sinks));
  EXPECT_TRUE(covers(kAllFeatures, both));
  EXPECT_EQ(to_string(both), "softcap_sinks");
  EXPECT_EQ(words_of(both), "a softcap and attention sinks");
}

TEST(WorkloadFeatures, AProgramRunsProblemsWithFewerFeatures) {
  const DeviceFacts device = cpu_facts();
  const Workload with = parse_workload("b1h2l64d64:fp32:softcap=5:sinks");
  const Workload less = parse_workload("b1h2l64d64:fp32:sinks");
  const Workload none = parse_workload("b1h2l64d64:fp32");
  const Variant variant =
      make_variant(find_family("fwd_cpu"), find_family("fwd_cpu").default_config(with, device), with);
  EXPECT_TRUE(variant.runs(with));
  EXPECT_TRUE(variant.runs(less));
  EXPECT_TRUE(variant.runs(none));
  EXPECT_FALSE(variant.runs(parse_workload("b1h2l64d64:fp32:alibi")));
  EXPECT_FALSE(make_variant(find_family("fwd_cpu"), variant.config, none).runs(less));
  EXPECT_EQ(to_string(variant.problem), "fp32_d64_softcap_sinks");
  EXPECT_NE(literal(variant.problem).find(".features = {.softcap = true, .sinks = true}"), std::string::npos);
  EXPECT_EQ(literal(problem_of(none)).find("features"), std::string::npos) << "the text of other problems stays";
}

TEST(WorkloadFeatures, FamiliesWithoutThemSayWhichTheyLack) {
  DeviceFacts gpu;
  gpu.kind = DeviceKind::cuda;
  gpu.compute_capability = 90;
  gpu.arch = "sm_90a";
  const auto refusal =
      find_family("fwd_sm90_split").refuses(parse_workload("b1h2l64d64:softcap=5:alibi:sinks:page=16"), gpu);
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->find("ALiBi slopes and paged keys and values are not supported"), std::string::npos) << *refusal;
}

}  // namespace
}  // namespace heed
