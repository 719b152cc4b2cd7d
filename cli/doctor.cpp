// heed doctor
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/confinement.hpp"
#include "base/files.hpp"
#include "base/process.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "evolve/json.hpp"
#include "jit/embedded.hpp"
#include "jit/toolchain.hpp"
#include "profile/collect.hpp"
#include "report/table.hpp"
#include "worker/runner.hpp"

namespace heed::cli {
namespace {

struct Finding {
  std::string what;
  bool good;
  std::string found;
  std::string consequence;  ///< when it is not good: what will be skipped
};

// Runs a probe that throws an Error when something is missing.
template <typename Probe>
Finding probe(const std::string& what, const std::string& consequence, const Probe& body) {
  try {
    return {what, true, body(), {}};
  } catch (const Error& error) {
    return {what, false, error.what(), consequence};
  }
}

int doctor(const MachineOptions& machine, const StoreOptions& store_options) {
  std::vector<Finding> findings;
  const DeviceFacts cpu = cpu_facts();
  findings.push_back({"CPU",
                      true,
                      fmt::format("{}, {} processors, {} fp32 lanes, {} last-level cache, {} memory", cpu.name,
                                  cpu.processors, cpu.lanes, human_bytes(static_cast<double>(cpu.cache_bytes)),
                                  human_bytes(static_cast<double>(cpu.memory_bytes))),
                      {}});
  findings.push_back(probe("C++ compiler", "CPU kernels cannot be built: fwd_cpu is out", [&] {
    const auto toolchain = jit::make_host_toolchain(machine.compiler, "/nonexistent");
    return toolchain->identity({}).substr(0, toolchain->identity({}).find(" | "));
  }));
  const std::optional<std::string> no_runner = worker::why_no_runner();
  findings.push_back({"sandbox", !no_runner,
                      no_runner.value_or("a CPU kernel can be confined: no files, no clock, no memory but its tensors"),
                      "CPU kernels will not be run"});
  const CudaProbe gpu = probe_cuda();
  findings.push_back({"GPU", gpu.facts.has_value(),
                      gpu.facts
                          ? fmt::format("{} ({}), {} multiprocessors, {} L2, {} memory, CUDA driver {}",
                                        gpu.facts->name, gpu.facts->arch, gpu.facts->processors,
                                        human_bytes(static_cast<double>(gpu.facts->cache_bytes)),
                                        human_bytes(static_cast<double>(gpu.facts->memory_bytes)), gpu.facts->driver)
                          : gpu.reason,
                      "everything runs on the CPU; tests labelled gpu are skipped"});
  findings.push_back(probe("NVRTC", "GPU kernels cannot be built", [] { return jit::describe_nvrtc(); }));
  findings.push_back(
      probe("counters", "heed profile and heed evolve diagnose from times, floors and launches alone", [&] {
        // What needs no GPU is looked at everywhere: the library, and that a chip's counters can be scheduled.
        const MetricSchedule schedule = schedule_metrics({}, "GH100", profile::metric_choices());
        const std::string library = fmt::format("CUPTI {}, {} metrics of GH100 in {} passes", describe_cupti(),
                                                schedule.metrics.size(), schedule.passes);
        if (!gpu.facts)
          throw Error(ErrorCode::no_device, fmt::format("{}; there is no GPU to read counters of", library));
        const profile::Reading reading = profile::try_counters(*machine.builder(), *gpu.facts);
        if (!reading.counters) throw Error(ErrorCode::unsupported, fmt::format("{}; {}", library, reading.reason));
        return fmt::format("{}; {} of them readable on this {}", library, reading.schedule.metrics.size(),
                           reading.schedule.chip);
      }));
  if (gpu.facts) {
    const DeviceState state = device_state(DeviceKind::cuda);
    findings.push_back({"NVML", state.clock_mhz > 0,
                        state.clock_mhz > 0 ? fmt::format("clock {:.0f} MHz, {:.0f} W, {:.0f} C now", state.clock_mhz,
                                                          state.power_w, state.temperature_c)
                                            : "clocks cannot be read",
                        "clocks are not recorded beside measurements"});
  }
  findings.push_back(probe("cache", "nothing can be built", [&] {
    const std::filesystem::path folder =
        machine.cache.empty() ? default_cache_folder() : std::filesystem::path(machine.cache);
    jit::Cache cache(folder);
    return folder.string();
  }));
  findings.push_back(probe("database", "heed evolve cannot store runs", [&] {
    const auto store = store_options.open(store::Access::read_write);
    return fmt::format("{}, {} runs",
                       store_options.path.empty() ? default_database_path().string() : store_options.path,
                       store->runs().size());
  }));
  findings.push_back({"confinement", can_hide_files(), describe_confinement(),
                      "a candidate's source can show its build any file that this user can read"});
  const ProcessResult torch = run_process(
      {"python3", "-c",
       "import torch; print(torch.__version__ + (', sees the GPU' if torch.cuda.is_available() else ', sees no GPU'))"},
      {}, 60);
  findings.push_back({"PyTorch", torch.ok(), torch.ok() ? trim(torch.output) : "not importable from python3",
                      "champions are not compared with SDPA"});

  if (machine.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const Finding& f : findings)
      all.push_back(
          {{"what", f.what}, {"ok", f.good}, {"found", f.found}, {"consequence", f.good ? "" : f.consequence}});
    print(nlohmann::json{{"heed", kVersion}, {"source_digest", jit::source_digest()}, {"checks", all}}.dump(1) + "\n");
  } else {
    print(fmt::format("heed {} (kernel sources {})\n\n", kVersion, jit::source_digest()));
    for (const Finding& f : findings) {
      print(fmt::format("{:<5} {:<13} {}\n", f.good ? "ok" : "--", f.what, f.found));
      if (!f.good) print(fmt::format("                    so: {}\n", f.consequence));
    }
  }
  // Heed works as long as one device can build and run, and results can be stored.
  const auto good = [&](const char* what) {
    for (const Finding& f : findings)
      if (f.what == what) return f.good;
    return false;
  };
  const bool usable = good("cache") && good("database") &&
                      ((good("C++ compiler") && good("sandbox")) || (good("GPU") && good("NVRTC")));
  if (!machine.json)
    print(usable ? "\nHeed can evolve kernels on this machine.\n"
                 : "\nHeed cannot evolve kernels on this machine; see the lines marked --.\n");
  return usable ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  struct Options {
    MachineOptions machine;
    StoreOptions store;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("doctor", "What this machine has, and what will be skipped because of what it lacks");
  o->machine.add_to(*command);
  o->store.add_to(*command);
  command->footer("Exit code 0 when Heed can evolve kernels here, 1 when it cannot.");
  command->callback([o, &exit_code] { exit_code = doctor(o->machine, o->store); });
}

}  // namespace heed::cli
