// heed report, heed champions, heed evidence
#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "json/text.hpp"
#include "report/champions.hpp"
#include "report/evidence.hpp"
#include "report/page.hpp"
#include "variant/renames.hpp"

namespace heed::cli {

void add_report(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    StoreOptions store;
    std::int64_t run = 0;
    std::string output;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("report", "One run as a page to look at: a single HTML file with its charts");
  command->add_option("run", o->run, "Number of the run")->required();
  command->add_option("-o,--output", o->output, "File to write [run-N.html]");
  o->store.add_to(*command);
  command->add_flag("--json", o->json, "Print what was written as JSON");
  command->footer("Example:\n  heed report 3 -o run.html");
  command->callback([o] {
    const std::string output = o->output.empty() ? fmt::format("run-{}.html", o->run) : o->output;
    const auto store = o->store.open(store::Access::read_only);
    const std::optional<store::RunRecord> run = store->find_run(o->run);
    if (!run)
      throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", o->run),
                  std::to_string(o->run));
    expect_writable(output, ErrorCode::store);
    const std::string page = report::run_page(*run, store->trials(o->run), store->comparisons(o->run));
    write_file_atomically(output, page, ErrorCode::store);
    const bool finished = report::is_finished(*run);
    if (o->json)
      print(
          json_text(nlohmann::json{{"run", o->run}, {"output", output}, {"bytes", page.size()}, {"finished", finished}},
                    1) +
          "\n");
    else
      print(fmt::format("{}: run {}{}\n", output, o->run,
                        finished ? "" : ", which is not finished: the page holds what there is"));
  });
}

void add_champions(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    StoreOptions store;
    std::string output;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("champions", "The champions of finished runs, with the kernels they were measured against");
  command->add_option("-o,--output", o->output,
                      "File to write them to as JSON; entries of other workloads and architectures in it are kept");
  o->store.add_to(*command);
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(
      "For each workload and architecture the champion of the fastest final comparison, or the base that nothing "
      "beat.\n"
      "Example:\n  heed champions -o tuned/champions.json");
  command->callback([o] {
    const auto store = o->store.open(store::Access::read_only);
    const nlohmann::json champions = report::champions_of(store->runs());
    if (!o->output.empty()) {
      expect_writable(o->output, ErrorCode::store);
      nlohmann::json all = champions;
      if (std::filesystem::exists(o->output))
        all = report::merge_champions(parse_json(read_file(o->output, ErrorCode::store)), champions);
      write_file_atomically(o->output, json_text(all, 1) + "\n", ErrorCode::store);
    }
    print(o->json ? json_text(champions, 1) + "\n" : report::champions_text(champions));
  });
}

namespace {

/// The digests of variants built with today's sources, side by side; none for a variant that is no more, or is for a
/// device of which this machine knows no limits.
std::vector<std::optional<std::string>> machine_code_of(const std::vector<report::Program>& programs,
                                                        jit::Builder& builder) {
  std::vector<std::future<jit::BuildOutcome>> builds;
  for (const report::Program& program : programs) {
    builds.emplace_back();
    try {
      const CpuLevel* const level = find_cpu_level(program.arch);
      const DeviceFacts device = program.arch.starts_with("sm_") ? gpu_limits(program.arch)
                                 : level != nullptr              ? representative_cpu(*level)
                                                                 : cpu_facts();
      const Workload workload = parse_workload(program.workload);
      const Variant variant = parse_variant(with_current_names(program.config), workload, device);
      builds.back() = builder.start(jit::request_for(variant, workload, device));
    } catch (const Error&) {
      continue;
    }
  }
  std::vector<std::optional<std::string>> digests;
  for (std::future<jit::BuildOutcome>& build : builds) {
    digests.emplace_back();
    if (!build.valid()) continue;
    if (const jit::BuildOutcome outcome = build.get(); outcome.artifact)
      digests.back() = outcome.artifact->machine_code;
  }
  return digests;
}

}  // namespace

void add_evidence(CLI::App& app, int& exit_code) {
  struct Options {
    std::string folder = "evidence";
    MachineOptions machine;
    bool builds = false;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("evidence", "List evidence files, and whether they were measured with today's sources");
  command->add_option("folder", o->folder, "Folder to look through")->capture_default_str();
  CLI::Option* build = command->add_flag("--build", o->builds,
                                         "Build the variants that stale files name, and compare their machine code");
  command->add_option("--cache", o->machine.cache, "Folder for built kernels")->needs(build);
  command->add_option("--jobs", o->machine.jobs, "Builds at a time [one a processor]")
      ->check(zero_or_above())
      ->needs(build);
  command->add_flag("--json", o->json, "Print JSON");
  command->footer(
      "A file is current when it was measured with the device sources in this binary, or names variants of families\n"
      "whose sources have not changed since; else it is stale. With --build it has the same programs where every\n"
      "variant it names is still built into the machine code that was measured.\n"
      "Exit code 0 when every file can be read, 1 otherwise.\n"
      "Example:\n  heed evidence evidence/h200");
  command->callback([o, &exit_code] {
    report::ProgramsOf programs_of;
    if (o->builds)
      programs_of = [builder = std::shared_ptr<jit::Builder>(o->machine.builder())](const auto& programs) {
        if (!programs.empty())
          remark(true, fmt::format("building {} variants, {} first", programs.size(), programs.front().workload));
        return machine_code_of(programs, *builder);
      };
    const std::vector<report::EvidenceFile> files = report::list_evidence(o->folder, sources(), programs_of);
    if (o->json)
      print(json_text(nlohmann::json{{"source_digest", compile::source_digest()},
                                     {"referee", kReferee},
                                     {"files", report::evidence_json(files)}},
                      1) +
            "\n");
    else
      print(fmt::format("{}\ntoday's sources: {}, today's referee: {}\n", report::evidence_text(files),
                        compile::source_digest(), kReferee));
    exit_code = std::any_of(files.begin(), files.end(), [](const auto& file) { return !file.problem.empty(); }) ? 1 : 0;
  });
}

}  // namespace heed::cli
