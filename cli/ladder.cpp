// heed ladder
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "ladder/ladder.hpp"
#include "ladder/report.hpp"
#include "profile/collect.hpp"

namespace heed::cli {
namespace {

struct LadderOptions {
  MachineOptions machine;
  std::string shape = "b1h8l512d64";
  std::string steps;
  std::string evidence;
  std::string python = "python3";
  bool no_peers = false;
  bool no_profile = false;
};

// Shares of the time from a kernel's start to its end; empty where counters cannot be read.
ladder::Shares shares_of(const trial::Built& built, const Workload& workload, const DeviceFacts& device) {
  const LaunchPlan plan = built.variant.plan(workload, device);
  const profile::Reading reading = profile::collect(plan, built.artifact, workload, device, {});
  if (!reading.counters) return {};
  const profile::Counters& c = *reading.counters;
  ladder::Shares shares;
  if (c.tensor_percent && c.active_percent) shares.tensor_pipe = *c.tensor_percent / 100 * *c.active_percent / 100;
  if (c.dram_percent) shares.dram = *c.dram_percent / 100;
  return shares;
}

int run(const LadderOptions& o) {
  const Workload workload = parse_workload(o.shape);
  const std::vector<ladder::Step> steps = ladder::choose(ladder::steps(), o.steps);
  const DeviceFacts device = o.machine.choose();
  if (device.kind != DeviceKind::cuda)
    throw Error(ErrorCode::no_device,
                fmt::format("the ladder's steps are GPU kernels and need an NVIDIA GPU: {}",
                            o.machine.device == "cpu" ? "leave out --device cpu" : probe_cuda().reason));
  const std::filesystem::path path = o.evidence;  // a folder that cannot be made is better known before than after
  if (!path.parent_path().empty()) make_folder(path.parent_path(), ErrorCode::store);
  const auto builder = o.machine.builder();
  ladder::Options options;
  options.trial = o.machine.trial_options();
  options.peers = !o.no_peers;
  options.python = o.python;
  if (!o.no_profile) options.profiler = shares_of;
  remark(o.machine.json, fmt::format("{} on {}: {} steps", to_string(workload), device.name, steps.size()));
  const ladder::Result result =
      ladder::measure_steps(steps, workload, device, *builder, options,
                            [&](const std::string& text) { remark(o.machine.json, fmt::format("  {}", text)); });
  nlohmann::json evidence = ladder::evidence(result);
  report::add_family_digests(evidence, sources());
  if (!o.evidence.empty()) write_file_atomically(path, json_text(evidence, 1) + "\n", ErrorCode::store);
  if (o.machine.json)
    print(json_text(evidence, 1) + "\n");
  else
    print(fmt::format("\n{}{} steps in {}.\n", ladder::table_text(result), result.rows.size(),
                      human_duration(result.elapsed_s)));
  return result.passed() ? 0 : 1;
}

}  // namespace

void add_ladder(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<LadderOptions>();
  CLI::App* command = app.add_subcommand(
      "ladder",
      "Teaching kernels, from a thread a row to fwd_sm80: each verified and timed, beside its predicted speedup");
  command->add_option("--shape", o->shape, "Workload")->capture_default_str();
  command->add_option("--steps", o->steps, "Only these, separated by commas [all]");
  command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  command->add_flag("--no-peers", o->no_peers, "Do not compare with PyTorch; the hybrid step is left out");
  command->add_flag("--no-profile", o->no_profile, "Read no hardware counters; their columns are dashes");
  command->add_option("--python", o->python, "Python that may have PyTorch")->capture_default_str();
  o->machine.add_to(*command);
  command->footer(
      "Exit code 1 when a step does not pass the gate.\n"
      "Examples:\n"
      "  heed ladder\n"
      "  heed ladder --steps wmma_both,producer_2,swizzle --no-peers\n"
      "  heed ladder --shape b2h8l2048d128:causal_top_left --evidence ladder.json");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
