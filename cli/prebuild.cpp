// heed prebuild: programs that libheed takes later, built ahead
#include <fmt/format.h>

#include <mutex>

#include "base/parallel.hpp"
#include "cli/cases.hpp"
#include "cli/command.hpp"
#include "compile/nvrtc.hpp"
#include "dispatch/built_programs.hpp"
#include "dispatch/covering.hpp"
#include "json/text.hpp"
#include "padding/padding.hpp"
#include "process/interrupt.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct PrebuildOptions {
  std::vector<std::string> shapes;
  std::string file;
  std::string arch;
  std::string folder;
  int jobs = 0;
  bool json = false;
};

std::vector<Workload> workloads_of(const PrebuildOptions& o) {
  std::vector<Workload> all;
  for (const std::string& shape : o.shapes) all.push_back(parse_workload(shape));
  if (!o.file.empty()) {
    const std::vector<Workload> of_file = read_workloads(o.file);
    all.insert(all.end(), of_file.begin(), of_file.end());
  }
  if (all.empty()) throw Error(ErrorCode::usage, "name workloads with --shapes, or a file of them with --file");
  return all;
}

struct Built {
  std::string workload;
  std::string variant;
  std::string file;  ///< empty: not built
  std::string state;
};

// The workload that a program is built for: where no family takes its head dims, that of rows which libheed pads.
// @throws Error(unsupported) of the workload as it is
Workload runnable(const Workload& workload, const DeviceFacts& device) {
  std::vector<Workload> all = {workload};
  if (!workload.quantised)
    for (const std::int64_t dim : padding::padded_dims(workload)) all.push_back(padding::padded(workload, dim, dim));
  std::optional<Error> refusal;
  for (const Workload& one : all) {
    try {
      (void)default_family(one, device);
      return one;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      if (!refusal) refusal = error;
    }
  }
  throw Error(*refusal);
}

Built build_one(const Workload& given, const DeviceFacts& device, dispatch::BuiltPrograms& programs) {
  Built built{to_string(given), {}, {}, {}};
  try {
    const Workload workload = runnable(given, device);
    const Family& family = default_family(workload, device);
    const Variant variant = make_variant(family, family.default_config(workload, device), workload);
    built.variant = variant.id();
    auto file = programs.find(variant, device.arch);
    built.state = file != nullptr ? "was there" : "built";
    if (workload.dim != given.dim || workload.dim_v != given.dim_v)
      built.state += fmt::format(", for rows that are padded to {} elements", workload.dim);
    if (file == nullptr) file = programs.build(variant, workload, device);
    built.file = file->name();
    // Of what this process alone would know nobody has anything later.
    if (!std::filesystem::exists(built.file))
      throw Error(ErrorCode::cache, fmt::format("{} cannot be written", built.file), built.file);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::no_compiler) throw;
    built.file.clear();
    built.state = error.what();
  }
  return built;
}

int prebuild(const PrebuildOptions& o) {
  const std::vector<Workload> workloads = workloads_of(o);
  const DeviceFacts device =
      !o.arch.empty() ? dispatch::representative_gpu(o.arch)
                      : choose_device(DeviceChoice::cuda,
                                      "--arch sm_90a builds for a GPU of another machine, and heed programs build "
                                      "--arch native for this processor");
  (void)compile::nvrtc_facts();
  dispatch::BuiltPrograms programs(o.folder);
  std::vector<Built> all(workloads.size());
  std::mutex mutex;
  std::size_t done = 0;
  parallel_for(static_cast<std::int64_t>(workloads.size()), o.jobs, [&](std::int64_t i) {
    check_interrupt();
    const auto at = static_cast<std::size_t>(i);
    all[at] = build_one(workloads[at], device, programs);
    const std::lock_guard lock(mutex);
    remark(o.json,
           fmt::format("{}/{} {}: {}: {}", ++done, workloads.size(), all[at].workload, all[at].variant, all[at].state));
  });
  int failures = 0;
  json rows = json::array();
  for (const Built& built : all) {
    failures += built.file.empty() ? 1 : 0;
    rows.push_back(
        {{"workload", built.workload}, {"variant", built.variant}, {"file", built.file}, {"state", built.state}});
  }
  if (o.json) print(json_text(json{{"arch", device.arch}, {"programs", rows}}, 1) + "\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_prebuild(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<PrebuildOptions>();
  CLI::App* command = app.add_subcommand(
      "prebuild", "Build the programs for GPUs of your workloads ahead: libheed takes them without a compiler");
  command->add_option("--shapes", o->shapes, "Workloads")->delimiter(',');
  command->add_option("--file", o->file, "A file with a workload a line");
  command->add_option("--arch", o->arch, "sm_80, sm_86, sm_89 or sm_90a; no GPU is needed then [this machine's GPU]");
  command->add_option(
      "--folder", o->folder,
      fmt::format("Where the programs go [{}, or HEED_BUILT_PROGRAMS]", dispatch::BuiltPrograms().folder().string()));
  command->add_option("--jobs", o->jobs, "Builds at a time [one a processor]")->check(zero_or_above());
  command->add_flag("--json", o->json, "Print the result as JSON on stdout; everything else goes to stderr");
  command->footer(
      "Examples:\n"
      "  heed prebuild --shapes b1h32hkv8l2048d80:bf16:causal_top_left,b1h32hkv8l1k2048d80:bf16\n"
      "  heed prebuild --file workloads.txt --arch sm_90a\n"
      "A program is the one that the rule of its family names for the very workload; one that is there is not built "
      "again.\nThe default for a GPU depends on its multiprocessors: --arch counts with those of a GPU that has the "
      "architecture.");
  command->callback([o, &exit_code] { exit_code = prebuild(*o); });
}

}  // namespace heed::cli
