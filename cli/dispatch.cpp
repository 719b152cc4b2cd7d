// heed dispatch: what libheed would run
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "api/plan.hpp"
#include "cli/command.hpp"
#include "device/device.hpp"
#include "dispatch/covering.hpp"
#include "json/text.hpp"
#include "process/process.hpp"

namespace heed::cli {
namespace {

struct DispatchOptions {
  WorkloadOptions workload;
  std::string arch;
  std::string device;
  std::string programs;
  std::string book;
  bool json = false;
};

// @throws Error(usage) for an architecture that is not known
DeviceFacts device_of(const std::string& arch) {
  if (arch.empty()) return choose_device(parse_device_choice("auto"));
  if (arch == "cpu") return cpu_facts();
  if (arch.starts_with("sm_") || arch.starts_with("compute_")) return dispatch::representative_gpu(arch);
  return device_named(arch);
}

// Those of the library that was built or installed with this program: its build folder, PREFIX/lib beside PREFIX/bin.
std::string programs_of_library() {
  if (const char* named = std::getenv("HEED_PROGRAMS"); named != nullptr && *named != '\0') return {};
  const std::filesystem::path folder = std::filesystem::path(self_executable()).parent_path();
  for (const char* library : {".", "../" HEED_INSTALLED_LIBRARIES, "../lib"}) {
    const std::filesystem::path file = (folder / library / "heed.programs").lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(file, error)) return file.string();
  }
  // For the sentence that says where it was looked for.
  return ((folder.filename() == "bin" ? folder.parent_path() / "lib" : folder) / "heed.programs").string();
}

void run(const DispatchOptions& o, bool names_book) {
  const Workload workload = o.workload.workload(std::nullopt);
  DeviceFacts device = device_of(o.arch);
  if (!o.device.empty()) device.name = o.device;
  api::Problem problem;
  const heed_problem dense = api::problem_of(workload, device.kind);
  problem = api::read_problem(&dense);
  problem.workload = workload;
  // The library tells the layouts apart by strides; a dense output of either is what programs for dense ones write.
  if (workload.layout == Layout::blhd)
    problem.o = {{workload.heads * workload.len_q * workload.dim_v, workload.dim_v, workload.heads * workload.dim_v},
                 1};
  api::Options options;
  options.programs = o.programs.empty() ? programs_of_library() : o.programs;
  if (names_book) options.book = o.book;
  const api::Choice choice = api::decide(problem, options, device).choice;
  if (o.json) {
    print(json_text(nlohmann::json{{"workload", to_string(workload)},
                                   {"arch", device.arch},
                                   {"device", device.name},
                                   {"family", choice.variant.family->name()},
                                   {"variant", describe(choice.variant)},
                                   {"id", choice.variant.id()},
                                   {"digest", choice.digest},
                                   {"step", to_string(choice.step)},
                                   {"origin", choice.origin},
                                   {"reason", choice.reason}},
                    1) +
          "\n");
    return;
  }
  print(fmt::format("runs      {}\nfrom      {}\nbecause   {}\n", describe(choice.variant), choice.origin,
                    choice.reason));
}

}  // namespace

void add_dispatch(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<DispatchOptions>();
  CLI::App* command =
      app.add_subcommand("dispatch", "The program that libheed runs for a workload, and the reason; needs no GPU");
  o->workload.add_shape_to(*command);
  command->add_option(
      "--arch", o->arch,
      "sm_80, sm_86, sm_89, sm_90a, compute_80, a level of CPUs as x86-64-v3, or cpu (this one) [this machine's "
      "GPU, else its CPU]");
  command->add_option("--device-name", o->device, "Name of the device: its own champions come first");
  command->add_option("--programs", o->programs, "The file of programs [HEED_PROGRAMS, else the library's own]");
  CLI::Option* book =
      command->add_option("--book", o->book, "The book, \"\" for none [HEED_BOOK, else the default one]");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  heed dispatch --shape b1h8l512d64\n"
      "  heed dispatch --shape b1h8l512d64 --arch sm_90a --device-name \"NVIDIA H100 80GB HBM3\"");
  command->callback([o, book] { run(*o, book->count() > 0); });
}

}  // namespace heed::cli
