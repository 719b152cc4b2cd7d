#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/random.hpp"
#include "measure/floor.hpp"
#include "measure/pair.hpp"
#include "measure/timed_sets.hpp"
#include "testing.hpp"

namespace heed::measure {
namespace {

TEST(Statistics, MedianAndSpread) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({1, 9, 2}), 2);
  EXPECT_EQ(median({1, 2, 3, 4}), 2.5);
  EXPECT_NEAR(spread({1, 1, 1, 1, 1}), 0, 1e-12);
  EXPECT_GT(spread({1, 2, 3, 4, 5}), 0.9);
}

// The exact interval is what many resamples come to.
TEST(Statistics, MedianIntervalsAreThoseOfTheBootstrap) {
  Random random(7);
  for (const std::size_t count : {3U, 6U, 13U, 20U}) {
    std::vector<double> values(count);
    for (double& v : values) v = 1.1 + 0.1 * random.normal();
    std::vector<double> medians(200'000);
    std::vector<double> sample(count);
    for (double& m : medians) {
      for (double& v : sample) v = values[random.below(count)];
      m = median(sample);
    }
    std::sort(medians.begin(), medians.end());
    const Ratio exact = median_interval(values);
    EXPECT_EQ(exact.value, median(values));
    const auto share_below = [&](double value) {
      return static_cast<double>(std::lower_bound(medians.begin(), medians.end(), value - 1e-12) - medians.begin()) /
             static_cast<double>(medians.size());
    };
    EXPECT_LE(share_below(exact.low), 0.0265) << count;
    EXPECT_GE(share_below(exact.low + 2e-12), 0.0235) << count;
    EXPECT_LE(share_below(exact.high), 0.9765) << count;
    EXPECT_GE(share_below(exact.high + 2e-12), 0.9735) << count;
  }
  EXPECT_EQ(median_interval({1.5}).low, 1.5);
  EXPECT_EQ(median_interval({}).value, 0);
}

// Of many intervals from a known distribution about 95% hold its median.
TEST(Statistics, MedianIntervalsCover) {
  Random random(1);
  int covered = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> ratios(20);
    for (double& r : ratios) r = 1.05 + 0.01 * random.normal();
    const Ratio interval = median_interval(ratios);
    covered += interval.low <= 1.05 && interval.high >= 1.05;
  }
  EXPECT_GE(covered, 180);
}

// A burst takes both readings of the trial in every fourth quad, and once those of the base: neither side gains.
TEST(Statistics, DisturbedQuadsDoNotCount) {
  std::vector<double> base(48, 10);
  std::vector<double> trial(48, 8);
  for (std::size_t i = 0; i < 48; i += 8) trial[i] = trial[i + 1] = 30;
  base[3] = 40;
  const std::vector<Readings> one = {{base, trial}};
  const std::vector<bool> kept = calm_quads(one);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), true), 24 - 6 - 1);
  EXPECT_EQ(paired_ratio(one).low, 1.25);
  EXPECT_EQ(paired_ratio(one).high, 1.25);
}

// Where nearly everything is disturbed, a third is judged by all the same, and says how uncertain it is.
TEST(Statistics, AThirdOfTheQuadsAlwaysCounts) {
  Random random(2);
  std::vector<double> base(60);
  std::vector<double> trial(60);
  for (double& us : base) us = 10 * (1 + 2 * random.uniform());
  for (double& us : trial) us = 10 * (1 + 2 * random.uniform());
  const std::vector<Readings> one = {{base, trial}};
  const std::vector<bool> kept = calm_quads(one);
  EXPECT_GE(std::count(kept.begin(), kept.end(), true), 10);
  EXPECT_GT(paired_ratio(one).uncertainty(), 0.05);
  // A quiet process beside it is judged by alone.
  const std::vector<double> calm_base(60, 10);
  const std::vector<double> calm_trial(60, 8);
  const std::vector<Readings> both = {{base, trial}, {calm_base, calm_trial}};
  EXPECT_NEAR(paired_ratio(both).value, 1.25, 1e-9);
  EXPECT_EQ(calm_quads(std::vector<Readings>{{std::span(base).first(8), std::span(trial).first(8)}}),
            std::vector<bool>(4, true))
      << "so few are all kept";
}

// A slow drift of the clock hits A and B alike: the ratio stays where it is.
TEST(Pair, AbbaCancelsADrift) {
  double clock = 1.0;
  Random random(3);
  const auto reading = [&](double us) {
    clock *= 1.004;
    return us * clock * (1 + 0.001 * random.normal());
  };
  const PairResult result =
      measure_pair([&] { return reading(10); }, [&] { return reading(8); },
                   {.least_quads = 10, .most_quads = 20, .target_uncertainty = 0, .hopeless_below = 0, .limit_s = 5});
  EXPECT_NEAR(result.ratio.value, 1.25, 0.003);
  EXPECT_LE(result.ratio.low, 1.25);
  EXPECT_GE(result.ratio.high, 1.25);
  EXPECT_EQ(result.ratios.size(), 20U);
  EXPECT_EQ(result.base_us.size(), 40U);
}

TEST(Pair, StopsWhenItKnowsEnoughOrNothingCanBeGained) {
  Random random(4);
  const auto noisy = [&](double us, double noise) {
    return [&random, us, noise] { return us * (1 + noise * random.normal()); };
  };
  const PairOptions options{
      .least_quads = 5, .most_quads = 40, .target_uncertainty = 0.01, .hopeless_below = 0.9, .limit_s = 5};
  EXPECT_LT(measure_pair(noisy(10, 0.001), noisy(10, 0.001), options).ratios.size(), 8U);
  EXPECT_LT(measure_pair(noisy(5, 0.05), noisy(10, 0.05), options).ratios.size(), 8U) << "half as fast: hopeless";
  EXPECT_EQ(measure_pair(noisy(10, 0.3), noisy(10, 0.3), options).ratios.size(), 40U);
}

// An honest A/A comparison must not look like a difference more often than its interval says.
TEST(Pair, EqualThingsAreFoundEqual) {
  Random random(5);
  int false_wins = 0;
  for (int run = 0; run < 100; ++run) {
    const auto block = [&] { return 10 * (1 + 0.01 * random.normal()); };
    const PairResult result =
        measure_pair(block, block,
                     {.least_quads = 12, .most_quads = 12, .target_uncertainty = 0, .hopeless_below = 0, .limit_s = 5});
    false_wins += result.ratio.low > 1 + 0.005;
  }
  EXPECT_LE(false_wins, 2);
}

TEST(Pair, ImplausibleTimesAreSeen) {
  EXPECT_TRUE(times_are_plausible(100'000, 110'000, 0));
  EXPECT_TRUE(times_are_plausible(500, 15'000, 0)) << "a short call may spend most of its time on the way";
  EXPECT_FALSE(times_are_plausible(100'000, 1'000'000, 0)) << "a tenth of the time it took";
  EXPECT_TRUE(times_are_plausible(49'000, 470'000, 400e6)) << "400 MB of K changed between replays";
  EXPECT_FALSE(times_are_plausible(200'000, 100'000, 0)) << "more than the time it took";
}

TEST(Floor, IsTheLargestOfItsBounds) {
  DeviceFacts h200;
  h200.kind = DeviceKind::cuda;
  h200.compute_capability = 90;
  h200.processors = 132;
  h200.clock_mhz = 1980;
  h200.cache_bytes = 60 << 20;
  h200.memory_bandwidth = 4.8e12;
  const Workload mission = parse_workload("b1h8l512d64");
  const Peak peak = peak_of(h200, mission, 132);
  EXPECT_NEAR(peak.flops, 1.07e15, 0.01e15);
  EXPECT_NEAR(peak.exponentials, 4.18e12, 0.02e12);
  const Floor floor = floor_of(peak, mission, 0.5);
  EXPECT_NEAR(floor.products_us, 0.5, 0.02);
  EXPECT_NEAR(floor.exponentials_us, 0.5, 0.02);
  EXPECT_EQ(floor_of(peak, mission, 2.0).bound(), "launch");
  EXPECT_EQ(floor_of(peak, mission, 2.0).us(), 2.0);
  const Workload decode = parse_workload("b8h32hkv4l1k8192d128");
  const Floor memory = floor_of(peak_of(h200, decode, 132), decode, 0.5);
  EXPECT_EQ(memory.bound(), "bytes");
  EXPECT_NEAR(memory.bytes_us, 2.0 * 8 * 4 * 8192 * 128 * 2 / 4.8e12 * 1e6, 0.5);
}

TEST(Floor, CpuPeakIsMeasuredAndScalesWithThreads) {
  const double one = measure_cpu_flops(1, CpuUnit::vector);
  EXPECT_GT(one, 1e9);
  EXPECT_LT(one, 1e13);
  EXPECT_LE(one, measure_cpu_flops(1, CpuUnit::vector)) << "the best so far is kept";
}

TEST(Rule, FasterIsBeyondWhatTheBaseShowsAgainstItself) {
  EXPECT_TRUE(is_faster({1.05, 1.02, 1.08}, 0.01));
  EXPECT_FALSE(is_faster({1.05, 1.005, 1.1}, 0.01)) << "the interval reaches into the margin";
  EXPECT_FALSE(is_faster({1.05, 1.01, 1.1}, 0.01));
  EXPECT_FALSE(is_faster({0.9, 0.8, 0.95}, 0));
  EXPECT_FALSE(is_faster({1.0005, 1.0004, 1.0008}, 0.0004)) << "less than what moves from process to process";
  EXPECT_TRUE(is_faster({1.005, 1.003, 1.006}, 0.0004));
}

TEST(TimingPlan, SetsFitTheCacheOrFloodIt) {
  DeviceFacts device;
  device.kind = DeviceKind::cuda;
  device.compute_capability = 90;
  device.processors = 132;
  device.clock_mhz = 1980;
  device.cache_bytes = 60 << 20;
  device.memory_bandwidth = 4.8e12;
  for (const char* text : {"b1h8l512d64", "b1h1l1d64", "b4h16l512d64", "b8h32hkv4l1k8192d128", "b1h32l16384d64"}) {
    const Workload workload = parse_workload(text);
    const TimingPlan warm = plan_timing(workload, device, Caches::warm);
    EXPECT_GE(warm.sets, 2) << text;
    EXPECT_GE(warm.replays, 1);
    const TimingPlan cold = plan_timing(workload, device, Caches::cold);
    for (const TimingPlan& plan : {warm, cold})
      EXPECT_GE(plan.launches, 2 * plan.sets) << text << ": outputs must be overwritten with others";
    if (workload.bytes() < 1e9) {
      EXPECT_GE(cold.sets * workload.bytes(), 3.0 * (60 << 20)) << text;
    }
  }
  // What a replay itself takes is spread over many launches, of large sets too.
  for (const char* text : {"b1h8l512d64", "b4h16l512d64"})
    EXPECT_GT(plan_timing(parse_workload(text), device, Caches::warm).launches, 50) << text;
}

DeviceFacts two_processors() {
  DeviceFacts device;
  device.kind = DeviceKind::cpu;
  device.processors = 2;
  device.clock_mhz = 3000;
  return device;
}

TEST(TimingPlan, ABlockIsAsShortAsAskedFor) {
  const DeviceFacts device = two_processors();
  const Workload workload = parse_workload("b1h1l48d16:fp32");
  const TimingPlan usual = plan_timing(workload, device, Caches::warm);
  EXPECT_EQ(usual.replays, 10);
  const TimingPlan shorter = plan_timing(workload, device, Caches::warm, 1);
  EXPECT_EQ(shorter.replays, 1);
  EXPECT_EQ(shorter.launches, usual.launches) << "what a replay is stays";
}

// What a launch leaves out cannot be written by a later one.
TEST(TimedSets, EveryLaunchOfACpuWritesAnOutputOfItsOwn) {
  const DeviceFacts device = two_processors();
  const Workload w = parse_workload("b1h2l24d16:fp32");
  const TimingPlan plan = plan_timing(w, device, Caches::warm);
  const TimedSets timed(w, plan, {}, 1);
  ASSERT_GT(timed.outputs(), plan.sets);
  std::set<std::uint64_t> places;
  for (int n = 0; n < plan.launches; ++n) places.insert(timed.output_offset(timed.sources(n).output));
  EXPECT_EQ(places.size(), static_cast<std::size_t>(plan.launches));
  const std::uint64_t bytes = timed.scene(0).o().bytes;
  for (std::uint64_t before = 0; const std::uint64_t place : places) {
    EXPECT_GE(place, before + verify::kGuardBytes);
    before = place + bytes;
  }
  EXPECT_GE(timed.image_bytes(), *places.rbegin() + bytes + verify::kGuardBytes);
}

// Whatever a candidate keeps of a launch, outputs or scores, is of no use in another one of the replay: no head of
// queries meets the same head of keys twice.
TEST(TimedSets, NoHeadOfQueriesMeetsItsKeysTwiceInAReplay) {
  for (const char* text : {"b1h1l2d8:fp16", "b2h6hkv3l2d8:fp16", "b2h6hkv3l3d8:bf16:blhd", "b3h2l4d8:fp16:ragged"}) {
    const Workload w = parse_workload(text);
    const std::int64_t group = w.heads / w.heads_kv;
    for (int sets = 2; sets <= 11; ++sets) {
      const auto launches = static_cast<int>(std::min<std::int64_t>(150, most_launches(w, sets)));
      ASSERT_GE(launches, 2 * sets);
      const TimedSets timed(w, {.sets = sets, .launches = launches, .replays = 1}, {}, 1);
      using Met = std::tuple<int, std::vector<std::byte>, int, std::int64_t, std::int64_t>;
      std::set<Met> met;
      std::set<std::tuple<int, int, int, std::uint64_t>> combinations;
      for (int n = 0; n < launches; ++n) {
        const TimedSets::Sources from = timed.sources(n);
        combinations.emplace(from.q, from.k, from.v, from.q_bytes);
        const verify::Scene& of_q = timed.scene(from.q);
        const Strides& strides = of_q.q().strides;
        // The first row of each head that shares keys, for all entries of the batch that it can lie in.
        for (std::int64_t b = 0; b < (w.ragged ? 1 : w.batch); ++b)
          for (std::int64_t h = 0; h < w.heads; h += group) {
            const auto at = of_q.q().offset + from.q_bytes +
                            static_cast<std::uint64_t>(b * strides.batch + h * strides.head) * size_of(w.dtype_q());
            ASSERT_LE(at + 16, of_q.k().offset);
            std::vector<std::byte> row(of_q.image().begin() + static_cast<std::ptrdiff_t>(at),
                                       of_q.image().begin() + static_cast<std::ptrdiff_t>(at + 16));
            EXPECT_TRUE(met.emplace(from.q, std::move(row), from.k, b, h / group).second)
                << text << ", " << sets << " sets, launch " << n << ", entry " << b << ", head " << h;
          }
      }
      EXPECT_EQ(combinations.size(), static_cast<std::size_t>(launches));
    }
  }
}

}  // namespace
}  // namespace heed::measure
