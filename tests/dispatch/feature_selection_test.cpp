// Programs with features: those with just what a problem asks for come first, those with more run it too, and the
// covering set has one for each.
#include <fmt/format.h>

#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "dispatch/book_entries.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/selection.hpp"
#include "testing.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed::dispatch {
namespace {

const std::string kWorkload = "b4h8l512d64:fp16";

class FeaturePrograms : public ::testing::Test {
 protected:
  [[nodiscard]] ProgramRecord record_of(const Workload& w, const std::string& config = "") const {
    ProgramRecord record;
    record.arch = device_.arch;
    record.workload = to_string(w);
    record.variant = describe(parse_variant("fwd_cpu:unit=vector" + config, w, device_));
    record.origin = "rule";
    return record;
  }
  // Programs for these features, each named by them; the knobs of all but the last differ from the rule's.
  [[nodiscard]] Programs programs(const std::vector<Features>& all) const {
    ProgramFileWriter writer("abcd");
    for (const Features& features : all)
      writer.add(record_of(with_features(parse_workload(kWorkload), features), &features == &all.back() ? "" : kOther),
                 "code of " + to_string(features));
    return {ProgramFile::parse(writer.bytes(), "programs"), device_};
  }
  [[nodiscard]] static std::string features_of(const Selection& selection) {
    return to_string(selection.variant.problem.features);
  }

  const std::string kOther = ",unroll=4,exp2=degree3";
  DeviceFacts device_ = cpu_facts();
};

TEST_F(FeaturePrograms, TheFewestToSpareComeFirstWhateverTheKnobs) {
  const Features softcap{.softcap = true}, both{.softcap = true, .sinks = true};
  const Programs four = programs({softcap, both, {}, kAllFeatures});
  const auto chosen = [&](const std::string& features) {
    return features_of(four.select(parse_workload(kWorkload + features)));
  };
  EXPECT_EQ(chosen(""), "");
  EXPECT_EQ(chosen(":softcap=30"), "softcap");
  EXPECT_EQ(chosen(":sinks"), "softcap_sinks");
  EXPECT_EQ(chosen(":softcap=1:sinks"), "softcap_sinks");
  EXPECT_EQ(chosen(":ragged"), to_string(kAllFeatures));
  EXPECT_EQ(chosen(":page=16:bias=bool/bk"), to_string(kAllFeatures));
}

// Of programs that differ in as many knobs, in whatever order the file has them.
TEST_F(FeaturePrograms, TheNearestValueOfAKnobComesFirst) {
  const Workload w = parse_workload(kWorkload);
  const Family& family = find_family("fwd_cpu");
  const auto text_with = [&](int rows) { return fmt::format(",block_m={}", rows); };
  const Variant rule = make_variant(family, family.default_config(w, device_), w);
  const auto at = std::find_if(family.knobs().begin(), family.knobs().end(),
                               [](const Knob& knob) { return knob.name == "block_m"; });
  const int named = rule.config[static_cast<std::size_t>(at - family.knobs().begin())];
  const int position = at->index_of(named);
  ASSERT_GE(position, 2);
  const int near = at->values[static_cast<std::size_t>(position - 1)], far = at->values.front();
  for (const bool far_first : {true, false}) {
    ProgramFileWriter writer("abcd");
    for (const int rows : {far_first ? far : near, far_first ? near : far})
      writer.add(record_of(w, text_with(rows)), fmt::format("code of {}", rows));
    const Programs two(ProgramFile::parse(writer.bytes(), "programs"), device_);
    EXPECT_THAT(two.select(w).record->variant, ::testing::HasSubstr(text_with(near))) << named;
  }
}

// A program as accurate as the rule's that differs in two knobs comes before one that differs in one of accuracy alone.
TEST(AccuratePrograms, ComeFirstWhateverTheOtherKnobs) {
  const DeviceFacts device = representative_gpu("sm_90a");
  const Workload w = parse_workload("b4h16l2048d64:fp16");
  const Family& family = find_family("fwd_sm80");
  ProgramFileWriter writer("abcd");
  for (const char* config : {"fwd_sm80:rowsum=mma", "fwd_sm80:stages=2,min_blocks=1"}) {
    const Variant variant = parse_variant(config, w, device);
    ASSERT_EQ(family.is_illegal(variant.config, w, device), std::nullopt) << config;
    ProgramRecord record;
    record.arch = "sm_90a";
    record.workload = to_string(w);
    record.variant = describe(variant);
    record.origin = "rule";
    writer.add(record, config);
  }
  const Programs two(ProgramFile::parse(writer.bytes(), "programs"), device);
  EXPECT_THAT(two.select(w).record->variant, ::testing::HasSubstr("rowsum=fadd"));
}

TEST_F(FeaturePrograms, WhatIsToSpareIsTold) {
  const Programs one = programs({kAllFeatures});
  EXPECT_THAT(
      one.select(parse_workload(kWorkload + ":softcap=30:bias=fp32:alibi:sinks:page=16")).reason,
      ::testing::HasSubstr("it was built with lengths of batch entries and lists of blocks of keys and prefixes "
                           "that all rows see and dropout and tables of relative-position biases and norms of "
                           "output rows and output gates too"));
  EXPECT_THAT(one.select(with_features(parse_workload(kWorkload), kAllFeatures)).reason,
              ::testing::Not(::testing::HasSubstr("it was built with")));
}

TEST_F(FeaturePrograms, AProgramWithoutAFeatureRunsNoneWithIt) {
  const Programs few = programs({{}, {.softcap = true}});
  try {
    (void)few.select(parse_workload(kWorkload + ":sinks"));
    FAIL() << "a program without sinks was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("holds no program for fp16_d64_sinks"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("; heed programs build makes a file that does."));
  }
}

TEST_F(FeaturePrograms, AVariantThatIsAskedForIsFoundWithFeaturesToSpare) {
  // Of another block_m, which lists of blocks would not allow.
  Features others = kAllFeatures;
  others.blocks = false;
  const Programs two = programs({others, {.softcap = true, .sinks = true}});
  const auto found = [&](const std::string& config, const std::string& features) {
    const Workload w = parse_workload(kWorkload + features);
    return features_of(two.find(parse_variant("fwd_cpu:unit=vector" + config, w, device_)));
  };
  EXPECT_EQ(found("", ":sinks"), "softcap_sinks");
  EXPECT_EQ(found(kOther, ":sinks"), to_string(others));
  EXPECT_THROW((void)found("", ":alibi"), Error);
}

// Scratch memory is that of the program: with pages it keeps keys that one without reads where they lie.
TEST_F(FeaturePrograms, PlansAreOfWhatTheProgramWasBuiltFor) {
  const Workload plain = parse_workload("b1h2l64d64:fp32");
  const Variant exact = parse_variant("fwd_cpu:unit=vector", plain, device_);
  const Workload all = with_features(plain, kAllFeatures);
  const Variant spare = parse_variant("fwd_cpu:unit=vector", all, device_);
  EXPECT_GT(spare.plan(plain, device_).shared_bytes, exact.plan(plain, device_).shared_bytes);
  EXPECT_EQ(spare.plan(plain, device_), spare.plan(all, device_));
}

TEST_F(FeaturePrograms, AChampionIsOfEverySoftcap) {
  device_.name = "CPU A";
  BookEntry entry = testing_support::book_entry(1.1, kWorkload + ":softcap=30", "CPU A");
  entry.record.arch = device_.arch;
  entry.record.variant = record_of(parse_workload(kWorkload + ":softcap=30")).variant;
  ProgramFileWriter writer("abcd");
  writer.add(entry.record, entry.image);
  const Champions book(ProgramFile::parse(writer.bytes(), "the book"), device_);
  std::vector<std::string> refused;
  const auto of = [&](const std::string& features) {
    return book.of({parse_workload(kWorkload + features), std::nullopt}, refused).has_value();
  };
  EXPECT_TRUE(of(":softcap=50"));
  EXPECT_TRUE(of(":softcap=30:scale=0.5"));
  EXPECT_FALSE(of(""));
  EXPECT_FALSE(of(":softcap=30:sinks"));
  EXPECT_THAT(refused, ::testing::IsEmpty());
}

TEST(FeatureCovering, EveryProblemWithFeaturesHasAProgram) {
  const CpuLevel& level = cpu_levels().front();
  DeviceFacts device = representative_cpu(level);
  const CoveringOptions options{.dtypes = {Dtype::fp16, Dtype::fp32}, .dims = {64, 128}, .samples = 20};
  ProgramFileWriter writer("0123");
  Features others = kAllFeatures;  // what problems without lists of blocks run
  others.blocks = false;
  int with_all = 0, with_others = 0;
  for (const CoveringProgram& program : covering_programs(device, options)) {
    if (program.variant.problem.features == kAllFeatures) ++with_all;
    if (program.variant.problem.features == others) ++with_others;
    ProgramRecord record;
    record.arch = level.name;
    record.workload = to_string(program.workload);
    record.variant = describe(program.variant);
    record.origin = "rule";
    writer.add(record, "code");
  }
  EXPECT_EQ(with_all, 2 * 2 * 3) << "one for each dtype, head dim and mask";
  EXPECT_EQ(with_others, 2 * 2 * 2 * 3) << "and one for few queries";
  const Programs programs(ProgramFile::parse(writer.bytes(), "covering"), device);
  for (const char* dtype : {"fp16", "fp32"})
    for (const char* dim : {"64", "128"})
      for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=100/3"})
        for (const FeatureName& feature : kFeatureNames) {
          Workload w = parse_workload(std::string("b3h4l70k300d") + dim + ":" + dtype + mask);
          Features wanted;
          wanted.*(feature.member) = true;
          w = with_features(w, wanted);
          EXPECT_EQ(programs.select(w).variant.problem.features, wanted.blocks ? kAllFeatures : others) << to_string(w);
          EXPECT_THAT(describe(programs.select(w).variant), ::testing::HasSubstr("lanes=queries")) << to_string(w);
          Workload few = w;
          few.len_q = 2;
          few.len_k = 5000;
          if (const Workload r = reduced(few); mask_kind(r) == mask_kind(w) && !wanted.blocks && !wanted.prefix) {
            EXPECT_THAT(describe(programs.select(r).variant), ::testing::HasSubstr("lanes=columns")) << to_string(r);
          }
          EXPECT_EQ(programs.select(reduced(parse_workload("b1h1l9k9d64:fp16"))).variant.problem.features, Features{});
        }
}

// A level with a matrix unit has programs of its own for few rows of a key head, and takes none on the matrix unit, nor
// of the level below, for them: of a pool's part of the processors, of decoding, and of a verified draft.
TEST(FeatureCovering, FewQueriesLeaveTheMatrixUnit) {
  const DeviceFacts device = representative_cpu(*find_cpu_level("x86-64-v4-amx"));
  ProgramFileWriter writer("0123");
  for (const char* level : {"x86-64-v4", "x86-64-v4-amx"})
    for (const CoveringProgram& program :
         covering_programs(representative_cpu(*find_cpu_level(level)),
                           {.dtypes = {Dtype::bf16, Dtype::fp16}, .dims = {64, 128}, .samples = 20})) {
      ProgramRecord record;
      record.arch = level;
      record.workload = to_string(program.workload);
      record.variant = describe(program.variant);
      record.origin = "rule";
      writer.add(record, "code");
    }
  const Programs programs(ProgramFile::parse(writer.bytes(), "covering"), device);
  for (const char* dtype : {"bf16", "fp16"})
    for (const int dim : {64, 128})
      for (const char* mask : {"", ":causal_bottom_right", ":window=900/0"})
        for (const char* features : {"", ":key_lengths:page=64", ":softcap=30", ":sinks"})
          for (const auto& [shape, unit] : {std::pair{"h32hkv8l1k65536", "unit=vector"},
                                            {"h32hkv8l4k65536", "unit=vector"},
                                            {"h8l16k5000", "unit=vector"},
                                            {"h32hkv8l300k65536", "unit=matrix"}}) {
            const Workload w =
                reduced(parse_workload(fmt::format("b1{}d{}:{}{}{}", shape, dim, dtype, mask, features)));
            const Selection chosen = programs.select(w);
            EXPECT_THAT(describe(chosen.variant), ::testing::HasSubstr(unit)) << to_string(w);
            EXPECT_EQ(chosen.record->arch, "x86-64-v4-amx") << to_string(w);
          }
}

// Whatever families have, each has a program with all of it for each head dim, dtype and mask: fwd_sm90_persistent
// without dropout, for which rules choose fwd_sm80; fwd_sm90_split, which rules choose for no feature, has none, and
// fwd_sm90_fp8 those of precision modes alone, without features.
TEST(FeatureCovering, GpuFamiliesWithFeaturesHaveTheirPrograms) {
  const DeviceFacts device = representative_gpu("sm_90a");
  int expected = 0;
  for (const Family* family : families())
    if (family->device() == DeviceKind::cuda && has_features(family->features()) &&
        !family->refuses(parse_workload("b1h8l512d64"), device) &&
        (!family->is_special() || family->name() == "fwd_sm90_decode"))  // the first of those for few queries
      expected += 2 * 3;
  int found = 0;
  const CoveringOptions options{.dtypes = {Dtype::fp16, Dtype::bf16}, .dims = {64}, .samples = 20};
  for (const CoveringProgram& program : covering_programs(device, options)) {
    Features all = program.variant.family->features();
    if (program.variant.family->name() == "fwd_sm90_persistent") all.dropout = false;
    if (has_features(program.variant.problem.features) && program.variant.problem.features == all) ++found;
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace heed::dispatch
