// heed bench, heed replay
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/bench_evidence.hpp"
#include "cli/command.hpp"
#include "cli/stored_trial.hpp"
#include "compile/embedded.hpp"
#include "evolve/run.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/outcome.hpp"
#include "report/run_report.hpp"
#include "report/table.hpp"
#include "trial/trial_runner.hpp"
#include "variant/renames.hpp"

namespace heed::cli {
namespace {

struct BenchOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  std::vector<std::string> variants;
  std::string against;
  std::string evidence;
};

nlohmann::json bench_row(const trial::TrialRunner& trial_runner, const Variant& variant, const trial::Outcome& outcome,
                         const trial::Absolute& times, double large_us, const measure::Floor& floor) {
  const double us = times.warm_us;
  const double flops = trial_runner.workload().flops();
  return {{"variant", variant.id()},
          {"config", describe(variant)},
          {"verdict", to_string(outcome.verdict)},
          {"reason", outcome.reason},
          {"warm_us", us},
          {"cold_us", times.cold_us},
          {"large_us", large_us},
          {"eager_us", times.eager_us},
          {"eager_synchronised_us", times.eager_synchronised_us},
          {"dependent_us", times.dependent_us},
          {"tflops", us > 0 ? flops / us * 1e-6 : 0},
          {"gbytes_per_s", us > 0 ? trial_runner.workload().bytes() / us * 1e-3 : 0},
          {"peak_share", us > 0 ? flops / (us * 1e-6) / trial_runner.peak_flops() : 0},
          {"floor", record::to_json(floor)},
          {"floor_share", us > 0 ? floor.us() / us : 0},
          {"ratio", record::to_json(outcome.pair.ratio)},
          {"error", record::to_json(outcome.error)},
          {"clocks", {{"before", record::to_json(outcome.before)}, {"after", record::to_json(outcome.after)}}},
          {"samples", record::samples_json(outcome.pair)},
          {"resources", outcome.artifact ? record::to_json(outcome.artifact->resources) : nlohmann::json()}};
}

int bench(const BenchOptions& o) {
  const DeviceFacts device = o.machine.choose();
  const nlohmann::json comparisons =
      o.evidence.empty() ? nlohmann::json() : comparisons_in(o.evidence, record::to_json(device), sources());
  const auto builder = o.machine.builder();
  const std::optional<QkvTensors> tensors = o.workload.tensors();
  const Workload workload = o.workload.workload(tensors);
  trial::TrialRunner trial_runner(workload, device, *builder, tensors ? &*tensors : nullptr, o.machine.trial_options());
  const std::string family(default_family(workload, device).name());
  const auto variant_named = [&](const std::string& name) {
    return parse_variant(name == kAutomatic ? family : name, workload, device);
  };
  const std::string against = o.against.empty() || o.against == kAutomatic ? family : o.against;
  const Variant base_variant = variant_named(against);
  std::vector<Variant> variants;  // all of them read before anything is measured
  for (const std::string& name : o.variants) variants.push_back(variant_named(name));
  if (variants.empty()) variants.push_back(variant_named(family));

  remark(o.machine.json, fmt::format("{} on {}; base {}", to_string(workload), device.name, against));
  const trial::Built base = trial_runner.build(base_variant);
  trial_runner.set_base(base);
  remark(o.machine.json, "timing the base against itself");
  const trial::TrialRunner::SelfComparison& self = trial_runner.base_against_itself();
  report::Table table({"variant", "us", "spread", "cold us", "large us", "eager us", "TFLOP/s", "of peak", "of floor",
                       "max|error|", "ratio", "95% interval"});
  nlohmann::json rows = nlohmann::json::array();
  int failures = 0;
  std::string dependent;
  // One that cannot be is a row; where none can, that is the answer.
  if (std::all_of(variants.begin(), variants.end(), [&](const Variant& v) { return trial_runner.refuses(v); }))
    (void)trial_runner.build(variants.front());
  std::vector<std::future<jit::BuildOutcome>> builds;
  for (const Variant& variant : variants)
    builds.push_back(trial_runner.refuses(variant) ? std::future<jit::BuildOutcome>()
                                                   : builder->start(trial_runner.request_for(variant)));
  // On a CPU compilers would disturb what is measured.
  if (device.kind == DeviceKind::cpu)
    for (auto& build : builds)
      if (build.valid()) build.wait();
  const auto bench_one = [&](std::size_t i) {
    check_interrupt();
    const Variant& variant = variants[i];
    if (const auto reason = trial_runner.refuses(variant)) {
      ++failures;
      remark(o.machine.json, fmt::format("{}: {}: {}", variant.id(), to_string(Verdict::illegal), *reason));
      rows.push_back({{"variant", variant.id()}, {"verdict", to_string(Verdict::illegal)}, {"reason", *reason}});
      return;
    }
    const jit::BuildOutcome build = builds[i].get();
    measure::PairOptions pair = o.machine.trial_options().pair;
    pair.least_quads = 10;
    pair.target_uncertainty = 0.002;
    remark(o.machine.json, fmt::format("verifying and timing {}", variant.id()));
    const trial::Outcome outcome = trial_runner.judge(variant, build, fresh_seed() >> 1, pair);
    if (!outcome.ok()) {
      ++failures;
      remark(o.machine.json, fmt::format("{}: {} {} ({}): {}", variant.id(), to_string(outcome.verdict),
                                         to_string(outcome.finding), outcome.check, outcome.reason));
      rows.push_back({{"variant", variant.id()}, {"verdict", to_string(outcome.verdict)}, {"reason", outcome.reason}});
      return;
    }
    const trial::Built built{variant, *build.artifact};
    const trial::Absolute times = trial_runner.measure_absolute(built);
    const double large_us = trial_runner.measure_large(built);
    const int threads = static_cast<int>(variant.plan(workload, device).threads);
    const measure::Floor floor = trial_runner.floor(threads);
    const nlohmann::json row = bench_row(trial_runner, variant, outcome, times, large_us, floor);
    if (variants.size() > 1)
      remark(o.machine.json,
             fmt::format("{}/{} {}: {:.2f} us", i + 1, variants.size(), describe(variant), times.warm_us));
    rows.push_back(row);
    if (times.dependent_us > 0)
      dependent +=
          fmt::format("dependent launch: {} takes {:.2f} us as a programmatic dependent of the launch before it\n",
                      variant.id(), times.dependent_us);
    table.add({variant.id(), fmt::format("{:.2f}", times.warm_us),
               fmt::format("{:.1f}%", 100 * measure::spread(outcome.pair.trial_us)),
               fmt::format("{:.2f}", times.cold_us), fmt::format("{:.2f}", large_us),
               times.eager_us > 0 ? fmt::format("{:.2f}", times.eager_us) : "-",
               fmt::format("{:.3g}", row["tflops"].get<double>()),
               fmt::format("{:.1f}%", 100 * row["peak_share"].get<double>()),
               fmt::format("{:.0f}%", 100 * row["floor_share"].get<double>()),
               fmt::format("{:.1e}", outcome.error.max_abs), fmt::format("{:.3f}", outcome.pair.ratio.value),
               fmt::format("[{:.4f}, {:.4f}]", outcome.pair.ratio.low, outcome.pair.ratio.high)});
  };
  // What was measured before an interruption is not lost.
  std::optional<Error> interruption;
  for (std::size_t i = 0; i < variants.size() && !interruption; ++i) {
    try {
      bench_one(i);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::interrupted) throw;
      interruption = error;
    }
  }
  const nlohmann::json all = {{"workload", to_string(workload)},
                              {"device", record::to_json(device)},
                              {"base", base.variant.id()},
                              {"base_us", self.pair.base_median_us},
                              {"self_ratio", record::to_json(self.pair.ratio)},
                              {"self_spread", self.spread},
                              {"complete", !interruption},
                              {"source_digest", compile::source_digest()},
                              {"referee", kReferee},
                              {"rows", rows}};
  if (!o.evidence.empty()) write_comparison(o.evidence, comparisons, all);
  if (o.machine.json) {
    print(json_text(all, 1) + "\n");
  } else {
    if (!table.empty()) print("\n" + table.str() + dependent);
    print(fmt::format(
        "\nratio: base time / variant time. The base, {}, takes {:.2f} us; against itself: within {:.4f} of 1\n",
        base.variant.id(), self.pair.base_median_us, self.spread));
  }
  if (interruption) throw Error(*interruption);
  return failures == 0 ? 0 : 1;
}

constexpr int kReplayProcesses = 3;
constexpr double kProcessSpread =
    0.005;  // three times what fresh processes of the same binaries differ on an H200 (0.16%)

struct ReplayOptions {
  MachineOptions machine;
  StoreOptions store;
  std::string trial;
};

int replay(const ReplayOptions& o) {
  const std::int64_t id = trial_number(o.trial);
  const auto store = o.store.open(store::Access::read_only);
  const StoredTrial stored = find_trial(*store, id);
  const store::TrialRecord* const then = &stored.trial;
  const store::RunRecord& run = stored.run;
  const DeviceFacts device =
      choose_device(run.device_kind == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu, "the trial is of one");
  const record::RunOptions options = record::options_from_json(run.options);
  const auto builder = o.machine.builder();
  trial::TrialRunner trial_runner(options.workload, device, *builder, nullptr, o.machine.trial_options());
  const bool same_device =
      run.device.value("name", std::string()) == device.name && run.device.value("arch", std::string()) == device.arch;
  const bool same_sources = then->source_digest == compile::source_digest();
  if (const int referee = report::referee_of(run); referee != kReferee)
    remark(o.machine.json, fmt::format("note: stored by referee {}, replayed by {}", referee, kReferee));
  if (!same_device)
    remark(o.machine.json,
           fmt::format("note: stored on {}, replayed on {}", run.device.value("name", std::string()), device.name));
  if (!same_sources)
    remark(o.machine.json, fmt::format("note: stored with kernel sources {}, replayed with {}", then->source_digest,
                                       compile::source_digest()));

  const Variant variant = variant_of(stored, device);
  remark(o.machine.json,
         fmt::format("trial {} of run {}: {}\nbuilding base and variant anew", then->number, then->run, variant.id()));
  const Variant base = parse_variant(current_family_name(options.families.front()), options.workload, device);
  trial_runner.set_base(trial_runner.build(base, /*fresh=*/true));
  const jit::BuildOutcome build = builder->build(trial_runner.request_for(variant), /*fresh=*/true);
  trial::Outcome now;
  measure::Ratio span;
  for (int process = 0; process < kReplayProcesses; ++process) {
    trial::Outcome one =
        trial_runner.judge(variant, build, fresh_seed() >> 1, trial_runner.options().final_pair, /*fresh=*/true);
    const measure::Ratio& r = one.pair.ratio;
    span = process == 0 ? r : measure::Ratio{span.value, std::min(span.low, r.low), std::max(span.high, r.high)};
    const bool ok = one.ok();
    now = std::move(one);
    if (!ok) break;
  }
  span.value = now.pair.ratio.value;
  now.pair.ratio = span;

  // The stored interval holds when the two meet, each widened by what the base shows against itself and at least by
  // what moves a ratio from process to process.
  const double slack = std::max(trial_runner.base_against_itself().spread, kProcessSpread);
  const bool same_code = build.artifact && build.artifact->machine_code == then->machine_code;
  bool holds = now.verdict == then->verdict;
  if (holds && now.ok())
    holds = span.low * (1 - slack) <= then->ratio_high * (1 + slack) &&
            span.high * (1 + slack) >= then->ratio_low * (1 - slack);
  if (o.machine.json) {
    print(json_text(nlohmann::json{{"trial", report::trial_json(*then)},
                                   {"now",
                                    {{"verdict", to_string(now.verdict)},
                                     {"finding", to_string(now.finding)},
                                     {"reason", now.reason},
                                     {"ratio", record::to_json(now.pair.ratio)},
                                     {"base_us", now.pair.base_median_us},
                                     {"trial_us", now.pair.trial_median_us},
                                     {"error", record::to_json(now.error)},
                                     {"samples", record::samples_json(now.pair)}}},
                                   {"slack", slack},
                                   {"same_machine_code", same_code},
                                   {"same_device", same_device},
                                   {"same_sources", same_sources},
                                   {"holds", holds}},
                    1) +
          "\n");
    return holds ? 0 : 1;
  }
  report::Table table({"", "verdict", "base us", "trial us", "ratio", "95% interval", "max|error|"});
  table.align_left(1);
  const auto interval = [](double low, double high) { return fmt::format("[{:.4f}, {:.4f}]", low, high); };
  table.add({"stored", std::string(to_string(then->verdict)), fmt::format("{:.2f}", then->base_us),
             fmt::format("{:.2f}", then->trial_us), fmt::format("{:.3f}", then->ratio),
             interval(then->ratio_low, then->ratio_high), fmt::format("{:.1e}", then->max_abs)});
  table.add({"now", std::string(to_string(now.verdict)), fmt::format("{:.2f}", now.pair.base_median_us),
             fmt::format("{:.2f}", now.pair.trial_median_us), fmt::format("{:.3f}", now.pair.ratio.value),
             interval(now.pair.ratio.low, now.pair.ratio.high), fmt::format("{:.1e}", now.error.max_abs)});
  print("\n" + table.str());
  if (!now.ok()) print(fmt::format("{} ({}): {}\n", now.check, to_string(now.finding), now.reason));
  print(fmt::format("\n{}: the machine code is {}; intervals are widened by {:.2f}% on each side.\n",
                    holds ? "The stored result holds" : "The stored result does NOT hold",
                    same_code ? "the same" : "different", 100 * slack));
  return holds ? 0 : 1;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Verify variants and time them against a base");
  command->add_option("variants", o->variants,
                      "auto, family or family:knob=value,... [auto: the device's default family]");
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  command->add_option(
      "--against", o->against,
      "The base: auto, family or family:knob=value,... [auto: the default family with its default knobs]");
  command->add_option("--evidence", o->evidence,
                      "Write the comparison as evidence to this JSON file, beside those of the same device and sources "
                      "that are in it");
  command->footer(
      "Examples:\n"
      "  heed bench --shape b1h8l512d64:fp32 --device cpu\n"
      "  heed bench fwd_sm80:kv_groups=2 fwd_sm80:block_n=64 --shape b1h8l512d64");
  command->callback([o, &exit_code] { exit_code = bench(*o); });
}

void add_replay(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<ReplayOptions>();
  CLI::App* command =
      app.add_subcommand("replay", "Rebuild, verify and measure a stored trial again: does its interval hold?");
  command->add_option("trial", o->trial, "Id of the trial, 17 or t17, as heed evolve and heed show print it")
      ->required();
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->footer("Exit code 0 when the stored result holds, 1 when it does not.\nExample:\n  heed replay 17");
  command->callback([o, &exit_code] { exit_code = replay(*o); });
}

}  // namespace heed::cli
