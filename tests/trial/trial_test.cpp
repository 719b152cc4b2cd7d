// Whole trials on the CPU: honest kernels pass everywhere, exploits nowhere, and a run survives whatever its trials do.
#include <set>

#include "base/random.hpp"
#include "evolve/run.hpp"
#include "exploits/exploits.hpp"
#include "testing.hpp"
#include "trial/false_alarms.hpp"
#include "trial/laboratory.hpp"

namespace heed::trial {
namespace {

using testing_support::case_table;
using testing_support::shared_cache;
using testing_support::TemporaryFolder;

jit::Builder& builder() {
  static jit::Builder shared([] {
    jit::BuilderOptions options;
    options.cache_folder = shared_cache();
    return options;
  }());
  return shared;
}

Options quick() {
  Options options;
  options.launch_limit_s = 10;
  options.pair = {.least_quads = 3, .most_quads = 4, .target_uncertainty = 0.05, .hopeless_below = 0, .limit_s = 0.2};
  options.final_pair = options.pair;
  return options;
}

// Two halves, so that no test takes long on a small machine.
class CaseTable : public ::testing::TestWithParam<int> {};

TEST_P(CaseTable, NoHonestKernelIsRefused) {
  const DeviceFacts device = cpu_facts();
  const std::vector<Workload> cases = case_table();
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cpu) continue;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (static_cast<int>(i % 4) != GetParam() || family->refuses(cases[i], device)) continue;
      Laboratory laboratory(cases[i], device, builder(), nullptr, quick());
      const Variant variant = make_variant(*family, family->default_config(cases[i], device), cases[i]);
      const verify::GateReport report = laboratory.verify(laboratory.build(variant), fresh_seed());
      EXPECT_TRUE(report.passed()) << variant.id() << " at " << to_string(cases[i]) << ": " << report.check << ": "
                                   << report.reason;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quarters, CaseTable, ::testing::Values(0, 1, 2, 3));

TEST(Gate, RandomConfigsOfEveryFamilyPass) {
  const DeviceFacts device = cpu_facts();
  Random random(fresh_seed());
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cpu) continue;
    for (const char* text : {"b1h2l130k200d64:fp16:causal_bottom_right", "b2h4hkv2l100d72:fp16", "b1h2l90d64:bf16",
                             "b1h4hkv2l130k200d64:bf16:causal_bottom_right:window=50"}) {
      const Workload workload = parse_workload(text);
      Laboratory laboratory(workload, device, builder(), nullptr, quick());
      for (int tried = 0; tried < 4;) {
        Config config;
        for (const Knob& knob : family->knobs()) config.push_back(knob.values[random.below(knob.values.size())]);
        if (family->is_illegal(config, workload, device)) continue;
        ++tried;
        const Variant variant = make_variant(*family, config, workload);
        const verify::GateReport report = laboratory.verify(laboratory.build(variant), fresh_seed());
        EXPECT_TRUE(report.passed()) << describe(variant) << " at " << text << ": " << report.check << ": "
                                     << report.reason;
      }
    }
  }
}

// What the zoo's windows are refused for is seen wherever a window's edge lies.
TEST(Gate, RefusesWindowsThatAreOffByOneKey) {
  for (const char* text : {"b1h2l100k300d32:fp32:causal_bottom_right:window=63", "b1h1l128d64:fp16:window=16/9"}) {
    const Workload workload = parse_workload(text);
    Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
    for (const char* change : {"", "--p.left_offset", "++p.left_offset", "--p.right_offset", "++p.right_offset"}) {
      Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
      variant.label = "changed";
      variant.source = fmt::format(
          "extern \"C\" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {{\n"
          "  heed::ForwardParams p = *params;\n  {};\n"
          "  heed::cpu::Forward<kConfig, kProblem>(p, block, static_cast<float*>(scratch)).run();\n}}\n",
          change);
      const verify::GateReport report = laboratory.verify(laboratory.build(variant), fresh_seed());
      EXPECT_EQ(report.passed(), *change == '\0') << text << " " << change << ": " << report.check << report.reason;
    }
  }
}

// A polynomial that is good enough for 16 bits is not for fp32: the gate must know the difference.
TEST(Gate, RefusesAKnobSettingThatIsTooCoarseForItsDtype) {
  const Workload workload = parse_workload("b1h2l128d64:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  const verify::GateReport report =
      laboratory.verify(laboratory.build(parse_variant("fwd_cpu:exp2=degree3", workload, cpu_facts())), fresh_seed());
  EXPECT_EQ(report.verdict, Verdict::wrong);
  EXPECT_EQ(report.finding, Finding::inexact);
}

TEST(Laboratory, TakesAWorkerOverAndLeavesTheOtherToGoOn) {
  const auto passes = [](Laboratory& laboratory) {
    const Variant variant = parse_variant("fwd_cpu", laboratory.workload(), cpu_facts());
    return laboratory.verify(laboratory.build(variant), fresh_seed()).passed();
  };
  Laboratory first(parse_workload("b1h2l64d32:fp32"), cpu_facts(), builder(), nullptr, quick());
  ASSERT_TRUE(passes(first));
  for (const char* shape : {"b1h1l8d16:fp32", "b2h3l100d48:fp16"}) {  // its memory is more than enough; too little
    Laboratory next(parse_workload(shape), cpu_facts(), builder(), nullptr, quick(), &first);
    EXPECT_TRUE(passes(next)) << shape;
    EXPECT_TRUE(passes(first)) << shape;
  }
}

TEST(Gate, UsesTheUsersTensors) {
  const Workload workload = parse_workload("b1h2l20k30d16:fp32");
  QkvTensors tensors;
  tensors.workload = workload;
  const auto fill = [](HostTensor& tensor, std::vector<std::int64_t> shape) {
    tensor.dtype = Dtype::fp32;
    tensor.shape = std::move(shape);
    Random random(1);
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(random.normal());
      tensor.bytes.append(reinterpret_cast<const char*>(&x), 4);
    }
  };
  fill(tensors.q, {1, 2, 20, 16});
  fill(tensors.k, {1, 2, 30, 16});
  fill(tensors.v, {1, 2, 30, 16});
  Laboratory laboratory(workload, cpu_facts(), builder(), &tensors, quick());
  std::vector<std::string> checks;
  const verify::GateReport report = laboratory.verify(laboratory.build(parse_variant("fwd_cpu", workload, cpu_facts())),
                                                      1, [&](const std::string& check) { checks.push_back(check); });
  EXPECT_TRUE(report.passed()) << report.reason;
  EXPECT_THAT(checks, ::testing::Contains("the given tensors"));
}

TEST(Zoo, HasAtLeastTwentyExploitsADevice) {
  const auto count = [](const DeviceFacts& device) {
    return std::count_if(exploits::all().begin(), exploits::all().end(),
                         [&](const exploits::Exploit& e) { return e.lives_on(device); });
  };
  EXPECT_GE(count(cpu_facts()), 20);
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) EXPECT_GE(count(gpu_limits(arch)), 20) << arch;
}

TEST(Zoo, EveryExploitIsCaughtForWhatItIs) {
  for (const exploits::SelftestRow& row :
       exploits::run_selftest(cpu_facts(), builder(), [](const exploits::SelftestRow&) {}))
    EXPECT_TRUE(row.caught) << row.name << ": expected " << row.expected << ", found " << row.found << "; "
                            << row.reason;
}

TEST(FalseAlarms, AnHonestKernelIsComparedWithItself) {
  Options options = quick();
  options.final_pair.limit_s = 0.2;
  int told = 0;
  const FalseAlarms found =
      count_false_alarms(cpu_facts(), builder(), options, 3, [&](const measure::Ratio&) { ++told; });
  EXPECT_EQ(found.ratios.size(), 3U);
  EXPECT_EQ(told, 3);
  EXPECT_EQ(found.allowed(), 0);
  int faster = 0;
  for (const measure::Ratio& ratio : found.ratios) {
    EXPECT_GT(ratio.value, 0);
    faster += measure::is_faster(ratio, found.spread) ? 1 : 0;
  }
  EXPECT_EQ(found.faster, faster);
  EXPECT_EQ(found.passed(), faster == 0);
  testing_support::expect_error(ErrorCode::usage, "--aa 0", [&] {
    count_false_alarms(cpu_facts(), builder(), options, 0, [](const measure::Ratio&) {});
  });
}

TEST(FalseAlarms, OneInAHundredIsAllowed) {
  FalseAlarms found;
  found.ratios.resize(200);
  found.faster = 2;
  EXPECT_TRUE(found.passed());
  found.faster = 3;
  EXPECT_FALSE(found.passed());
}

TEST(Laboratory, ABuildThatFailsIsAVerdict) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu", workload, cpu_facts())));
  Variant broken = parse_variant("fwd_cpu", workload, cpu_facts());
  broken.source = "this is no C++";
  const Outcome outcome = laboratory.judge(broken, builder().build(laboratory.request_for(broken)), 1);
  EXPECT_EQ(outcome.verdict, Verdict::build_failed);
  EXPECT_THAT(outcome.reason, ::testing::HasSubstr("error"));
  testing_support::expect_error(ErrorCode::build_failed, "did not build", [&] { laboratory.build(broken); });
}

// A look times, and judges nothing: what does not build or dies has a reason instead of a time, and the next look
// works.
TEST(Laboratory, ALookIsATimeOrAReason) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  const Variant base = parse_variant("fwd_cpu", workload, cpu_facts());
  laboratory.set_base(laboratory.build(base));
  const auto look_at = [&](const std::string& source) {
    Variant changed = base;
    changed.source = source;
    return laboratory.look(changed, builder().build(laboratory.request_for(changed)));
  };
  const std::string head =
      "#include \"kernels/contract.hpp\"\nextern \"C\" void heed_forward(const heed::ForwardParams* p, long long, "
      "void*) ";
  EXPECT_EQ(look_at("this is no C++").reason, "it did not build");
  const Look dead = look_at(head + "{ *(volatile int*)(p->len_q - p->len_q) = 1; }");
  EXPECT_TRUE(dead.pair.ratios.empty());
  EXPECT_THAT(dead.reason, ::testing::HasSubstr("signal"));
  const Look good = laboratory.look(base, builder().build(laboratory.request_for(base)));
  EXPECT_EQ(good.reason, "");
  EXPECT_GT(good.pair.ratio.low, 0);
  EXPECT_GT(good.pair.trial_median_us, 0);
  // One that does nothing is fast: that is why a look is no verdict.
  const Look idle = look_at(head + "{}");
  EXPECT_EQ(idle.reason, "");
  EXPECT_GT(idle.pair.trial_median_us, 0);
}

TEST(Laboratory, TheBaseAgainstItselfIsOne) {
  const Workload workload = parse_workload("b1h2l128d64:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, {});
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu:threads=1", workload, cpu_facts())));
  const measure::Ratio ratio = laboratory.base_against_itself().pair.ratio;
  EXPECT_GT(ratio.value, 0.8);
  EXPECT_LT(ratio.value, 1.25);
}

TEST(Laboratory, ATimeBelowTheFloorIsNoVictory) {
  // Right, but the floor is told a faster machine than there is: the same door through which an impossible time would
  // come.
  const Workload workload = parse_workload("b1h4l256d64:fp32");
  DeviceFacts device = cpu_facts();
  Laboratory laboratory(workload, device, builder(), nullptr, quick());
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu", workload, device)));
  const measure::Floor floor = laboratory.floor(1);
  EXPECT_GT(floor.us(), 0);
  const Outcome outcome = laboratory.judge(laboratory.base().variant,
                                           {.artifact = laboratory.base().artifact, .timed_out = false, .log = {}}, 1);
  ASSERT_TRUE(outcome.ok()) << outcome.reason;
  EXPECT_GT(outcome.pair.trial_median_us, 0.5 * laboratory.floor(device.processors).us());
}

// Everything a run needs, on a space small enough to finish quickly.
class Quiet final : public evolve::Observer {
 public:
  void message(const std::string& text) override { messages.push_back(text); }
  void generation_started(int, int, int) override {}
  void trial_finished(const store::TrialRecord& trial, double, int) override {
    if (on_trial) on_trial(trial);
  }
  std::vector<std::string> messages;
  std::function<void(const store::TrialRecord&)> on_trial;
};

evolve::RunOptions tiny_run(int trials) {
  evolve::RunOptions options;
  options.workload = parse_workload("b1h2l64d32:fp32");
  options.trials = trials;
  options.strategy.population = 3;
  options.peers = false;
  return options;
}

TEST(Evolution, RunsStoresAndReports) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  evolve::Evolution evolution(store, builder(), cpu_facts(), tiny_run(7), quick(), nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  EXPECT_TRUE(result["outcome"] == "faster" || result["outcome"] == "not_faster" || result["outcome"] == "too_noisy")
      << result["summary"];
  const std::vector<store::TrialRecord> trials = store.trials(evolution.run_id());
  ASSERT_EQ(trials.size(), 7U) << ::testing::PrintToString(observer.messages);
  std::set<std::string> configs;
  for (const store::TrialRecord& t : trials) {
    EXPECT_TRUE(configs.insert(t.config).second);
    EXPECT_EQ(t.generation, t.number / 3);
    if (!t.ok()) continue;
    EXPECT_GT(t.trial_us, 0);
    EXPECT_LE(t.ratio_low, t.ratio);
    EXPECT_GE(t.samples["ratios"].size(), 3U);
    EXPECT_FALSE(t.machine_code.empty());
    ASSERT_GT(t.gate_checks.size(), 5U) << "every class of inputs";
    const auto normal = std::find_if(t.gate_checks.begin(), t.gate_checks.end(),
                                     [](const nlohmann::json& check) { return check["name"] == "normal"; });
    ASSERT_NE(normal, t.gate_checks.end());
    EXPECT_EQ((*normal)["error"]["max_abs"], t.max_abs);
    EXPECT_EQ(t.diagnosis["with_counters"], false);
    EXPECT_FALSE(t.diagnosis["text"].get<std::string>().empty());
  }
  EXPECT_EQ(trials[0].operation, "default");
  const store::RunRecord run = *store.find_run(evolution.run_id());
  EXPECT_EQ(run.state, store::RunState::finished);
  EXPECT_GT(run.base["us"].get<double>(), 0);
  EXPECT_GE(store.comparisons(run.id).size(), 1U);
  EXPECT_GT(result["base_times"]["large_us"].get<double>(), 0);
  EXPECT_GT(result["champion_times"]["large_us"].get<double>(), 0);
}

// Of its drafts, eight and one next to the best of these, a trial is the one that read fastest; it is verified and
// measured like any other, and no config is proposed twice.
TEST(Evolution, ATrialIsTheFastestOfItsDrafts) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  evolve::RunOptions options = tiny_run(4);
  options.strategy.drafts = evolve::kDraftsARound + 1;
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  const std::vector<store::TrialRecord> trials = store.trials(evolution.run_id());
  ASSERT_EQ(trials.size(), 4U);
  EXPECT_TRUE(trials[0].drafts.empty()) << "the default needs no other";
  std::set<std::string> configs;
  std::size_t drafts = 0;
  for (const store::TrialRecord& t : trials) {
    if (t.drafts.empty()) {
      EXPECT_TRUE(configs.insert(t.config).second) << t.config;
      continue;
    }
    EXPECT_EQ(t.drafts.size(), 9U);
    double best = 0;
    double of_trial = -1;
    for (const store::DraftRecord& draft : t.drafts) {
      ++drafts;
      EXPECT_TRUE(configs.insert(draft.config).second) << draft.config;
      EXPECT_EQ(draft.ratio > 0, draft.reason.empty()) << draft.reason;
      best = std::max(best, draft.certain);
      if (draft.config == t.config) of_trial = draft.certain;
    }
    EXPECT_EQ(of_trial, best);
  }
  EXPECT_GE(drafts, 18U);
  EXPECT_EQ(result["drafts"], drafts);
}

// Timed inputs are normal; a finalist that is slow on others is none. Here every one counts as slow.
TEST(Evolution, AFinalistThatIsSlowWhereScoresAreLargeIsRefused) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  Options options = quick();
  options.most_slowdown = 0;
  evolve::Evolution evolution(store, builder(), cpu_facts(), tiny_run(3), options, nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  EXPECT_EQ(result["outcome"], "no_variant");
  EXPECT_THAT(result["summary"].get<std::string>(), ::testing::HasSubstr("slow where scores are large"));
}

// What is stored is what the next generation rests on: the diagnosis of the parent is in the words of the mutation.
TEST(Evolution, MutationsNameTheStoredDiagnosisOfTheirParent) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  evolve::RunOptions options = tiny_run(16);
  options.strategy.kind = evolve::StrategyKind::single;
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  EXPECT_TRUE(result["profile"]["champion"].contains("bound"));
  EXPECT_TRUE(result["profile"]["base"].contains("bound"));
  const std::vector<store::TrialRecord> trials = store.trials(evolution.run_id());
  int named = 0;
  for (const store::TrialRecord& t : trials) {
    if (t.operation != "mutate" || t.parents.empty() || t.generation == 0) continue;
    const Bound bound = profile::bound_of(trials[static_cast<std::size_t>(t.parents[0])].diagnosis);
    const std::string words = "(bound by " + std::string(to_string(bound)) + ")";
    EXPECT_EQ(t.why.find(words) != std::string::npos, bound != Bound::unknown) << t.why;
    ++named;
  }
  EXPECT_GT(named, 0);
}

// Stopped after any trial, a run goes on where it was, makes the same proposals and repeats none.
TEST(Evolution, ResumesWhereItStopped) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  std::int64_t id = 0;
  evolve::RunOptions options = tiny_run(6);
  options.strategy.drafts = evolve::kDraftsARound + 2;
  {
    Quiet observer;
    observer.on_trial = [](const store::TrialRecord& t) {
      if (t.number == 4) throw Error(ErrorCode::interrupted, "as if by Ctrl-C");
    };
    evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
    id = evolution.run_id();
    EXPECT_THROW(evolution.run(), Error);
    EXPECT_EQ(store.find_run(id)->state, store::RunState::interrupted);
    EXPECT_EQ(store.trials(id).size(), 5U);  // the last generation lacks one
  }
  const std::vector<store::TrialRecord> before = store.trials(id);
  Quiet observer;
  int judged = 0;
  observer.on_trial = [&](const store::TrialRecord&) { ++judged; };
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, id);
  evolution.run();
  EXPECT_EQ(judged, 1);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(store.trials(id)[i].diagnosis, before[i].diagnosis);
  const std::vector<store::TrialRecord> after = store.trials(id);
  ASSERT_EQ(after.size(), 6U);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].id, before[i].id);
  EXPECT_EQ(after[5].generation, 1);
  std::set<std::string> configs;
  for (const store::TrialRecord& t : after) {
    if (t.drafts.empty()) configs.insert(t.config);
    for (const store::DraftRecord& draft : t.drafts)
      EXPECT_TRUE(configs.insert(draft.config).second) << "looked at before: " << draft.config;
  }
}

TEST(Evolution, RefusesImpossibleRuns) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  testing_support::expect_error(ErrorCode::usage, "--trials 0", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), tiny_run(0), quick(), nullptr, observer, std::nullopt);
  });
  evolve::RunOptions wide = tiny_run(5);
  wide.workload = parse_workload("b1h1l8d1024:fp32");
  testing_support::expect_error(ErrorCode::unsupported, "head dim 1024", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), wide, quick(), nullptr, observer, std::nullopt);
  });
  evolve::RunOptions gpu = tiny_run(5);
  gpu.families = {"fwd_sm80"};
  testing_support::expect_error(ErrorCode::unsupported, "NVIDIA", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), gpu, quick(), nullptr, observer, std::nullopt);
  });
  EXPECT_TRUE(store.runs().empty()) << "a run that cannot be must leave nothing";
}

TEST(Evolution, StopsAtItsBudget) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  evolve::RunOptions options = tiny_run(1000);
  options.budget_s = 0.01;
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
  evolution.run();
  EXPECT_LE(store.trials(evolution.run_id()).size(), 3U);
  EXPECT_THAT(observer.messages, ::testing::Contains(::testing::HasSubstr("budget")));
}

}  // namespace
}  // namespace heed::trial
