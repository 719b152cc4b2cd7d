// Insights: harvested from runs, retrieved by where they were seen, lowered by what contradicts them.
#include "insights/insight.hpp"

#include "insights/harvest.hpp"
#include "testing.hpp"
#include "workload/features.hpp"

namespace heed::insights {
namespace {

using store::ObservationRecord;
using store::TrialRecord;
using ::testing::HasSubstr;

store::RunRecord a_run() {
  store::RunRecord run;
  run.id = 3;
  run.created = "2026-01-02T03:04:05Z";
  run.workload = "b1h8l512d64:fp16";
  run.device = {{"name", "a cpu"}, {"arch", "x86-64-v4"}};
  run.base = {{"describe", "fwd_cpu:a=1,b=1"}};
  return run;
}

TrialRecord a_trial(int number, const std::string& config, double ratio, std::vector<int> parents,
                    double width = 0.01) {
  TrialRecord t;
  t.number = number;
  t.config = config;
  t.ratio = ratio;
  t.ratio_low = ratio - width / 2;
  t.ratio_high = ratio + width / 2;
  t.parents = std::move(parents);
  t.diagnosis = {{"bound", "fma"}};
  t.finished = "2026-01-02T03:05:00Z";
  return t;
}

ObservationRecord an_observation(const std::string& change, double ratio,
                                 const std::string& workload = "b1h8l512d64:fp16") {
  ObservationRecord o;
  o.family = "fwd_cpu";
  o.change = change;
  o.workload = workload;
  o.arch = "x86-64-v4";
  o.device = "a cpu";
  o.bound_before = "fma";
  o.bound_after = "l2";
  o.ratio = ratio;
  o.low = ratio * 0.99;
  o.high = ratio * 1.01;
  o.origin = "test " + std::to_string(ratio) + workload;
  return o;
}

Place a_place(const std::string& workload = "b1h8l512d64:fp16") {
  return {.family = "fwd_cpu", .workload = parse_workload(workload), .arch = "x86-64-v4", .bound = "fma"};
}

TEST(Harvest, SingleChangesOfTrials) {
  TrialRecord wrong = a_trial(4, "fwd_cpu:a=2,b=9", 0, {1});
  wrong.verdict = Verdict::wrong;
  const std::vector<ObservationRecord> found =
      harvest(a_run(), {a_trial(0, "fwd_cpu:a=1,b=1", 1, {}), a_trial(1, "fwd_cpu:a=2,b=1", 1.2, {}),
                        a_trial(2, "fwd_cpu:a=2,b=4", 1.5, {1}), a_trial(3, "fwd_cpu:a=3,b=5", 1.6, {2}), wrong,
                        a_trial(5, "fwd_sm80:a=2,b=8", 2, {2}), a_trial(6, "fwd_cpu:a=2,b=2", 1.21, {1}, 0.5),
                        a_trial(7, "fwd_cpu:a=2,b=3", 1.2, {1}, 0.002)});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].change, "a 1 -> 2") << "against the base; trial 0 changes nothing";
  EXPECT_DOUBLE_EQ(found[0].ratio, 1.2);
  EXPECT_THAT(found[0].origin, HasSubstr("trial 1 against the base"));
  EXPECT_EQ(found[1].change, "b 1 -> 4");
  EXPECT_DOUBLE_EQ(found[1].ratio, 1.5 / 1.2);
  EXPECT_DOUBLE_EQ(found[1].low, 1.495 / 1.205);
  EXPECT_DOUBLE_EQ(found[1].high, 1.505 / 1.195);
  EXPECT_EQ(found[1].bound_before, "fma");
  EXPECT_EQ(found[1].arch, "x86-64-v4");
  EXPECT_EQ(found[2].change, "b 1 -> 3") << "no effect, but certain";
}

TEST(Harvest, EditsOfCarriedSources) {
  TrialRecord edited = a_trial(1, "fwd_cpu:a=1,b=1", 1.1, {0});
  edited.edits = {{"tokens", "t1"}, {"diff", "--- a"}};
  edited.why = "hoists a load";
  TrialRecord more = a_trial(2, "fwd_cpu:a=1,b=1", 1.2, {1});
  more.edits = {{"tokens", "t2"}, {"diff", "--- b"}};
  TrialRecord knob = a_trial(3, "fwd_cpu:a=2,b=1", 1.21, {1});
  knob.edits = edited.edits;
  TrialRecord both = a_trial(4, "fwd_cpu:a=2,b=1", 1.3, {0});
  both.edits = edited.edits;
  const std::vector<ObservationRecord> found =
      harvest(a_run(), {a_trial(0, "fwd_cpu:a=1,b=1", 1, {}), edited, more, knob, both});
  ASSERT_EQ(found.size(), 2U) << "edits of edited sources, and edits beside a knob, are no single change";
  EXPECT_EQ(found[0].change, "source t1");
  EXPECT_EQ(found[0].diff, "--- a");
  EXPECT_EQ(found[0].sentence, "hoists a load");
  EXPECT_EQ(found[1].change, "a 1 -> 2") << "with the same edits before and after";
}

TEST(Harvest, RowsOfAnAblation) {
  store::RunRecord run = a_run();
  run.result = {{"ablation",
                 {{{"knob", "b"},
                   {"default", "1"},
                   {"champion", "4"},
                   {"config", "fwd_cpu:a=1,b=1"},
                   {"bought", {{"value", 1.1}, {"low", 1.09}, {"high", 1.12}}}},
                  {{"knob", "a"}, {"default", "1"}, {"champion", "2"}, {"config", "fwd_cpu:a=1,b=1"}},
                  3}}};
  const std::vector<ObservationRecord> found = harvest(run, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].change, "b 1 -> 4");
  EXPECT_EQ(found[0].family, "fwd_cpu");
  EXPECT_DOUBLE_EQ(found[0].ratio, 1.1);
}

TEST(Insights, WhatElseAProblemHasCounts) {
  const ObservationRecord here = an_observation("a 1 -> 2", 1.2);
  const auto to = [&](const std::string& workload) { return similarity(here, a_place(workload)); };
  for (const char* other :
       {"b1h8hkv2l512d64:fp16", "b1h8l512d64:fp16:blhd", "b1h8l512d64:fp16:sinks", "b1h8l512d64:fp16:softcap=50"})
    EXPECT_LT(to(other), 1) << other;
  EXPECT_LT(to("b1h8l512d64:fp16:sinks:softcap=50"), to("b1h8l512d64:fp16:sinks"));
  EXPECT_LT(to("b1h8hkv1l512d64:fp16"), to("b1h8hkv4l512d64:fp16"));
  const ObservationRecord capped = an_observation("a 1 -> 2", 1.2, "b1h8l512d64:fp16:softcap=30");
  EXPECT_DOUBLE_EQ(similarity(capped, a_place("b1h8l512d64:fp16:softcap=50")), 1) << "one program";
}

TEST(Insights, TheNearestObservationCountsMost) {
  const ObservationRecord here = an_observation("a 1 -> 2", 1.2);
  EXPECT_DOUBLE_EQ(similarity(here, a_place()), 1);
  double before = 1;
  for (const char* workload : {"b1h8l1024d64:fp16", "b1h8l4096d64:fp16", "b1h8l4096d128:fp16", "b1h8l4096d128:fp32",
                               "b1h8l4096d128:fp32:causal_top_left"}) {
    const double now = similarity(here, a_place(workload));
    EXPECT_LT(now, before) << workload;
    before = now;
  }
  EXPECT_GT(before, 0);
  Place elsewhere = a_place();
  elsewhere.arch = "x86-64-v3";
  EXPECT_LT(similarity(here, elsewhere), 1);
  elsewhere = a_place();
  elsewhere.bound = "dram";
  EXPECT_LT(similarity(here, elsewhere), 1);
  elsewhere.bound = "";
  EXPECT_EQ(similarity(here, elsewhere), 1) << "unknown";
  elsewhere.family = "fwd_sm80";
  EXPECT_EQ(similarity(here, elsewhere), 0) << "a knob of another family";
  ObservationRecord source = here;
  source.diff = "--- a";
  EXPECT_EQ(similarity(source, elsewhere), 0.25);
  ObservationRecord foreign = here;
  foreign.workload = "b1:new=1";
  EXPECT_EQ(similarity(foreign, a_place()), 0);
}

TEST(Insights, AContradictionLowersWhatWasSeen) {
  const std::vector<ObservationRecord> one = {an_observation("a 1 -> 2", 1.2)};
  const Insight before = insights_for(one, a_place()).at(0);
  EXPECT_NEAR(before.expected, std::sqrt(1.2), 1e-12) << "half of it, in logarithms, is the prior's";
  std::vector<ObservationRecord> two = one;
  two.push_back(an_observation("a 1 -> 2", 0.9));
  const Insight after = insights_for(two, a_place()).at(0);
  EXPECT_LT(after.expected, before.expected);
  EXPECT_EQ(after.in_favour, 1);
  EXPECT_EQ(after.against, 1);
  EXPECT_THAT(after.sentence, HasSubstr("of 2 observations 1 faster, 1 slower, 0 without effect"));
  two.push_back(an_observation("a 1 -> 2", 1.19, "b1h8l2048d64:fp16"));
  EXPECT_GT(insights_for(two, a_place()).at(0).expected, after.expected) << "confirmed";
}

TEST(Insights, TheLargestEffectsComeFirst) {
  const std::vector<Insight> found =
      insights_for({an_observation("a", 1.05), an_observation("b", 0.7), an_observation("c", 1.2)}, a_place());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].change, "b");
  EXPECT_EQ(found[1].change, "c");
  EXPECT_THAT(found[1].sentence,
              HasSubstr("c: +20.0% [+18.8, +21.2] of speed at b1h8l512d64:fp16 on x86-64-v4, where fma bounded it"));
}

TEST(Observations, AreKeptOnce) {
  const testing_support::TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  const ObservationRecord one = an_observation("a 1 -> 2", 1.2);
  EXPECT_TRUE(store::add_observation(store, one));
  EXPECT_FALSE(store::add_observation(store, one)) << "the same measurement";
  ObservationRecord other = an_observation("b 1 -> 2", 1.1);
  other.family = "fwd_sm80";
  EXPECT_TRUE(store::add_observation(store, other));
  ASSERT_EQ(store::observations(store).size(), 2U);
  ASSERT_EQ(store::observations(store, "fwd_cpu").size(), 1U);
  ObservationRecord back = store::observations(store, "fwd_cpu").front();
  back.id = 0;
  EXPECT_EQ(back, one);
  EXPECT_EQ(store::observation_from_json(store::to_json(one)), one);
}

TEST(Observations, JsonThatIsNone) {
  const nlohmann::json good = store::to_json(an_observation("a", 1.2));
  for (const char* name : {"family", "change", "ratio", "low", "origin", "created"}) {
    nlohmann::json bad = good;
    bad.erase(name);
    EXPECT_THROW(store::observation_from_json(bad), Error) << name;
  }
  nlohmann::json bad = good;
  bad["ratio"] = -1;
  EXPECT_THROW(store::observation_from_json(bad), Error);
  bad["ratio"] = 9;
  EXPECT_THROW(store::observation_from_json(bad), Error) << "outside its interval";
  EXPECT_THROW(store::observation_from_json(3), Error);
}

}  // namespace
}  // namespace heed::insights
