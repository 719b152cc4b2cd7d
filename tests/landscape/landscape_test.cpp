// Landscapes as files, and searches on them.
#include "landscape/landscape.hpp"

#include <cmath>
#include <set>

#include "landscape/record.hpp"
#include "landscape/simulate.hpp"
#include "testing.hpp"

namespace heed::landscape {
namespace {

using ::testing::HasSubstr;

// Four knobs of four values; time grows with the distance from one point; a corner does not build.
Landscape made() {
  Landscape l;
  l.workload = "b1h8l512d64:fp16";
  l.family = "fwd_x";
  l.device = {{"name", "a device"}};
  l.heed = "0";
  l.source_digest = "d";
  for (const char* name : {"a", "b", "c"}) l.knobs.push_back({name, "", {1, 2, 4, 8}, {}});
  l.knobs[0].acts_on = {Bound::tail};
  l.knobs.push_back({"mode", "", {0, 1, 2}, {"off", "on", "both"}});
  l.default_config = {1, 1, 1, 0};
  l.others = "fwd_x:a=1,b=1,c=1,mode=off,d=3";
  l.base_us = 10;
  for (const int a : l.knobs[0].values)
    for (const int b : l.knobs[1].values)
      for (const int c : l.knobs[2].values)
        for (const int mode : l.knobs[3].values) {
          Point point;
          point.invalidity = a == 8 && b == 8 ? "compile" : "correct";
          point.reason = a == 8 && b == 8 ? "too many registers" : "";
          if (point.ok()) {
            point.us = 5 + std::abs(std::log2(a) - 2) + std::abs(std::log2(b) - 1) + std::abs(std::log2(c) - 3) + mode;
            point.ratio = 11 / point.us;
            point.low = 0.99 * point.ratio;
            point.high = 1.01 * point.ratio;
            point.bound = Bound::tail;
            point.readings_us = {point.us, point.us};
          }
          l.points[{a, b, c, mode}] = point;
        }
  return l;
}

TEST(Landscape, IsReadAsItWasWritten) {
  const Landscape l = made();
  const nlohmann::json json = to_json(l);
  EXPECT_EQ(json["schema_version"], "1.0.0");
  EXPECT_EQ(json["results"].size(), 192U);
  EXPECT_EQ(json["results"][0]["configuration"]["mode"], "off");
  EXPECT_EQ(json["results"][0]["objectives"][0], "time");
  const Landscape back = landscape_from_json(json, "test");
  EXPECT_EQ(to_json(back), json);
  EXPECT_EQ(back.best()->first, (Config{4, 2, 8, 0}));
  EXPECT_NEAR(back.best_us(), 5, 1e-9);
  EXPECT_EQ(back.points.at({8, 8, 1, 0}).reason, "too many registers");
  EXPECT_EQ(back.points.at({1, 1, 1, 1}).bound, Bound::tail);
}

TEST(Landscape, FilesThatAreNone) {
  const nlohmann::json good = to_json(made());
  const auto refusal = [](const nlohmann::json& json) {
    try {
      (void)landscape_from_json(json, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(refusal(3), HasSubstr("file is no landscape"));
  nlohmann::json bad = good;
  bad["results"][0]["configuration"]["mode"] = "maybe";
  EXPECT_THAT(refusal(bad), HasSubstr("maybe"));
  bad = good;
  bad["results"][0]["configuration"].erase("a");
  EXPECT_THAT(refusal(bad), HasSubstr("'a'"));
  bad = good;
  bad["results"][0]["measurements"] = nlohmann::json::array();
  EXPECT_THAT(refusal(bad), HasSubstr("has no time"));
  bad = good;
  bad["heed"]["default"] = {1};
  EXPECT_THAT(refusal(bad), HasSubstr("no default"));
}

TEST(Simulation, RegretsFallAndEndAtTheFastestPoint) {
  const Landscape l = made();
  for (const char* name : {"single", "elite", "islands", "random", "elite-diagnoses"}) {
    const std::vector<double> all = regrets(l, searcher_of(name, 5), 1, 192);
    ASSERT_EQ(all.size(), 192U) << name;
    for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i], all[i - 1]) << name;
    EXPECT_NEAR(all.back(), 0, 1e-9) << name << ": every point was tried, or the search saw no more of them";
    EXPECT_EQ(regrets(l, searcher_of(name, 5), 1, 192), all) << name << ": the same seed";
  }
}

TEST(Simulation, ElitesAreAheadOfRandomPoints) {
  const Landscape l = made();
  const Summary elite = simulate(l, searcher_of("elite", 5), 40, 40);
  const Summary random = simulate(l, searcher_of("random", 5), 40, 40);
  EXPECT_LT(elite.median, random.median);
  EXPECT_LE(elite.low, elite.median);
  EXPECT_LE(elite.median, elite.high);
  EXPECT_LT(difference_of(elite, random).high, 0);
  const Difference none = difference_of(elite, elite);
  EXPECT_EQ(none.mean, 0);
  EXPECT_EQ(none.low, 0);
}

// As runs on a GPU go: trials under way, drafts that are chosen by what they read, gates that refuse.
TEST(Simulation, CoursesOfARun) {
  const Landscape l = made();
  const Searcher plain = searcher_of("elite", 5);
  Searcher side_by_side = plain;
  side_by_side.course.under_way = 3;
  int others = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<double> all = regrets(l, side_by_side, seed, 30);
    EXPECT_EQ(regrets(l, side_by_side, seed, 30), all) << "the same seed";
    EXPECT_LE(all.back(), 0.4);
    others += all != regrets(l, plain, seed, 30) ? 1 : 0;
  }
  EXPECT_GT(others, 0);
  Searcher drafting = side_by_side;
  drafting.options.drafts = 12;
  drafting.course.noise = 0.01;
  EXPECT_LE(simulate(l, drafting, 5, 8).median, simulate(l, side_by_side, 5, 8).median) << "twelve for each trial";
  Searcher refused = side_by_side;
  refused.course.refused = 1;
  const std::vector<double> all = regrets(l, refused, 1, 20);
  EXPECT_EQ(all.front(), all.back()) << "the default alone passes";
  Searcher blind = searcher_of("random", 5);
  const auto points = static_cast<int>(l.points.size());
  EXPECT_LT(regrets(l, blind, 1, points).back(), all.back());
  blind.course.refused = 1;
  EXPECT_EQ(regrets(l, blind, 1, points).back(), all.back()) << "the default alone passes, here too";
}

TEST(Simulation, TrialsUnderWayAreNoParents) {
  const Landscape l = made();
  evolve::Space space;
  space.knobs = &l.knobs;
  space.default_config = l.default_config;
  space.is_legal = [&](const Config& config) { return l.points.count(config) != 0; };
  evolve::StrategyOptions options;
  // With all trials under way at once none rests on another: what is found first changes nothing that follows.
  Landscape other = l;
  for (auto& [config, point] : other.points) point.low = 2 - point.low;
  const std::vector<Tried> first = follow(l, space, options, {.under_way = 100}, 20);
  const std::vector<Tried> second = follow(other, space, options, {.under_way = 100}, 20);
  ASSERT_EQ(first.size(), 20U);
  std::set<Config> configs;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].config, second[i].config);
    EXPECT_TRUE(configs.insert(first[i].config).second) << "and none is proposed twice";
  }
}

TEST(Simulation, SearchesThatAreNone) {
  EXPECT_THROW(searcher_of("elit", 5), Error);
  EXPECT_THROW(searcher_of("random-insights", 5), Error);
  EXPECT_THROW(start_of("somewhere"), Error);
}

// From a random point the first trial is seldom the default's, and the same seed gives the same point.
TEST(Simulation, StartsAtARandomPoint) {
  const Landscape l = made();
  Searcher searcher = searcher_of("elite", 5);
  const double of_default = regrets(l, searcher, 1, 1).front();
  searcher.start = start_of("random");
  int elsewhere = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const double first = regrets(l, searcher, seed, 1).front();
    EXPECT_EQ(regrets(l, searcher, seed, 1).front(), first);
    elsewhere += first != of_default ? 1 : 0;
  }
  EXPECT_GT(elsewhere, 10);
}

TEST(Prior, KnobsThatActOnTheBoundAreThreeTimesAsLikely) {
  const Landscape l = made();
  const Prior prior = prior_of_diagnoses(l);
  const Config tail = {1, 1, 1, 1};  // bound by the tail, as knob 0 acts on it
  ASSERT_EQ(l.points.at(tail).bound, Bound::tail);
  EXPECT_EQ(prior(tail, 0, 2), 3);
  EXPECT_EQ(prior(tail, 1, 2), 1);
}

TEST(Prior, InsightsAreOfOtherWorkloadsOfTheFamily) {
  std::vector<Landscape> all = {made(), made(), made()};
  all[1].workload = "b2h2l64d16:fp32";
  all[2].workload = "b3h2l64d16:fp32";
  all[2].family = "fwd_other";
  EXPECT_TRUE(Insights({all.data(), 1}, all[0]).empty()) << "a landscape says nothing of itself";
  const Insights insights(all, all[0]);
  ASSERT_FALSE(insights.empty());
  // What a change gains forwards, the change back loses.
  const Knob& knob = all[0].knobs[0];
  const int a = knob.values[0], b = knob.values[1];
  EXPECT_NEAR(insights.log_ratio(knob.name, a, b), -insights.log_ratio(knob.name, b, a), 1e-12);
  const Prior prior = insights.prior();
  EXPECT_GE(prior(all[0].default_config, 0, a), 1.0 / 3);
  EXPECT_LE(prior(all[0].default_config, 0, b), 3);
  EXPECT_EQ(insights.log_ratio("no_knob", 1, 2), 0);
}

TEST(Landscape, OfAFamilysKnobs) {
  const Workload workload = parse_workload("b1h2l64d16:fp32");
  const DeviceFacts device = cpu_facts();
  const Family& family = find_family("fwd_cpu");
  const std::vector<Knob>& table = variant_knobs(family);
  const std::string first = table.at(0).name;
  std::size_t most = 0;
  for (std::size_t knob = 0; knob < table.size(); ++knob) {
    const Landscape l = landscape_of(family, workload, device, {table[knob].name});
    ASSERT_EQ(l.knobs.size(), 1U);
    const std::vector<Config> points = legal_points(l, workload, device);
    EXPECT_LE(points.size(), table[knob].values.size());
    for (const Config& point : points)
      EXPECT_EQ(values_of(variant_at(l, point, workload, device)).at(knob), point.at(0));
    most = std::max(most, points.size());
  }
  EXPECT_GE(most, 2U);
  EXPECT_THROW(landscape_of(family, workload, device, {"no_such_knob"}), Error);
  EXPECT_THROW(landscape_of(family, workload, device, {first, first}), Error);
  EXPECT_THROW(landscape_of(family, workload, device, {first + "=nonsense"}), Error);
  EXPECT_THROW(landscape_of(family, workload, device, {}), Error);
}

}  // namespace
}  // namespace heed::landscape
