// heed verify
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/files.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "cli/cases.hpp"
#include "cli/command.hpp"
#include "cli/stored_trial.hpp"
#include "cli/unfused_bar.hpp"
#include "cli/verify.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"
#include "trial/trial_runner.hpp"
#include "verify/random_workload.hpp"
#include "workload/features.hpp"

namespace heed::cli {
namespace {

struct Check {
  Case input;
  Variant variant;
  std::future<jit::BuildOutcome> build;
};

// Legal variants drawn at random, for a wider look at a family than its default.
std::vector<Variant> random_variants(const Family& family, const Workload& workload, const DeviceFacts& device,
                                     int count, std::uint64_t seed) {
  std::vector<Variant> variants;
  Random random(seed);
  for (int attempt = 0; attempt < 10000 * count && static_cast<int>(variants.size()) < count; ++attempt) {
    Config values;
    for (const Knob& knob : variant_knobs(family)) values.push_back(knob.values[random.below(knob.values.size())]);
    Variant variant = canonical(variant_of(family, values, workload), workload);
    if (!variant.is_illegal(workload, device)) variants.push_back(std::move(variant));
  }
  return variants;
}

std::string names_of_features() {
  std::vector<std::string> names = {"all"};
  for (const FeatureName& f : kFeatureNames) names.emplace_back(f.name);
  return join(names, ", ");
}

// The workload that a program is built for, with the features to spare that are asked for and the family has.
Workload built_for(const Workload& workload, const Family& family, const std::vector<std::string>& spare) {
  Features added;
  for (const std::string& asked : spare) {
    const bool is_known = asked == "all" || std::any_of(std::begin(kFeatureNames), std::end(kFeatureNames),
                                                        [&](const FeatureName& f) { return f.name == asked; });
    if (!is_known)
      throw Error(ErrorCode::usage,
                  fmt::format("--spare-features has no \"{}\"; it takes some of {}", asked, names_of_features()),
                  asked);
    for (const FeatureName& f : kFeatureNames)
      if (asked == "all" || f.name == asked) added.*f.member = added.*f.member || family.features().*f.member;
  }
  return with_features(workload, added);
}

// The check whose errors come nearest to what is allowed.
std::string worst_text(const verify::GateReport& report) {
  const verify::CheckResult* worst = nullptr;
  const auto share = [](const verify::CheckResult& c) {
    return std::max(c.error.max_abs / c.allowed.max_abs, c.error.rel_rms / c.allowed.rel_rms);
  };
  for (const verify::CheckResult& c : report.checks)
    if (c.has_errors && c.required && (worst == nullptr || share(c) > share(*worst))) worst = &c;
  if (worst == nullptr) return "no output was compared";
  return fmt::format("max|error| {:.1e}, relative RMS {:.1e}; nearest to its limit: {}, {:.1e} of {:.1e}",
                     report.error.max_abs, report.error.rel_rms, worst->name, worst->error.max_abs,
                     worst->allowed.max_abs);
}

// What quantising the inputs cost, beside what the kernel is off by; "" where they are not quantised.
std::string total_text(const verify::CheckResult& c) {
  if (!c.total) return {};
  return fmt::format(
      "total error against the values before quantisation: rel. RMS {:.1e}, rel. L1 {:.1e}, 1 - cosine "
      "{:.1e}, worst row {:.1e}",
      c.total->rel_rms, c.total->rel_l1, 1 - c.total->cosine, c.total->worst_row);
}

// A line a check: its errors, what is allowed, and what the unfused computation is off by.
void print_checks(const Workload& workload, const verify::GateReport& report, bool as_json) {
  remark(as_json, fmt::format("           {:<58} {:>9} {:>9} {:>9}  {:>9} {:>9} {:>9}  {:>9} {:>9}", "check",
                              "max|error|", "allowed", "unfused", "rel. RMS", "allowed", "unfused", "LSE", "allowed"));
  for (const verify::CheckResult& c : report.checks) {
    std::string line = fmt::format("           {:<58}", c.name);
    if (c.has_errors)
      line += fmt::format(" {:>10.1e} {:>9.1e} {:>9.1e}  {:>9.1e} {:>9.1e} {:>9.1e}  {:>9.1e} {:>9.1e}",
                          c.error.max_abs, c.allowed.max_abs, c.unfused.max_abs, c.error.rel_rms, c.allowed.rel_rms,
                          c.unfused.rel_rms, c.error.lse, c.allowed.lse);
    if (const auto times = verify::against_unfused(workload, c))
      line += fmt::format("  {:.2f}x and {:.2f}x of unfused", times->max_abs, times->rel_rms);
    if (c.allowed.unresolved > 0) line += fmt::format("  {} rows beyond what fp32 scores tell", c.allowed.unresolved);
    if (!c.passed) line += c.required ? "  failed" : fmt::format("  not promised, does not hold: {}", c.text);
    if (c.passed && !c.required) line += "  not promised, holds";
    remark(as_json, line);
    if (c.total) remark(as_json, fmt::format("           {:<58} {}", "", total_text(c)));
  }
}

int run(const VerifyOptions& o) {
  if (o.sanitize) return verify_sanitized(o);
  if (o.emulate) return verify_emulated(o);
  const DeviceFacts device = o.machine.choose();
  const auto builder = o.machine.builder();
  const std::optional<QkvTensors> tensors = o.workload.tensors();
  const bool many = !o.cases.empty() || o.random_workloads > 0;
  if (many && (!o.workload.shape.empty() || tensors))
    throw Error(ErrorCode::usage, "give either one workload, or --cases and --random-workloads, not both",
                o.workload.shape);
  const std::uint64_t seed = o.seed != 0 ? o.seed : fresh_seed() >> 1;
  std::vector<Case> cases;
  if (!o.cases.empty()) cases = read_cases(o.cases);
  Random random(seed);
  const std::vector<Dtype> dtypes = {Dtype::fp16, Dtype::bf16, Dtype::fp32};
  for (int i = 0; i < o.random_workloads; ++i) cases.push_back({random_workload(random, dtypes), "", nullptr});
  const std::map<std::string, StoredTrial> trials = trials_of(o);
  if (!many && o.workload.shape.empty() && !tensors && !trials.empty())
    cases.push_back({trials.begin()->second.workload, "", nullptr});
  else if (!many)
    cases.push_back({o.workload.workload(tensors), tensors ? o.workload.tensor_paths().front() : std::string(),
                     tensors ? std::make_shared<QkvTensors>(*tensors) : nullptr});

  // All builds are queued first; verification of the first overlaps them.
  std::vector<Check> jobs;
  int refused = 0;
  for (const Case& input : cases) {
    const Workload& workload = input.workload;
    std::vector<std::string> names = o.variants;
    if (names.empty())
      for (const Family* family : families())
        if (family->device() == device.kind) names.emplace_back(family->name());
    for (const std::string& asked : names) {
      // Where no family takes one of many workloads, that one is passed over as with a family that refuses it.
      std::string name = asked;
      if (asked == kAutomatic) try {
          name = default_family(workload, device).name();
        } catch (const Error& error) {
          if (!many || error.code() != ErrorCode::unsupported) throw;
          ++refused;
          remark(o.machine.json, fmt::format("-        {:<58} {}", to_string(workload), error.what()));
          continue;
        }
      const auto trial = trials.find(name);
      if (trial != trials.end()) name = trial->second.trial.config;
      const Family& family = find_family(name.substr(0, name.find(':')));
      if (const auto reason = family.refuses(workload, device); reason && many) {
        ++refused;
        remark(o.machine.json, fmt::format("-        {:<58} {}: {}", to_string(workload), family.name(), *reason));
        continue;
      }
      std::vector<Variant> variants = {parse_variant(name, built_for(workload, family, o.spare), device)};
      if (trial != trials.end()) variants.front().overlay = variant_of(trial->second, device).overlay;
      for (Variant& variant : random_variants(family, workload, device, o.random_configs, substream(seed, jobs.size())))
        variants.push_back(std::move(variant));
      for (Variant& variant : variants) {
        if (const auto reason = variant.is_illegal(workload, device))
          throw Error(ErrorCode::unsupported,
                      fmt::format("{} is illegal for {} on {}: {}", describe(variant), to_string(workload), device.name,
                                  *reason),
                      name);
        trial::TrialRunner trial_runner(workload, device, *builder, nullptr, o.machine.trial_options());
        auto build = builder->start(trial_runner.request_for(variant));
        jobs.push_back({input, std::move(variant), std::move(build)});
      }
    }
  }

  nlohmann::json results = nlohmann::json::array();
  int failures = 0;
  UnfusedBar bar;
  std::unique_ptr<trial::TrialRunner> trial_runner;  // kept while the workload and its tensors stay the same
  const QkvTensors* trial_tensors = nullptr;
  for (Check& job : jobs) {
    check_interrupt();
    const Workload& workload = job.input.workload;
    if (!trial_runner || trial_runner->workload() != workload || trial_tensors != job.input.tensors.get())
      trial_runner = std::make_unique<trial::TrialRunner>(workload, device, *builder, job.input.tensors.get(),
                                                          o.machine.trial_options(), trial_runner.get());
    trial_tensors = job.input.tensors.get();
    const jit::BuildOutcome build = job.build.get();
    check_interrupt();
    verify::GateReport report;
    if (!build.artifact) {
      report.verdict = Verdict::build_failed;
      report.reason = build.timed_out ? "the compiler did not end in time" : trim(build.log);
    } else if (!build.artifact->violation.empty()) {
      report.verdict = Verdict::cheating;
      report.finding = Finding::breaks_contract;
      report.reason = build.artifact->violation;
    } else {
      report = trial_runner->verify({job.variant, *build.artifact}, substream(seed, results.size()),
                                    [&](const std::string& check) {
                                      if (o.verbose) remark(o.machine.json, fmt::format("           {}", check));
                                    });
    }
    if (o.timed && report.passed())
      verify_timed(*trial_runner, {job.variant, *build.artifact}, substream(seed, results.size()), report);
    if (!report.passed()) ++failures;
    const std::string inputs = many && job.input.tensors ? fmt::format(" of {}", job.input.file) : std::string();
    remark(o.machine.json,
           fmt::format("{:<8} {:<58} {}  {}", to_string(report.verdict),
                       fmt::format("{}{}", to_string(workload), inputs), job.variant.id(), worst_text(report)));
    if (!many || o.verbose) print_checks(workload, report, o.machine.json);
    bar.add(workload, job.input.file, job.variant.family->name(), report);
    if (!report.passed())
      remark(o.machine.json, fmt::format("           {} ({}): {}", report.check, to_string(report.finding),
                                         report.reason.substr(0, 600)));
    nlohmann::json checks = nlohmann::json::array();
    for (const verify::CheckResult& c : report.checks) {
      checks.push_back(record::to_json(c));
      if (const auto times = verify::against_unfused(workload, c))
        checks.back()["times_unfused"] = {{"max_abs", times->max_abs}, {"rel_rms", times->rel_rms}};
    }
    results.push_back({{"workload", to_string(workload)},
                       {"variant", job.variant.id()},
                       {"config", describe(job.variant)},
                       {"verdict", to_string(report.verdict)},
                       {"finding", to_string(report.finding)},
                       {"reason", report.reason},
                       {"check", report.check},
                       {"error", record::to_json(report.error)},
                       {"resources", build.artifact ? record::to_json(build.artifact->resources) : nlohmann::json()},
                       {"checks", checks}});
    if (job.input.tensors) {
      results.back()["tensors"] = std::filesystem::path(job.input.file).filename().string();
      results.back()["tensors_digest"] = job.input.tensors->digest;
    }
  }
  remark(o.machine.json,
         fmt::format("{} of {} passed{}; inputs from seed {}", jobs.size() - static_cast<std::size_t>(failures),
                     jobs.size(), refused > 0 ? fmt::format(", {} refused by their family", refused) : "", seed));
  if (!bar.is_empty())
    remark(o.machine.json, bar.summary());
  else if (o.unfused_bar)
    remark(o.machine.json, "no inputs as models send them were compared: the bar is of fp16 and bf16, not quantised");
  const bool is_within = !o.unfused_bar || bar.is_within();
  if (!o.evidence.empty()) {
    nlohmann::json all = report::evidence_header("verify", record::to_json(device), sources());
    all.update({{"seed", seed},
                {"checked", jobs.size()},
                {"refused", refused},
                {"failures", failures},
                {"rows", bar.rows()},
                {"table", bar.table()}});
    write_file_atomically(o.evidence, json_text(all, 1) + "\n", ErrorCode::store);
  }
  if (o.machine.json)
    print(json_text(
              nlohmann::json{
                  {"seed", seed}, {"device", record::to_json(device)}, {"results", results}, {"failures", failures}},
              1) +
          "\n");
  return failures == 0 && is_within ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "Run the gate on variants: every input class, neighbouring shapes, canaries, repeated launches");
  command->add_option(
      "variants", o->variants,
      "auto, family or family:knob=value,...; or t17, trial 17 of the database [every family of the device "
      "with default knobs]");
  o->workload.add_to(*command);
  o->store.add_to(*command);
  o->machine.add_to(*command);
  command->add_option("--cases", o->cases,
                      "A file with one workload a line instead of --shape; qkv=FILE[:OPTIONS] takes tensors beside it");
  command
      ->add_option("--random-configs", o->random_configs,
                   "Also this many legal configs drawn at random, per workload and family")
      ->check(zero_or_above());
  command->add_option("--random-workloads", o->random_workloads, "This many workloads drawn at random")
      ->check(zero_or_above());
  command
      ->add_option("--spare-features", o->spare,
                   "Build programs with these features too, of which the launches make no use, as libheed runs them: "
                   "some of " +
                       names_of_features())
      ->delimiter(',');
  command->add_option("--seed", o->seed, "Seed of the inputs, random configs and random workloads [fresh]");
  command->add_flag(
      "--sanitize", o->sanitize,
      "Run the gate under compute-sanitizer's four tools instead: memcheck, racecheck, initcheck, synccheck; "
      "needs an NVIDIA GPU");
  command
      ->add_flag("--emulate", o->emulate,
                 "Launch the variants' sources on an emulated GPU instead, at small workloads with the dtype, head "
                 "dim, mask and features of --shape; needs a C++ compiler and no GPU")
      ->excludes("--sanitize");
  command->add_option("--arch", o->arch,
                      "With --emulate: the GPU architecture whose limits apply, e.g. sm_89 [this machine's GPU, else "
                      "sm_90a; of a trial its own]");
  command->add_option("--sanitize-limit", o->sanitize_limit_s, "Seconds that one tool may take for one variant")
      ->capture_default_str()
      ->check(above_zero());
  command->add_flag("--unfused-bar", o->unfused_bar,
                    fmt::format("Fail too where errors on inputs as models send them (peaked, attention_sink, own_key, "
                                "given tensors) are over {} (largest) or {} (relative RMS) times the unfused "
                                "computation's",
                                verify::kMostTimesMaxAbs, verify::kMostTimesRelRms));
  command->add_option("--evidence", o->evidence,
                      "Write errors on inputs as models send them as evidence to this JSON file");
  command
      ->add_flag("--timed", o->timed,
                 "Then time what passed beside itself for a moment, with the spot checks of a measurement")
      ->excludes("--sanitize")
      ->excludes("--emulate");
  command->add_flag("--verbose", o->verbose, "Name every check as it starts");
  command->footer(
      "Examples:\n"
      "  heed verify --shape b1h8l512d64\n"
      "  heed verify fwd_cpu:block_n=32,threads=1 --shape b1h8l100d80:fp32\n"
      "  heed verify --cases tests/cases/forward.txt --random-configs 3\n"
      "  heed verify fwd_sm90_split --random-workloads 1000 --seed 7 --timed\n"
      "  heed verify fwd_sm90_decode --shape b1h8l1k512d64 --spare-features all\n"
      "  heed verify fwd_cpu --cases tests/cases/minilm.txt --unfused-bar\n"
      "  heed verify t17 --sanitize\n"
      "  heed verify fwd_sm90_split --shape b1h8l512d64 --emulate");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
