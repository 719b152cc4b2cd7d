// heed verify --sanitize, --emulate and --timed
#include <fmt/format.h>

#include <memory>

#include "base/random.hpp"
#include "base/text.hpp"
#include "cli/verify.hpp"
#include "emulator/emulate.hpp"
#include "json/text.hpp"
#include "process/process.hpp"
#include "process/sanitizer.hpp"
#include "record/emulation.hpp"
#include "record/json.hpp"

namespace heed::cli {
namespace {

// Both look at variants that are named, at one workload.
void expect_one_workload(const VerifyOptions& o, std::string_view option) {
  if (!o.cases.empty() || o.random_workloads > 0 || o.random_configs > 0 || o.workload.has_tensors() || o.unfused_bar ||
      !o.evidence.empty())
    throw Error(ErrorCode::usage,
                fmt::format("{} looks at the variants that are named at one --shape; leave out --cases, "
                            "--random-workloads, --random-configs, --unfused-bar, --evidence and tensors",
                            option));
}

// One variant to emulate, with the GPU that it is for.
struct Emulated {
  Variant variant;
  Workload workload;
  DeviceFacts device;
};

Emulated emulated(const VerifyOptions& o, const std::string& name, const std::map<std::string, StoredTrial>& trials) {
  if (const auto trial = trials.find(name); trial != trials.end()) {
    const StoredTrial& stored = trial->second;
    if (!o.workload.shape.empty())
      throw Error(ErrorCode::usage, fmt::format("{} has a workload of its own; leave out --shape", name), name);
    const DeviceFacts device = o.arch.empty() ? device_of(stored) : device_named(o.arch);
    return {variant_of(stored, device), stored.workload, device};
  }
  const DeviceFacts device = !o.arch.empty() ? device_named(o.arch) : probe_cuda().facts.value_or(gpu_limits("sm_90a"));
  const Workload workload = o.workload.workload(std::nullopt);
  return {admitted(name, workload, device), workload, device};
}

}  // namespace

std::map<std::string, StoredTrial> trials_of(const VerifyOptions& o) {
  std::map<std::string, StoredTrial> trials;
  std::unique_ptr<store::Store> store;
  for (const std::string& name : o.variants)
    if (is_trial(name)) {
      if (!store) store = o.store.open(store::Access::read_only);
      trials.emplace(name, find_trial(*store, trial_number(name)));
    }
  return trials;
}

int verify_sanitized(const VerifyOptions& o) {
  expect_one_workload(o, "--sanitize");
  const DeviceFacts device = o.machine.choose();
  if (device.kind != DeviceKind::cuda)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("compute-sanitizer looks at kernels on an NVIDIA GPU; {} is none, and its kernels run in a process "
                    "without writable memory but their own",
                    device.name),
        device.name);
  std::vector<std::string> names = o.variants;
  if (names.empty()) names.emplace_back(kAutomatic);
  nlohmann::json results = nlohmann::json::array();
  int failures = 0;
  for (const std::string& name : names) {
    std::vector<std::string> arguments = {
        self_executable(), "verify", name, "--device", "cuda", "--launch-limit", std::to_string(o.sanitize_limit_s)};
    const auto add = [&](const char* option, const std::string& value) {
      if (!value.empty()) arguments.insert(arguments.end(), {option, value});
    };
    add("--shape", o.workload.shape);
    add("--dtype", o.workload.dtype);
    add("--causal", o.workload.causal);
    add("--window", o.workload.window);
    add("--layout", o.workload.layout);
    add("--quantised", o.workload.quantised);
    add("--features", o.workload.features);
    add("--qkv", o.workload.qkv);
    add("--q", o.workload.q);
    add("--k", o.workload.k);
    add("--v", o.workload.v);
    if (o.workload.scale) add("--scale", fmt::format("{}", *o.workload.scale));
    add("--cache", o.machine.cache);
    add("--db", o.store.path);
    if (o.seed != 0) add("--seed", std::to_string(o.seed));
    add("--spare-features", join(o.spare, ","));
    nlohmann::json tools = nlohmann::json::array();
    for (const Sanitized& one : sanitize(arguments, o.sanitize_limit_s)) {
      if (!one.passed) ++failures;
      remark(o.machine.json,
             fmt::format("{:<8} {:<10} {}  {}", one.passed ? "passed" : "FAILED", one.tool, name, one.reason));
      tools.push_back({{"tool", one.tool}, {"passed", one.passed}, {"reason", one.reason}});
    }
    results.push_back({{"variant", name}, {"tools", tools}});
  }
  if (o.machine.json)
    print(json_text(nlohmann::json{{"device", record::to_json(device)}, {"results", results}, {"failures", failures}},
                    1) +
          "\n");
  return failures == 0 ? 0 : 1;
}

int verify_emulated(const VerifyOptions& o) {
  expect_one_workload(o, "--emulate");
  const auto builder = o.machine.builder();
  const std::map<std::string, StoredTrial> trials = trials_of(o);
  std::vector<std::string> names = o.variants;
  if (names.empty()) names.emplace_back(kAutomatic);
  nlohmann::json results = nlohmann::json::array();
  int failures = 0;
  for (const std::string& name : names) {
    const Emulated one = emulated(o, name, trials);
    const emulator::Report report =
        emulator::emulate(one.variant, one.workload, one.device, *builder,
                          {.seed = o.seed != 0 ? o.seed : fresh_seed() >> 1,
                           .launch_limit_s = std::max(o.machine.launch_limit_s, emulator::Options{}.launch_limit_s),
                           .on_launch = [&](const std::string& launch) {
                             if (o.verbose) remark(o.machine.json, fmt::format("           {}", launch));
                           }});
    if (report.outcome != emulator::Outcome::passed) ++failures;
    remark(o.machine.json,
           fmt::format("{:<8} {:<58} {}  {} launches of {} small workloads, {:.1f} s to build, {:.1f} s to run",
                       to_string(report.outcome), to_string(one.workload), one.variant.id(), report.launches,
                       report.workloads.size(), report.build_ms / 1e3, report.run_ms / 1e3));
    if (report.outcome == emulator::Outcome::failed)
      remark(o.machine.json,
             fmt::format("           {}: {}: {}", report.check, to_string(report.verdict), report.reason));
    else if (report.outcome == emulator::Outcome::not_run)
      remark(o.machine.json, fmt::format("           {}", report.reason));
    results.push_back(record::to_json(report));
    results.back().update({{"workload", to_string(one.workload)},
                           {"variant", one.variant.id()},
                           {"config", describe(one.variant)},
                           {"arch", one.device.arch}});
  }
  if (o.machine.json) print(json_text(nlohmann::json{{"results", results}, {"failures", failures}}, 1) + "\n");
  return failures == 0 ? 0 : 1;
}

void verify_timed(trial::TrialRunner& trial_runner, const trial::Built& built, std::uint64_t seed,
                  verify::GateReport& report) {
  const measure::PairOptions a_moment{
      .least_quads = 1, .most_quads = 2, .target_uncertainty = 1, .hopeless_below = 0, .limit_s = 0.1};
  trial_runner.set_base(built);
  const trial::Outcome outcome = trial_runner.measure_again(built, seed, a_moment);
  if (outcome.ok()) return;
  report.verdict = outcome.verdict;
  report.finding = outcome.finding;
  report.check = "timed beside itself";
  report.reason = outcome.reason;
}

}  // namespace heed::cli
