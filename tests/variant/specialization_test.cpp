// Specialization: one declaration for all families, and what each of them supports.
#include <gmock/gmock.h>

#include "device/device.hpp"
#include "variant/family.hpp"
#include "variant/specialization.hpp"

namespace heed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const DeviceFacts kHopperLimits = gpu_limits("sm_90a");

std::vector<std::string> names_of(const std::vector<Knob>& knobs) {
  std::vector<std::string> names;
  for (const Knob& knob : knobs) names.push_back(knob.name);
  return names;
}

TEST(Specialization, IsListedWithTheValuesThatAFamilySupports) {
  const auto knobs = [](const char* family) { return specialization_knobs(find_family(family).specializations()); };
  EXPECT_THAT(names_of(knobs("fwd_sm90_split")), ElementsAre("specialize", "prune", "o_layout"));
  EXPECT_THAT(knobs("fwd_sm90_split")[0].names, ElementsAre("none", "shape"));
  EXPECT_THAT(knobs("fwd_sm90_persistent")[0].names, ElementsAre("none", "shape", "whole_tiles"));
  for (const char* family : {"fwd_sm80", "fwd_sm80_decode", "fwd_sm90_decode", "fwd_cpu"})
    EXPECT_THAT(knobs(family), ElementsAre()) << family;
  EXPECT_THAT(names_of(specialization_knobs({.shape = true})), ElementsAre("specialize"));
  EXPECT_THAT(names_of(specialization_knobs({.prune = true, .dense_output = true})), ElementsAre());
}

TEST(Specialization, IsNoKnobOfAFamily) {
  for (const Family* family : families())
    for (const Knob& knob : specialization_knobs({.shape = true, .prune = true, .dense_output = true}))
      for (const Knob& own : family->knobs()) EXPECT_NE(own.name, knob.name) << family->name();
}

TEST(Specialization, SurvivesItsValues) {
  const SpecializationSupport all{.shape = true, .whole_tiles = true, .prune = true, .dense_output = true};
  const Specialization most{.specialize = Specialize::whole_tiles, .prune = Prune::on, .o_layout = OutputLayout::dense};
  EXPECT_EQ(specialization_of(specialization_values(most, all), all), most);
  EXPECT_THAT(specialization_values(most, {.shape = true, .dense_output = true}),
              ElementsAre(static_cast<int>(Specialize::whole_tiles), static_cast<int>(OutputLayout::dense)));
  EXPECT_EQ(specialization_of({}, {}), Specialization{});
  EXPECT_EQ(literal(most),
            "{.specialize = heed::Specialize::whole_tiles, .prune = heed::Prune::on, .o_layout = "
            "heed::OutputLayout::dense}");
}

// The same rule for whoever supports how much of it.
TEST(Specialization, HasOneNameAProgram) {
  const SpecializationSupport all{.shape = true, .whole_tiles = true, .prune = true, .dense_output = true};
  const Specialization most{.specialize = Specialize::whole_tiles, .prune = Prune::on, .o_layout = OutputLayout::dense};
  EXPECT_EQ(canonical(most, all), most);
  EXPECT_EQ(canonical(most, {}), Specialization{});
  EXPECT_EQ(canonical(most, {.whole_tiles = true, .prune = true, .dense_output = true}), Specialization{})
      << "no shape is known";
  EXPECT_EQ(canonical(most, {.shape = true}), Specialization{.specialize = Specialize::shape});
  EXPECT_EQ(canonical({.prune = Prune::on}, all), Specialization{}) << "what is not known leaves nothing out";
  EXPECT_EQ(canonical({.o_layout = OutputLayout::dense}, all),
            (Specialization{.specialize = Specialize::shape, .o_layout = OutputLayout::dense}));
}

TEST(Specialization, IsPartOfAVariantAndOfWhatItsProgramKnows) {
  const Workload workload = parse_workload("b1h8l512d64");
  const Variant variant = parse_variant("fwd_sm90_split:o_layout=dense,prune=on,specialize=shape", workload, kHopperLimits);
  EXPECT_EQ(variant.specialization,
            (Specialization{.specialize = Specialize::shape, .prune = Prune::on, .o_layout = OutputLayout::dense}));
  EXPECT_EQ(variant.problem.specialization, variant.specialization);
  EXPECT_THAT(describe(variant), ::testing::EndsWith(",specialize=shape,prune=on,o_layout=dense"));
  EXPECT_THAT(variant.unit(), HasSubstr(".specialization = {.specialize = heed::Specialize::shape"));
  EXPECT_THAT(parse_variant("fwd_sm90_split", workload, kHopperLimits).unit(), Not(HasSubstr(".specialization")));
  const Variant plain = parse_variant("fwd_sm90_split", workload, kHopperLimits);
  Workload longer = workload;
  longer.len_k = 600;
  EXPECT_TRUE(plain.runs(longer));
  EXPECT_FALSE(variant.runs(longer));
  Variant pruned = variant;
  pruned.specialization.prune = Prune::off;
  EXPECT_FALSE(pruned.runs(workload)) << "its problem is of another program";
  EXPECT_NE(pruned.id(), variant.id());
}

TEST(Specialization, OfAFamilyWithoutAnyIsRefused) {
  const Workload workload = parse_workload("b1h8l512d64");
  Variant variant = parse_variant("fwd_sm80", workload, kHopperLimits);
  variant.specialization.specialize = Specialize::shape;
  EXPECT_THAT(variant.is_illegal(workload, kHopperLimits).value_or(""), HasSubstr("have one name"));
  try {
    (void)parse_variant("fwd_sm80:specialize=shape", workload, kHopperLimits);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), HasSubstr("unknown knob \"specialize\""));
  }
}

}  // namespace
}  // namespace heed
