#include "evolve/selection.hpp"

#include "evolve/choice.hpp"
#include "record/run_result.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

using measure::Counts;
using measure::PairResult;
using measure::Ratio;

PairResult reading(Ratio ratio) {
  PairResult pair;
  pair.ratio = ratio;
  pair.quads = {8};
  return pair;
}

// Quads that read `ratio` and differ from each other by `noise`. One side is as much faster as the other is slower, so
// that no quad as a whole is slower than the others.
PairResult quads(double ratio, double noise, int count = 12) {
  int base = 0;
  int trial = 0;
  const auto swing = [&](int at) { return noise / 2 * (at / 2 % 5 - 2); };
  return measure::measure_pair([&] { return 10 * (1 - swing(base++) / ratio); },
                               [&] { return 10 / ratio * (1 + swing(trial++)); },
                               {.least_quads = count, .most_quads = count, .target_uncertainty = 0});
}

TEST(Selection, WideIsRelativeToWhatTheMachineShows) {
  EXPECT_FALSE(is_wide({1.3, 1.298, 1.302}, 0));
  EXPECT_TRUE(is_wide({1.3, 1.28, 1.32}, 0.002));
  EXPECT_FALSE(is_wide({1.3, 1.28, 1.32}, 0.02));
  EXPECT_TRUE(is_wide({1.93, 1.20, 2.25}, 0.5)) << "however noisy the machine is";
}

TEST(Selection, AWideIntervalIsUndecidedWhereItMayBeAnElite) {
  const std::vector<double> rivals = {1.28, 1.2, 1.1};
  EXPECT_TRUE(is_undecided(reading({1.93, 1.20, 2.25}), rivals, 2, 0.002));
  EXPECT_FALSE(is_undecided(reading({1.29, 1.289, 1.291}), rivals, 2, 0.002));
  EXPECT_FALSE(is_undecided(reading({1.17, 1.13, 1.19}), rivals, 2, 0.002)) << "two are certainly faster";
  EXPECT_TRUE(is_undecided(reading({1.17, 1.13, 1.19}), rivals, 3, 0.002));
  EXPECT_FALSE(is_undecided(reading({0.9, 0.7, 1.1}), rivals, 9, 0.002)) << "far behind, and no parent";
}

// One narrow reading may be the luck of a calm moment that was none.
TEST(Selection, WhoeverWouldLeadIsMeasuredTwiceOnANoisyMachine) {
  EXPECT_TRUE(is_undecided(reading({1.30, 1.295, 1.305}), {1.2}, 5, 0.02));
  EXPECT_FALSE(is_undecided(reading({1.30, 1.295, 1.305}), {1.2}, 5, 0.002));
  PairResult twice = reading({1.30, 1.295, 1.305});
  twice.quads = {8, 8};
  EXPECT_FALSE(is_undecided(twice, {1.2}, 5, 0.02));
}

TEST(Selection, MeasuringAgainEndsWhenItIsSettledOrEnough) {
  int times = 1;
  const auto wide = [&]() -> std::optional<PairResult> {
    ++times;
    return quads(1.2, 0.1);
  };
  const PairResult never = settled(quads(1.2, 0.1), {}, 5, 0.002, wide);
  EXPECT_EQ(times, kMostMeasurements);
  EXPECT_EQ(never.quads.size(), static_cast<std::size_t>(kMostMeasurements)) << "all of them are kept";
  EXPECT_EQ(never.ratios.size(), 12U * kMostMeasurements);
  times = 1;
  const PairResult calm = settled(quads(1.2, 0.1), {}, 5, 0.002, [&]() -> std::optional<PairResult> {
    ++times;
    return quads(1.2, 0.0001, 40);
  });
  EXPECT_LE(times, 3);
  EXPECT_NEAR(calm.ratio.value, 1.2, 0.001);
  EXPECT_FALSE(is_wide(calm.ratio, 0.002));
  times = 1;
  (void)settled(quads(1.2, 0.1), {}, 5, 0.002, [&]() -> std::optional<PairResult> { return ++times, std::nullopt; });
  EXPECT_EQ(times, 2) << "a process refused it";
}

// A fake of hardware counts: the clock calls it faster, and neither instructions nor cycles do.
TEST(Selection, WhatTheCountsContradictIsMeasuredAgain) {
  const auto with = [](Counts trial) {
    PairResult pair = reading({1.10, 1.099, 1.101});
    pair.base_counts = Counts{1000, 500};
    pair.trial_counts = trial;
    return pair;
  };
  EXPECT_TRUE(is_undecided(with({1100, 550}), {1.2}, 5, 0.002));
  EXPECT_FALSE(is_undecided(with({1100, 450}), {1.2}, 5, 0.002)) << "more instructions in fewer cycles";
  EXPECT_FALSE(is_undecided(with({900, 450}), {1.2}, 5, 0.002));
  EXPECT_FALSE(is_undecided(reading({1.10, 1.099, 1.101}), {1.2}, 5, 0.002)) << "no counts, no witness";
}

TEST(Selection, CountsOfBlocksAreMedians) {
  int at = 0;
  const auto block = [&](double cycles) {
    return [&at, cycles] { return measure::Reading(10, Counts{2 * cycles, ++at == 5 ? 100 * cycles : cycles}); };
  };
  const measure::PairOptions options{.least_quads = 6, .most_quads = 6};
  const PairResult pair = measure::measure_pair(block(100), block(80), options);
  ASSERT_TRUE(measure::counted_ratios(pair));
  EXPECT_DOUBLE_EQ(measure::counted_ratios(pair)->cycles, 1.25);
  EXPECT_DOUBLE_EQ(measure::counted_ratios(pair)->instructions, 1.25);
  const PairResult without = measure::measure_pair(block(100), [] { return 10.0; }, options);
  EXPECT_FALSE(measure::counted_ratios(without));
  EXPECT_FALSE(measure::counted_ratios(measure::together({pair, without})));
}

TEST(Selection, TheFinalOrderIsByLowerEndsAndMeasuresAgainWhatKeepsItOpen) {
  std::map<std::size_t, int> times;
  const MeasureFresh measure = [&](std::size_t trial) -> std::optional<PairResult> {
    ++times[trial];
    if (trial == 7) return std::nullopt;
    if (trial == 1) return quads(1.29, 0.0005);
    return times[trial] == 1 ? quads(1.5, 0.2, 5) : quads(1.1, 0.0005, 60);
  };
  const std::vector<Contender> order = final_order({2, 1, 7}, 0.002, measure, [] { return true; });
  ASSERT_EQ(order.size(), 2U);
  EXPECT_EQ(order[0].trial, 1U);
  EXPECT_GE(times[2], 2) << "its interval reached beyond the leader's";
  EXPECT_EQ(times[1], 1);
  times.clear();
  EXPECT_EQ(final_order({2, 1}, 0.002, measure, [] { return false; }).front().trial, 1U) << "no time: what is certain";
  EXPECT_EQ(times[2], 1);
}

// A disturbed process is replaced by another, not by one that reads better.
TEST(Selection, WhatIsQuotedSpansTheNarrowestProcesses) {
  Contender winner{3, {quads(1.2, 0.2)}};
  int at = 0;
  const MeasureFresh measure = [&](std::size_t) { return std::optional(quads(++at == 1 ? 1.21 : 1.19, 0.0005)); };
  ASSERT_TRUE(complete(winner, 0.002, measure, [] { return true; }));
  EXPECT_EQ(winner.processes.size(), 4U);
  const PairResult all = quoted(winner);
  EXPECT_EQ(all.quads.size(), static_cast<std::size_t>(kFinalProcesses));
  EXPECT_NEAR(all.ratio.low, 1.19, 0.002) << "the lowest of all three";
  EXPECT_NEAR(all.ratio.high, 1.21, 0.002);
  Contender hurried{3, {quads(1.2, 0.2)}};
  ASSERT_TRUE(complete(hurried, 0.002, measure, [] { return false; }));
  EXPECT_EQ(hurried.processes.size(), static_cast<std::size_t>(kFinalProcesses)) << "these in any case";
}

TEST(Selection, TooNoisyIsNotNotFaster) {
  EXPECT_EQ(record::ending_of({1.10, 0.93, 1.38}, 0.002), record::Ending::too_noisy);
  EXPECT_EQ(record::ending_of({1.10, 1.08, 1.12}, 0.2), record::Ending::too_noisy)
      << "the base differs from itself by more";
  EXPECT_EQ(record::ending_of({1.01, 0.99, 1.03}, 0.01), record::Ending::not_faster);
  EXPECT_EQ(record::ending_of({0.8, 0.7, 0.95}, 0.2), record::Ending::not_faster) << "slower, whatever the noise";
  EXPECT_EQ(record::ending_of({1.5, 1.3, 1.7}, 0.1), record::Ending::faster);
}

}  // namespace
}  // namespace heed::evolve
