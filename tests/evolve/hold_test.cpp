// Knobs that a search leaves alone: those of accuracy, and those that a run holds.
#include <algorithm>

#include "device/device.hpp"
#include "evolve/toy.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

DeviceFacts hopper() {
  DeviceFacts device = gpu_limits("sm_90a");
  device.processors = 132;
  return device;
}

Space space_with(const char* family, std::string_view hold, const char* workload = "b1h8l2048d64") {
  return space_of(find_family(family), parse_workload(workload), hopper(), hold);
}

std::string named(const Space& space, const Config& config, std::string_view knob) {
  for (std::size_t i = 0; i < space.knobs->size(); ++i)
    if ((*space.knobs)[i].name == knob) return (*space.knobs)[i].text_of(config[i]);
  return "none";
}

// Every operator of a search, over many generations.
void expect_held(const Space& space, std::string_view knob, std::string_view value) {
  StrategyOptions options;
  std::vector<Individual> history;
  for (int g = 0; g < 12; ++g)
    for (const Proposal& p : propose(options, {&space, 1}, g, history)) {
      EXPECT_EQ(named(space, p.config, knob), value) << p.why;
      history.push_back({static_cast<int>(history.size()), g, 0, p.config, true, 1 + 0.001 * g});
    }
  EXPECT_GT(history.size(), 40U);
}

TEST(Hold, ASearchLeavesKnobsOfAccuracy) {
  expect_held(space_with("fwd_sm80", ""), "rowsum", "fadd");
  expect_held(space_with("fwd_sm90_persistent", ""), "rowsum", "fadd");
}

TEST(Hold, BaseAndTrialsHaveWhatIsHeld) {
  const Space space = space_with("fwd_sm80", "rowsum=mma,block_n=32");
  EXPECT_EQ(named(space, space.default_config, "rowsum"), "mma");
  expect_held(space, "rowsum", "mma");
  expect_held(space, "block_n", "32");
}

// A walk through all that is left, too.
TEST(Hold, NoOperatorProposesAnotherValue) {
  Toy toy;
  toy.space.held = {1, 3};
  for (const Individual& one : toy.evolve({}, 60)) {
    EXPECT_EQ(one.config[1], 1);
    EXPECT_EQ(one.config[3], 1);
  }
}

TEST(Hold, WhatAnEarlierRunFoundIsTriedWithWhatIsHeld) {
  const Space space = space_with("fwd_sm80", "rowsum=mma");
  Config found = space_with("fwd_sm80", "").default_config;
  EXPECT_EQ(named(space, found, "rowsum"), "fadd");
  EXPECT_EQ(with_held(space, found), space.default_config);
}

TEST(Hold, WhatAFamilyDoesNotHaveIsRefused) {
  for (const auto& [family, hold, says] :
       {std::tuple{"fwd_sm80", "rowsums=mma", "unknown knob \"rowsums\""},
        std::tuple{"fwd_sm90_persistent", "rowsum=mma", "it takes fadd, fadd_rounded"},
        std::tuple{"fwd_sm80", "warp_rows=32,block_m=16", "no multiple"}}) {
    try {
      (void)space_with(family, hold);
      ADD_FAILURE() << hold;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(says));
      EXPECT_THAT(error.what(), ::testing::HasSubstr(family));
      EXPECT_EQ(error.value(), hold);
    }
  }
}

}  // namespace
}  // namespace heed::evolve
