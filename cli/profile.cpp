// heed profile
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/profile_nsys.hpp"
#include "json/text.hpp"
#include "measure/statistics.hpp"
#include "process/process.hpp"
#include "profile/collect.hpp"
#include "profile/diagnosis.hpp"
#include "profile/roofline.hpp"
#include "record/diagnosis.hpp"
#include "record/json.hpp"
#include "report/table.hpp"
#include "trial/trial_runner.hpp"

namespace heed::cli {
namespace {

constexpr int kReadings = 9;  // blocks whose median is the time

struct ProfileOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  std::string variant;
  std::string roofline;
  std::string cupti;
  double limit_s = profile::CollectOptions{}.limit_s;
  bool ncu = false;
  bool nsys = false;
  std::string nsys_report;
};

// The device the variant's family runs on; --device only confirms it.
DeviceFacts device_for(const ProfileOptions& o) {
  DeviceChoice choice = parse_device_choice(o.machine.device);
  if (!o.variant.empty() && choice == DeviceChoice::automatic)
    choice = find_family(o.variant.substr(0, o.variant.find(':'))).device() == DeviceKind::cuda ? DeviceChoice::cuda
                                                                                                : DeviceChoice::cpu;
  return choose_device(choice, o.variant.empty() ? "use --device cpu to run on the CPU" : "fwd_cpu runs on the CPU");
}

// What a tool of NVIDIA's is to look at; without a GPU, as it would be on an H100.
Variant gpu_variant(const ProfileOptions& o, const Workload& workload, const char* flag) {
  if (!o.variant.empty() && find_family(o.variant.substr(0, o.variant.find(':'))).device() != DeviceKind::cuda)
    throw Error(ErrorCode::usage, fmt::format("{} is for GPU kernels; {} runs on the CPU", flag, o.variant), o.variant);
  const CudaProbe gpu = probe_cuda();
  const DeviceFacts device = gpu.facts ? *gpu.facts : gpu_limits("sm_90a");
  const std::string name = o.variant.empty() ? std::string(default_family(workload, device).name()) : o.variant;
  return parse_variant(name, workload, device);
}

int print_ncu_command(const ProfileOptions& o) {
  const Workload workload = o.workload.workload(o.workload.tensors());
  const std::string command = profile::ncu_command(self_executable(), gpu_variant(o, workload, "--ncu"), workload);
  print(o.machine.json ? json_text(nlohmann::json{{"ncu", command}}, 1) + "\n" : command + "\n");
  return 0;
}

profile::Roofline roofline_of(const Variant& variant, const Workload& workload, const DeviceFacts& device, double us,
                              double peak_flops, const std::optional<profile::Counters>& counters) {
  profile::Roofline r;
  r.title = fmt::format("{} at {} on {}", variant.id(), to_string(workload), device.name);
  r.peak_flops = peak_flops;
  r.flops = workload.flops() / (us * 1e-6);
  const auto intensity = [&](const std::optional<double>& bytes) {
    return bytes && *bytes > 0 ? workload.flops() / *bytes : 0;
  };
  if (device.kind == DeviceKind::cuda) {
    // 64 bytes a clock and multiprocessor, as in the floor.
    const double l2 = 64.0 * device.clock_mhz * 1e6 * device.processors;
    const bool fits = workload.bytes() <= static_cast<double>(device.cache_bytes);
    const double compulsory = workload.flops() / workload.bytes();
    r.roofs = {{"DRAM", device.memory_bandwidth,
                counters ? intensity(counters->dram_bytes)
                : fits   ? 0
                         : compulsory},
               {"L2", l2,
                counters ? intensity(counters->l2_bytes)
                : fits   ? compulsory
                         : 0}};
  } else {
    r.roofs = {{"tensors", 0, workload.flops() / workload.bytes()}};
  }
  return r;
}

std::string counters_text(const profile::Counters& c) {
  report::Table table({"counter", "value", ""});
  table.align_left(2);
  const auto add = [&](const char* name, const std::optional<double>& value, const char* unit, double scale = 1) {
    table.add({name, value ? fmt::format("{:.4g}", *value * scale) : "-", unit});
  };
  add("tensor pipe", c.tensor_percent, "% of its peak while active");
  add("FMA pipe", c.fma_percent, "%");
  add("ALU pipe", c.alu_percent, "%");
  add("special functions", c.xu_percent, "%");
  add("issue slots", c.issue_percent, "%");
  add("warps resident", c.warps_percent, "% of the most");
  add("warps eligible", c.eligible_warps, "a scheduler and cycle");
  add("multiprocessors active", c.active_percent, "% of the time");
  add("DRAM", c.dram_percent, "% of its bandwidth");
  add("DRAM", c.dram_bytes, "MB", 1e-6);
  add("L2", c.l2_percent, "% of its throughput");
  add("L2", c.l2_bytes, "MB", 1e-6);
  add("shared memory", c.shared_percent, "% of its passes");
  add("bank conflicts", c.conflict_share(), "% of the passes made", 100);
  add("cycles", c.cycles, "of the multiprocessors");
  add("instructions", c.instructions, "of warps");
  return table.str();
}

int run(const ProfileOptions& o) {
  if (o.ncu) return print_ncu_command(o);
  if (o.nsys) {
    const Workload workload = o.workload.workload(o.workload.tensors());
    return profile_with_nsys(gpu_variant(o, workload, "--nsys"), workload, o.nsys_report, o.machine.json);
  }
  const DeviceFacts device = device_for(o);
  if (!o.cupti.empty()) (void)describe_cupti(o.cupti);  // asked for by name: its absence is an error
  const auto builder = o.machine.builder();
  const std::optional<QkvTensors> tensors = o.workload.tensors();
  const Workload workload = o.workload.workload(tensors);
  trial::TrialRunner trial_runner(workload, device, *builder, tensors ? &*tensors : nullptr, o.machine.trial_options());
  const Variant variant = parse_variant(
      o.variant.empty() ? std::string(default_family(workload, device).name()) : o.variant, workload, device);
  const trial::Built built = trial_runner.build(variant);
  const std::uint64_t seed = fresh_seed() >> 1;
  const verify::GateReport gate = trial_runner.verify(built, seed);
  if (!gate.passed())
    throw Error(ErrorCode::unsupported,
                fmt::format("{} does not pass the gate ({}, check \"{}\"): {}", describe(variant),
                            to_string(gate.verdict), gate.check, gate.reason),
                describe(variant));

  profile::Evidence evidence;
  {
    // Timed first, in a process that ends before the counters are read.
    const measure::Block block = trial_runner.standalone_block(built);
    std::vector<double> readings;
    for (int i = 0; i < kReadings; ++i) readings.push_back(block().us);
    evidence.us = measure::median(readings);
  }
  evidence.plan = variant.plan(workload, device);
  evidence.floor = trial_runner.floor(static_cast<int>(evidence.plan.threads));
  evidence.resources = built.artifact.resources;
  evidence.device = device;
  evidence.bytes = workload.bytes();
  profile::CollectOptions collect;
  collect.library = o.cupti;
  collect.limit_s = o.limit_s;
  collect.seed = seed;
  const profile::Reading reading = profile::collect(evidence.plan, built.artifact, workload, device, collect);
  evidence.counters = reading.counters;
  const profile::Diagnosis diagnosis = profile::diagnose(evidence, variant_knobs(*variant.family));

  if (!o.roofline.empty())
    write_file_atomically(
        o.roofline,
        profile::svg(roofline_of(variant, workload, device, evidence.us, trial_runner.peak_flops(), reading.counters)),
        ErrorCode::store);
  if (o.machine.json) {
    nlohmann::json all = report::evidence_header("profile", record::to_json(device), sources());
    all.update({{"workload", to_string(workload)},
                {"variant", variant.id()},
                {"config", describe(variant)},
                {"us", evidence.us},
                {"tflops", workload.flops() / evidence.us * 1e-6},
                {"floor", record::to_json(evidence.floor)},
                {"resources", record::to_json(evidence.resources)},
                {"programs", {{variant.id(), built.artifact.machine_code}}},
                {"chip", reading.schedule.chip},
                {"metrics", reading.schedule.metrics},
                {"missing", reading.schedule.missing},
                {"passes", reading.schedule.passes},
                {"no_counters", reading.reason},
                {"diagnosis", record::to_json(diagnosis, reading.counters)}});
    print(json_text(all, 1) + "\n");
    return 0;
  }
  print(fmt::format("{}\n{} on {}: {:.2f} us, {} registers\n\n", variant.id(), to_string(workload), device.name,
                    evidence.us, evidence.resources.registers));
  if (reading.counters)
    print(fmt::format("{} counters of {} in {} passes{}\n{}\n", reading.schedule.metrics.size(), reading.schedule.chip,
                      reading.schedule.passes,
                      reading.schedule.missing.empty() ? "" : "; it lacks " + join(reading.schedule.missing, ", "),
                      counters_text(*reading.counters)));
  else
    print(fmt::format("no hardware counters: {}\n\n", reading.reason));
  print(diagnosis.text + "\n");
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile", "The bound of a variant: hardware counters against the floors, and the knobs that act on it");
  command->add_option("variant", o->variant,
                      "family or family:knob=value,... [the device's default family with its default knobs]");
  o->workload.add_to(*command);
  o->machine.add_to(*command);
  command->add_option("--roofline", o->roofline, "Write a roofline as SVG to this file");
  CLI::Option* const ncu = command->add_flag(
      "--ncu", o->ncu, "Print the command line of NVIDIA Nsight Compute for this kernel; needs no GPU");
  CLI::Option* const nsys = command
                                ->add_flag("--nsys", o->nsys,
                                           "Print the command line of NVIDIA Nsight Systems that records a timeline of "
                                           "this kernel; where nsys is installed, run it and summarise: gaps between "
                                           "launches, how busy the GPU was, copies beside kernels, time by range")
                                ->excludes(ncu);
  command->add_option("--nsys-report", o->nsys_report, "Keep the recording in this file (.nsys-rep)")->needs(nsys);
  command->add_option("--cupti", o->cupti, "Path of libcupti [where toolkits put it]");
  command->add_option("--counter-limit", o->limit_s, "Seconds all passes may take")
      ->capture_default_str()
      ->check(above_zero());
  command->footer(
      "Examples:\n"
      "  heed profile fwd_sm80:block_m=32,kv_groups=4 --shape b1h8l512d64\n"
      "  heed profile fwd_sm80 --shape b1h8l512d64 --roofline roofline.svg --json\n"
      "  heed profile fwd_sm80 --shape b1h8l512d64 --ncu\n"
      "  heed profile fwd_sm80 --shape b1h8l512d64 --nsys --nsys-report timeline.nsys-rep");
  command->callback([o, &exit_code] { exit_code = run(*o); });
}

}  // namespace heed::cli
