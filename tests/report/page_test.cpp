// The page of a run: whole with whatever the store holds, and nothing in it but itself.
#include "report/page.hpp"

#include <cmath>
#include <regex>
#include <set>

#include "report/run_report.hpp"
#include "report/svg.hpp"
#include "testing.hpp"

namespace heed::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

store::TrialRecord trial(int number, int generation, const std::string& operation, double ratio,
                         std::vector<int> parents = {}) {
  store::TrialRecord t;
  t.id = 100 + number;
  t.number = number;
  t.generation = generation;
  t.operation = operation;
  t.parents = std::move(parents);
  t.config = "fwd_cpu:block_m=64,stages=2";
  t.verdict = ratio > 0 ? Verdict::ok : Verdict::wrong;
  t.finding = ratio > 0 ? Finding::none : Finding::inexact;
  t.ratio = ratio;
  t.ratio_low = ratio * 0.99;
  t.ratio_high = ratio * 1.01;
  t.trial_us = ratio > 0 ? 10 / ratio : 0;
  t.base_us = 10;
  return t;
}

std::vector<store::TrialRecord> some_trials() {
  std::vector<store::TrialRecord> trials = {trial(0, 0, "default", 1.0), trial(1, 0, "restart", 0.4),
                                            trial(2, 1, "mutate", 1.2, {0}), trial(3, 1, "crossover", 1.3, {2, 1}),
                                            trial(4, 2, "mutate", 0, {3})};
  trials[2].why = "block_m 64 -> 32 of trial 0";
  trials[4].reason = "row (b 0, h 3, 17) is off";
  return trials;
}

store::RunRecord some_run() {
  store::RunRecord run;
  run.id = 7;
  run.created = "2026-01-02T03:04:05Z";
  run.workload = "b1h8l512d64:fp16";
  run.families = "fwd_cpu";
  run.device_kind = "cpu";
  run.device = {{"name", "A Processor"}, {"arch", "x86_64+avx2"}, {"processors", 4}};
  run.options = {{"trials", 5}, {"population", 2}, {"strategy", "elite"}, {"seed", 3}};
  run.heed = "0.1.0";
  run.source_digest = "0123456789abcdef";
  run.state = store::RunState::interrupted;
  run.base = {{"variant", "fwd_cpu.x"}, {"describe", "fwd_cpu:block_m=128,stages=2"}, {"us", 10.0}};
  return run;
}

store::RunRecord finished_run() {
  store::RunRecord run = some_run();
  run.state = store::RunState::finished;
  const nlohmann::json ratio = {{"value", 1.3}, {"low", 1.29}, {"high", 1.31}};
  const nlohmann::json samples = {{"ratios", {1.29, 1.3, 1.31}}, {"base_us", {10.0, 10.1}}, {"trial_us", {7.7, 7.8}}};
  run.result = {{"outcome", "faster"},
                {"self_spread", 0.002},
                {"elapsed_s", 12.0},
                {"final",
                 {{"trial", 3},
                  {"trial_id", 103},
                  {"ratio", ratio},
                  {"base_us", 10.0},
                  {"trial_us", 7.7},
                  {"samples", samples},
                  {"resources", {{"registers", 90}}}}},
                {"floor", {{"us", 1.0}}},
                {"ablation",
                 {{{"knob", "block_m"}, {"default", "128"}, {"champion", "64"}, {"verdict", "ok"}, {"bought", ratio}},
                  {{"knob", "stages"}, {"default", "1"}, {"champion", "2"}, {"verdict", "illegal"}}}},
                {"peers",
                 {{"torch", "2.11"},
                  {"best", "sdpa_flash"},
                  {"best_us", 9.0},
                  {"best_ratio", ratio},
                  {"rows",
                   {{{"backend", "sdpa_flash"}, {"us", 9.0}, {"ratio", ratio}, {"kernels", {"k1"}}},
                    {{"backend", "sdpa_cudnn"}, {"refused", "no such shape"}}}}}}};
  return run;
}

// With all that a text report and evidence read.
store::RunRecord reportable_run() {
  store::RunRecord run = finished_run();
  run.device_kind = "cuda";
  run.device["driver"] = "13.0";
  run.base["self_ratio"] = run.result["final"]["ratio"];
  nlohmann::json& r = run.result;
  r["trials"] = 5;
  r["tflops"] = 100.0;
  r["floor"]["bound"] = "launch";
  r["final"]["error"] = {{"max_abs", 1e-4}, {"rel_rms", 1e-4}};
  r["final"]["variant"] = r["final"]["config"] = "x";
  r["final"]["clocks"] = {{"before", {{"clock_mhz", 1}}}, {"after", {{"clock_mhz", 1}}}};
  r["champion_times"] = {{"cold_us", 8.0}, {"dependent_us", 0.0}};
  r["base_times"] = {{"cold_us", 10.5}, {"dependent_us", 0.0}};
  return run;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Every element that is opened is closed, in order.
void expect_well_formed(const std::string& page) {
  static const std::regex tag("<(/?)([a-zA-Z][a-zA-Z0-9]*)[^>]*?(/?)>");
  static const std::set<std::string> kVoid = {"meta", "link", "br", "img"};
  std::vector<std::string> open;
  const std::size_t style_end = page.find("</style>");
  const std::string body = page.substr(style_end + 8);
  for (std::sregex_iterator it(body.begin(), body.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (kVoid.count(name) != 0 || (*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
      continue;
    }
    if (name == "head" || name == "html") continue;  // opened before the style sheet
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

TEST(Page, HoldsEverythingOfAFinishedRun) {
  std::vector<store::ComparisonRecord> comparisons;
  for (int process = 0; process < 3; ++process)
    comparisons.push_back(
        {process, 7, "final", "v", "b", {{"trial", 3}, {"samples", finished_run().result["final"]["samples"]}}});
  comparisons.push_back({9, 7, "final", "other", "b", {{"trial", 2}, {"samples", {}}}});
  const std::string page = run_page(finished_run(), some_trials(), comparisons);
  expect_well_formed(page);
  for (const char* words :
       {"1.300 times", "[1.2900, 1.3100]", "Progress over trials", "Population by generation", "Lineage", "Verdicts",
        "What each change bought", "cannot be taken back alone (illegal)", "3 processes", "sdpa_flash",
        "sdpa_cudnn refuses this workload: no such shape", "heed replay 103", "A Processor", "0123456789abcdef",
        "wrong (inexact)", "with knobs of trial 1", "block_m 64 -&gt; 32 of trial 0"})
    EXPECT_THAT(page, HasSubstr(words));
  EXPECT_TRUE(is_finished(finished_run()));
  // Figures have a title and a description.
  EXPECT_EQ(count(page, "role=\"img\""), count(page, "<desc"));
  EXPECT_GE(count(page, "role=\"img\""), 8U);
}

TEST(Page, AsksTheNetworkForNothing) {
  const std::string page = run_page(finished_run(), some_trials(), {});
  for (const char* word : {"http:", "https:", "<script", "<link", "@import", "url(", " src=", "href="})
    EXPECT_THAT(page, Not(HasSubstr(word)));
}

TEST(Page, AnUnfinishedRunSaysSo) {
  const std::string page = run_page(some_run(), some_trials(), {});
  expect_well_formed(page);
  EXPECT_THAT(page, HasSubstr("This run is not finished (interrupted): 5 of 5 trials"));
  EXPECT_THAT(page, HasSubstr("The best so far"));
  EXPECT_THAT(page, Not(HasSubstr("The final comparison")));
  EXPECT_FALSE(is_finished(some_run()));
}

TEST(Page, RunsWithNothingOrNothingGood) {
  expect_well_formed(run_page(some_run(), {}, {}));
  EXPECT_THAT(run_page(some_run(), {}, {}), HasSubstr("No trial is stored yet"));
  std::vector<store::TrialRecord> refused = {trial(0, 0, "default", 0), trial(1, 0, "restart", 0)};
  store::RunRecord run = some_run();
  run.state = store::RunState::finished;
  run.result = {{"outcome", "no_variant"}, {"summary", "no variant passed"}, {"trials", 2}};
  const std::string page = run_page(run, refused, {});
  expect_well_formed(page);
  EXPECT_THAT(page, HasSubstr("No champion: no variant passed"));
  store::RunRecord empty;
  empty.result = nullptr;
  expect_well_formed(run_page(empty, refused, {}));
}

TEST(Page, ShowsAProfileWhereTheRunHasOne) {
  EXPECT_THAT(run_page(finished_run(), some_trials(), {}), Not(HasSubstr("<h2>Profile</h2>")));
  store::RunRecord run = finished_run();
  run.result["profile"] = {
      {"base", {{"text", "Waiting bounds it."}, {"shares", {{"tensor", 0.25}}}}},
      {"champion",
       {{"text", "The tensor cores bound it."},
        {"shares", {{"tensor", 0.5}}},
        {"occupancy", {{"limit", "registers"}}},
        {"counters", {{"tensor_pipe_active", 0.5}, {"stalls", {{{"reason", "wait"}, {"warps", 0.125}}}}}}}}};
  const std::string page = run_page(run, some_trials(), {});
  expect_well_formed(page);
  EXPECT_THAT(page, HasSubstr("<h2>Profile</h2>"));
  EXPECT_THAT(page, HasSubstr("<b>base</b>: Waiting bounds it."));
  EXPECT_THAT(page, HasSubstr("<b>champion</b>: The tensor cores bound it."));
  EXPECT_THAT(page, HasSubstr("<td>tensor</td><td class=\"n\">0.25</td><td class=\"n\">0.5</td>"));
  EXPECT_THAT(page, HasSubstr("<td>limit</td><td class=\"n\">-</td><td class=\"n\">registers</td>"));
  EXPECT_THAT(page, HasSubstr("stalls / 1 / warps"));
}

// Text of the database is text, whatever it holds.
TEST(Page, EscapesWhatTheDatabaseHolds) {
  store::RunRecord run = finished_run();
  const std::string evil = "<script>alert('1')</script>&\"";
  run.workload = run.families = run.heed = run.source_digest = run.created = evil;
  run.device["name"] = evil;
  run.device[evil] = evil;
  run.options["strategy"] = evil;
  run.base["describe"] = evil + ":<b>=<i>";
  run.result["ablation"][0]["knob"] = evil;
  run.result["peers"]["rows"][0]["backend"] = evil;
  run.result["peers"]["rows"][1]["refused"] = evil;
  run.result["peers"]["torch"] = evil;
  run.result["profile"] = {{"base", {{"text", evil}, {"shares", {{evil, evil}}}}}};
  std::vector<store::TrialRecord> trials = some_trials();
  for (store::TrialRecord& t : trials) t.operation = t.why = t.reason = t.check = t.config = evil;
  const std::string page = run_page(run, trials, {});
  expect_well_formed(page);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<b>=<i>")));
}

TEST(Page, NumbersThatAreNoneDoNotBreakIt) {
  store::RunRecord run = finished_run();
  run.result["final"]["samples"] = {{"ratios", nlohmann::json::array()}, {"base_us", "x"}};
  run.result["final"]["ratio"] = "none";
  run.result["peers"] = nullptr;
  run.result["ablation"] = 3;
  run.base = nullptr;
  std::vector<store::TrialRecord> trials = some_trials();
  trials[1].ratio = std::nan("");
  trials[3].parents = {99, 98};
  const std::string page = run_page(run, trials, {});
  expect_well_formed(page);
  EXPECT_THAT(page, Not(HasSubstr("\"nan")));
  EXPECT_THAT(page, Not(HasSubstr("\"inf")));
}

TEST(Svg, EscapesAndShortens) {
  EXPECT_EQ(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape("\xC3\xA9\x01"), "\xC3\xA9 ");
  EXPECT_EQ(escape("\xFFz\xC3"), "\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(shortened("abcdefg", 6), "abc...");
  EXPECT_EQ(shortened("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4), "\xC3\xA9...");
}

TEST(Svg, TicksAreRoundAndInside) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const double high : {1e-6, 0.013, 1.0, 1.5786, 47.0, 1e9}) {
    const std::vector<double> at = ticks(0.3 * high, high, 6);
    EXPECT_GE(at.size(), 3U) << high;
    EXPECT_LE(at.size(), 13U) << high;
    for (const double value : at) {
      EXPECT_GE(value, 0.3 * high * (1 - 1e-9));
      EXPECT_LE(value, high * (1 + 1e-9));
    }
  }
  EXPECT_EQ(ticks(2, 2, 5), (std::vector<double>{2}));
  EXPECT_EQ(tick_text(1.25, 0.05), "1.25");
  EXPECT_EQ(tick_text(40, 20), "40");
  EXPECT_EQ((Scale{0, 10, 100, 200})(5), 150);
  EXPECT_EQ((Scale{0, 10, 100, 200})(50), 200);
  EXPECT_EQ((Scale{1, 1, 100, 200})(1), 100);
}

// What takes longer beside another process than by itself is told: in the table, on the page and in the evidence.
TEST(Report, AChampionThatIsSlowerInCompanyIsNoted) {
  store::RunRecord run = reportable_run();
  nlohmann::json& r = run.result;
  nlohmann::json& peer = r["peers"]["rows"][0];
  const char* note = "beside sdpa_flash the champion takes 8.90 us, 1.16 times as long as without";
  EXPECT_THAT(result_text(run), Not(HasSubstr("beside"))) << "a run that did not store it";
  for (const double us : {6.9, 7.7, 8.09}) {  // 8.09 is 5.06% more, and the base is within 0.2% of itself
    peer["champion_us"] = us;
    EXPECT_THAT(result_text(run), Not(HasSubstr("beside"))) << us;
  }
  peer["champion_us"] = 8.9;
  EXPECT_THAT(result_text(run), HasSubstr(note));
  EXPECT_THAT(run_page(run, some_trials(), {}), HasSubstr(note));
  EXPECT_EQ(evidence(run)["rows"][0]["heed_us_beside"], (nlohmann::json{{"sdpa_flash", 8.9}}));
  r["self_spread"] = 0.12;
  EXPECT_THAT(result_text(run), Not(HasSubstr("beside"))) << "a noisy machine";
}

// The parts of a run, what was done in them and the builds that were waited for; older results do not say it.
TEST(Report, ARunTellsWhereItsTimeWent) {
  store::RunRecord run = reportable_run();
  EXPECT_THAT(result_text(run), Not(HasSubstr("run time")));
  run.result["time"] = nlohmann::json::parse(R"({"of": "gpu", "measure": 0.2, "gate": 0.1, "screen": 0.3, "idle": 0.4,
    "waiting": 0.2, "phases": {"measure": {"wall_s": 20}, "gate": {"wall_s": 30}, "screen": {"wall_s": 25.25}},
    "parts": [{"part": "base", "seconds": 3.5}, {"part": "search", "seconds": 70}],
    "builds": {"made": 600, "made_s": 1100, "waited_s": 9.5}})");
  EXPECT_THAT(result_text(run), HasSubstr("run time  base 3.5 s, search 70.0 s; in them measuring 20.0 s, gating 30.0 "
                                          "s, screening 25.2 s, waiting for builds 9.5 s (600 of 1100.0 s)\n"));
  EXPECT_EQ(evidence(run)["run"]["time"]["builds"]["made"], 600);
  run.result["time"]["spot_checks_s"] = 2.5;
  EXPECT_THAT(result_text(run), HasSubstr("measuring 20.0 s (spot checks 2.5 s), gating"));
}

// A search that nothing passed is a result too: no row, and why.
TEST(Report, EvidenceOfARunWithoutAChampionSaysWhy) {
  store::RunRecord run = reportable_run();
  run.result = nlohmann::json::parse(R"({"outcome": "no_variant", "trials": 3, "drafts": 9, "elapsed_s": 4.5,
    "summary": "no variant passed the gate and the final comparison; trial 1: wrong_result: row 3"})");
  const nlohmann::json written = evidence(run);
  EXPECT_TRUE(written["rows"].empty());
  EXPECT_EQ(written["run"]["outcome"], "no_variant");
  EXPECT_THAT(written["run"]["summary"].get<std::string>(), HasSubstr("row 3"));
  EXPECT_THAT(written["table"].get<std::string>(), HasSubstr("No champion"));
  EXPECT_FALSE(written.contains("clocks_mhz"));
  run.result = nullptr;
  EXPECT_THROW((void)evidence(run), Error);
}

// A time that no ratio uses stands under its own name: in the table, on the page and in the evidence.
TEST(Report, DependentLaunchesHaveTheirOwnName) {
  store::RunRecord run = reportable_run();
  nlohmann::json& r = run.result;
  EXPECT_THAT(result_text(run), Not(HasSubstr("dependent launch")));
  EXPECT_EQ(evidence(run)["rows"].size(), 2U);
  r["champion_times"]["dependent_us"] = 6.5;
  EXPECT_THAT(result_text(run), HasSubstr("dependent launch 6.50 us; not part of any ratio"));
  r["base_times"]["dependent_us"] = 9.5;
  EXPECT_THAT(result_text(run), HasSubstr("dependent launch 6.50 us (base 9.50 us)"));
  const nlohmann::json rows = evidence(run)["rows"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["mode"], "graph_warm");
  EXPECT_EQ(rows[0]["heed_us"], 7.7) << "the plain launch";
  EXPECT_EQ(rows[2]["mode"], "graph_dependent");
  EXPECT_EQ(rows[2]["heed_us"], 6.5);
  EXPECT_FALSE(rows[2].contains("ratio"));
}

}  // namespace
}  // namespace heed::report
