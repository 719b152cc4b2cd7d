// heed doctor
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/files.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "cli/probes.hpp"
#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "jit/toolchain.hpp"
#include "json/text.hpp"
#include "process/confinement.hpp"
#include "process/process.hpp"
#include "profile/collect.hpp"
#include "report/table.hpp"
#include "worker/runner.hpp"

namespace heed::cli {
namespace {

struct Checkup {
  std::string what;
  bool good;
  std::string found;
  std::string consequence;  ///< when it is not good: what will not work, or be skipped
};

// Runs a probe that throws an Error when something is missing.
template <typename Probe>
Checkup probe(const std::string& what, const std::string& consequence, const Probe& body) {
  try {
    return {what, true, body(), {}};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    return {what, false, error.what(), consequence};
  }
}

std::string describe_cpu(const DeviceFacts& cpu) {
  return fmt::format("{}, {} processors, {} fp32 lanes, CPU level {}, {} last-level cache", cpu.name, cpu.processors,
                     cpu.lanes, cpu.level.empty() ? "none" : cpu.level,
                     human_bytes(static_cast<double>(cpu.cache_bytes)));
}

std::string describe_gpu(const DeviceFacts& gpu) {
  return fmt::format("{} ({}), {} multiprocessors, {} L2, {} memory, CUDA driver {}", gpu.name, gpu.arch,
                     gpu.processors, human_bytes(static_cast<double>(gpu.cache_bytes)),
                     human_bytes(static_cast<double>(gpu.memory_bytes)), gpu.driver);
}

// What needs no GPU is looked at everywhere: the library, and that a chip's counters can be scheduled.
std::string describe_counters(const MachineOptions& machine, const std::optional<DeviceFacts>& gpu) {
  const MetricSchedule schedule = schedule_metrics({}, "GH100", profile::metric_choices());
  const std::string library = fmt::format("CUPTI {}, {} metrics of GH100 in {} passes", describe_cupti(),
                                          schedule.metrics.size(), schedule.passes);
  if (!gpu) throw Error(ErrorCode::no_device, fmt::format("{}; there is no GPU to read counters of", library));
  const profile::Reading reading = profile::try_counters(*machine.builder(), *gpu);
  if (!reading.counters) throw Error(ErrorCode::unsupported, fmt::format("{}; {}", library, reading.reason));
  return fmt::format("{}; {} of them readable on this {}", library, reading.schedule.metrics.size(),
                     reading.schedule.chip);
}

int doctor(const MachineOptions& machine, const StoreOptions& store_options) {
  const DeviceChoice choice = parse_device_choice(machine.device);
  std::vector<Checkup> findings;
  const DeviceFacts cpu = cpu_facts();
  const CudaProbe gpu = probe_cuda();
  const int jobs = machine.jobs > 0 ? machine.jobs : available_processors();
  findings.push_back({"CPU", true, describe_cpu(cpu), {}});
  findings.push_back(probe("processors", "measurements on the CPU are noisy", [] { return probe_processors(); }));
  findings.push_back(probe("memory", "a run would be killed", [] { return probe_memory(); }));
  findings.push_back(probe("files", "a run would end early", [&] { return probe_open_files(jobs); }));
  findings.push_back(probe("processes", "a run would end early", [&] { return probe_processes(jobs); }));
  findings.push_back(probe("cache", "nothing can be built", [&] {
    const std::filesystem::path folder =
        machine.cache.empty() ? default_cache_folder() : std::filesystem::path(machine.cache);
    const jit::Cache cache(folder);
    return probe_folder(cache.folder(), ErrorCode::cache);
  }));
  findings.push_back(probe("database", "heed evolve cannot store runs", [&] { return probe_database(store_options); }));
  findings.push_back(probe("C++ compiler", "CPU kernels cannot be built: install g++ 12 or newer", [&] {
    const auto toolchain = jit::make_host_toolchain(machine.compiler, "/nonexistent");
    return toolchain->identity({}).substr(0, toolchain->identity({}).find(" | "));
  }));
  const std::optional<std::string> no_runner = worker::why_no_runner();
  findings.push_back(
      {"sandbox", !no_runner,
       no_runner ? *no_runner
                 : fmt::format("a CPU kernel can be confined: no files, {}, no memory but its tensors",
                               worker::runner_has_a_clock() ? "a clock that this kernel of Linux does not close (6.12 "
                                                              "does)"
                                                            : "no clock"),
       "CPU kernels will not be run: use a kernel with CONFIG_SECCOMP_FILTER, or a container that allows seccomp"});
  findings.push_back({"confinement", can_hide_files(), describe_confinement(),
                      "a candidate's source can show its build any file that this user can read"});
  findings.push_back(probe("CPU kernel", "nothing can be run on the CPU", [&] { return probe_kernel(machine, cpu); }));
  findings.push_back({"GPU", gpu.facts.has_value(), gpu.facts ? describe_gpu(*gpu.facts) : gpu.reason,
                      "everything runs on the CPU; tests labelled gpu are skipped"});
  findings.push_back(probe("NVRTC", "GPU kernels cannot be built", [] { return jit::describe_nvrtc(); }));
  if (gpu.facts)
    findings.push_back(
        probe("GPU kernel", "nothing can be run on the GPU", [&] { return probe_kernel(machine, *gpu.facts); }));
  findings.push_back(probe("counters", "heed profile and heed evolve diagnose from times, floors and launches alone",
                           [&] { return describe_counters(machine, gpu.facts); }));
  if (gpu.facts) {
    const DeviceState state = device_state(DeviceKind::cuda);
    findings.push_back({"NVML", state.clock_mhz > 0,
                        state.clock_mhz > 0 ? fmt::format("clock {:.0f} MHz, {:.0f} W, {:.0f} C now", state.clock_mhz,
                                                          state.power_w, state.temperature_c)
                                            : "clocks cannot be read",
                        "clocks are not recorded beside measurements"});
  }
  const ProcessResult torch = run_process(
      {"python3", "-c",
       "import torch; print(torch.__version__ + (', sees the GPU' if torch.cuda.is_available() else ', sees no GPU'))"},
      {}, 60);
  findings.push_back({"PyTorch", torch.ok(), torch.ok() ? trim(torch.output) : "not importable from python3",
                      "champions are not compared with SDPA"});

  // A run takes the GPU where there is one, unless it is told otherwise; on that device all has to work.
  const bool takes_gpu = choice == DeviceChoice::cuda || (choice == DeviceChoice::automatic && gpu.facts);
  std::vector<std::string> needed = {"memory", "files", "processes", "cache", "database"};
  for (const char* what :
       takes_gpu ? std::array{"GPU", "NVRTC", "GPU kernel"} : std::array{"C++ compiler", "sandbox", "CPU kernel"})
    needed.emplace_back(what);
  std::vector<std::string> failed;
  for (const Checkup& f : findings)
    if (!f.good && std::find(needed.begin(), needed.end(), f.what) != needed.end()) failed.push_back(f.what);
  const bool usable = failed.empty();
  const char* device = takes_gpu ? "cuda" : "cpu";
  if (machine.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const Checkup& f : findings)
      all.push_back(
          {{"what", f.what}, {"ok", f.good}, {"found", f.found}, {"consequence", f.good ? "" : f.consequence}});
    print(json_text(nlohmann::json{{"heed", kVersion},
                                   {"source_digest", compile::source_digest()},
                                   {"checks", all},
                                   {"device", device},
                                   {"usable", usable},
                                   {"failed", failed}},
                    1) +
          "\n");
  } else {
    print(fmt::format("heed {} (kernel sources {})\n\n", kVersion, compile::source_digest()));
    for (const Checkup& f : findings) {
      print(fmt::format("{:<5} {:<13} {}\n", f.good ? "ok" : "--", f.what, f.found));
      if (!f.good) print(fmt::format("                    so: {}\n", f.consequence));
    }
    print(usable ? fmt::format("\nHeed can evolve kernels on this machine (--device {}).\n", device)
                 : fmt::format("\nHeed cannot evolve kernels on this machine (--device {}): see {}.\n", device,
                               join(failed, ", ")));
  }
  return usable ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  struct Options {
    MachineOptions machine;
    StoreOptions store;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Try each step of a run on this machine, and name the missing parts with their mends");
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->footer(
      "Builds, loads and runs a kernel, writes to the cache and the database, opens files and processes as a run "
      "does.\n"
      "Examples:\n"
      "  heed doctor\n"
      "  heed doctor --device cpu --json\n"
      "Exit code 0 when Heed can evolve kernels on the device that --device takes, 1 when it cannot.");
  command->callback([o, &exit_code] { exit_code = doctor(o->machine, o->store); });
}

}  // namespace heed::cli
