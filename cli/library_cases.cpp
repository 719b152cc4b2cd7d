// heed library cases: the case table through the C interface, and the same under compute-sanitizer's tools
#include <fmt/format.h>

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>

#include "base/files.hpp"
#include "cli/cases.hpp"
#include "cli/library.hpp"
#include "conformance/case_table.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "process/process.hpp"
#include "process/sanitizer.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPlain = "none";  // the tool of a row that no tool watched

struct LibraryCasesOptions {
  MachineOptions machine;
  std::string cases;
  std::vector<std::string> shapes;
  std::vector<std::string> families;
  std::string programs;
  std::string evidence;
  std::uint64_t seed = 1;
  bool sanitize = false;
  bool resume = false;
  double sanitize_limit_s = 590;
};

struct CaseJob {
  Workload workload;
  std::string variant;  // empty: what libheed chooses
  std::future<jit::BuildOutcome> build;
};

struct Pass {
  std::vector<CaseJob> jobs;
  int refused = 0;  // by a family, in the order of the table
};

std::vector<Workload> workloads_of(const LibraryCasesOptions& o) {
  std::vector<Workload> workloads;
  if (!o.cases.empty()) workloads = read_workloads(o.cases);
  for (const std::string& shape : o.shapes) workloads.push_back(parse_workload(shape));
  if (workloads.empty())
    throw Error(ErrorCode::usage, "no workloads: give --cases FILE, e.g. tests/cases/forward.txt, or --shapes");
  return workloads;
}

// Families that were named, in their order, else all that a search of the workload goes through.
std::vector<const Family*> families_for(const LibraryCasesOptions& o, const Workload& w, const DeviceFacts& device) {
  if (o.families.empty()) return searched_families(w, device);
  std::vector<const Family*> named;
  for (const std::string& name : o.families) named.push_back(&find_family(name));
  return named;
}

Pass jobs_of(const LibraryCasesOptions& o, const DeviceFacts& device, jit::Builder& builder) {
  Pass pass;
  for (const Workload& w : workloads_of(o)) {
    if (!o.programs.empty()) {
      pass.jobs.push_back({w, {}, {}});
      continue;
    }
    std::vector<const Family*> families;
    try {
      families = families_for(o, w, device);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      ++pass.refused;  // by all of them
    }
    for (const Family* family : families) {
      if (family->device() != device.kind || family->refuses(w, device)) {
        ++pass.refused;
        continue;
      }
      const Variant variant = make_variant(*family, family->default_config(w, device), w);
      pass.jobs.push_back({w, describe(variant), builder.start(jit::request_for(variant, w, device))});
    }
  }
  return pass;
}

// Where programs are given, a problem that none of them runs is refused, and that is no failure.
bool is_refusal(const LibraryCasesOptions& o, const std::string& failure) {
  return !o.programs.empty() && failure.find("holds no program for") != std::string::npos;
}

json run_cases(const LibraryCasesOptions& o, const DeviceFacts& device) {
  const auto begin = std::chrono::steady_clock::now();
  const auto builder = o.machine.builder();
  Pass pass = jobs_of(o, device, *builder);
  json failures = json::array();
  json families = json::object();
  int passed = 0;
  double worst = 0;
  for (std::size_t i = 0; i < pass.jobs.size(); ++i) {
    check_interrupt();
    CaseJob& job = pass.jobs[i];
    conformance::Program program{job.variant, {}, o.programs, 0};
    std::string image;
    conformance::CaseResult result;
    if (job.build.valid()) {
      const jit::BuildOutcome built = job.build.get();
      check_interrupt();
      if (built.artifact)
        image = read_file(built.artifact->path, ErrorCode::cache);
      else
        result = {to_string(job.workload), job.variant, "it does not build: " + built.log, 0};
      program.image = image;
    }
    if (result.failure.empty()) result = conformance::run_case(job.workload, device.kind, program, o.seed + i);
    if (is_refusal(o, result.failure)) {
      ++pass.refused;
      remark(o.machine.json, fmt::format("-        {:<58} {}", result.workload, result.failure));
      continue;
    }
    const std::string family = result.variant.substr(0, result.variant.find(':'));
    families[family] = families.value(family, 0) + 1;
    worst = std::max(worst, result.max_abs);
    passed += result.passed() ? 1 : 0;
    remark(o.machine.json, fmt::format("{:<8} {:<58} {}  max|error| {:.1e}", result.passed() ? "passed" : "FAILED",
                                       result.workload, family, result.max_abs));
    if (result.passed()) continue;
    remark(o.machine.json, fmt::format("           {}", result.failure.substr(0, 600)));
    failures.push_back({{"workload", result.workload}, {"variant", result.variant}, {"failure", result.failure}});
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {{"tool", kPlain},
          {"passed", failures.empty() && passed > 0},
          {"cases_passed", passed},
          {"cases_refused", pass.refused},
          {"families", families},
          {"max_abs_error", worst},
          {"seconds", seconds},
          {"failures", failures},
          {"reason", passed > 0 || !failures.empty() ? "" : "no case was run"}};
}

// The same command without the tools' options, for one tool to watch.
std::vector<std::string> own_command(const LibraryCasesOptions& o, const std::string& evidence) {
  std::vector<std::string> command = {self_executable(), "library", "cases",  "--evidence",          evidence,
                                      "--device",        "cuda",    "--seed", std::to_string(o.seed)};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {option, value});
  };
  add("--cases", o.cases);
  add("--shapes", fmt::format("{}", fmt::join(o.shapes, ",")));
  add("--families", fmt::format("{}", fmt::join(o.families, ",")));
  add("--programs", o.programs);
  add("--cache", o.machine.cache);
  return command;
}

json under_tool(const LibraryCasesOptions& o, std::string_view tool) {
  const std::string path =
      (fs::temp_directory_path() / fmt::format("heed-cases-{}-{}.json", ::getpid(), tool)).string();
  const auto begin = std::chrono::steady_clock::now();
  const Sanitized said = sanitize_with(tool, own_command(o, path), o.sanitize_limit_s);
  check_interrupt();  // what was broken off is no finding
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::error_code error;
  const std::string text = fs::exists(path, error) ? read_file(path, ErrorCode::cache) : "";
  fs::remove(path, error);
  const json document = parse_json(text);
  json row = {{"cases_passed", 0}, {"cases_refused", 0}, {"families", json::object()}, {"failures", json::array()}};
  if (document.is_object() && !document["rows"].empty()) row = document["rows"][0];
  row.update({{"tool", tool},
              {"passed", said.passed && row.value("passed", false)},
              {"reason", said.reason},
              {"seconds", seconds}});
  return row;
}

std::string table_of_cases(const json& rows) {
  report::Table table({"tool", "cases passed", "failed", "refused", "seconds", "verdict", "reason"});
  table.align_left(5);
  table.align_left(6);
  for (const json& row : rows)
    table.add({row["tool"].get<std::string>(), std::to_string(row["cases_passed"].get<int>()),
               std::to_string(row["failures"].size()), std::to_string(row["cases_refused"].get<int>()),
               fmt::format("{:.0f}", row["seconds"].get<double>()), row["passed"].get<bool>() ? "passed" : "FAILED",
               row["reason"].get<std::string>().substr(0, 120)});
  return table.str();
}

int cases(const LibraryCasesOptions& o) {
  const DeviceFacts device = o.machine.choose();
  if (o.sanitize && device.kind != DeviceKind::cuda)
    throw Error(ErrorCode::unsupported,
                fmt::format("compute-sanitizer looks at kernels on an NVIDIA GPU; {} is none", device.name),
                device.name);
  (void)workloads_of(o);
  GrowingEvidence evidence(o.evidence, "library_cases", device);
  evidence.set("seed", o.seed);
  if (o.resume) evidence.resume("seed");
  const auto is_done = [&](std::string_view tool) {
    return std::any_of(evidence.rows().begin(), evidence.rows().end(),
                       [&](const json& row) { return row.value("tool", "") == tool; });
  };
  if (!is_done(kPlain)) evidence.add(run_cases(o, device));  // what it builds, the tools' processes find in the cache
  // Side by side: a tool waits for the host most of the time, and what it looks at is no time.
  std::vector<std::pair<std::string_view, std::future<json>>> tools;
  for (const std::string_view tool : kSanitizers)
    if (o.sanitize && !is_done(tool))
      tools.emplace_back(tool, std::async(std::launch::async, [&o, tool] { return under_tool(o, tool); }));
  for (auto& [tool, running] : tools) {
    evidence.add(running.get());
    const json& row = evidence.rows().back();
    remark(o.machine.json, fmt::format("{:<8} {}  {}", row["passed"].get<bool>() ? "passed" : "FAILED", tool,
                                       row["reason"].get<std::string>()));
  }
  const std::string table = table_of_cases(evidence.rows());
  evidence.finish(table);
  if (o.machine.json)
    print(json_text(evidence.document(), 1) + "\n");
  else
    print("\n" + table);
  for (const json& row : evidence.rows())
    if (!row["passed"].get<bool>()) return 1;
  return 0;
}

}  // namespace

void add_library_cases(CLI::App& library, int& exit_code) {
  auto o = std::make_shared<LibraryCasesOptions>();
  CLI::App* command = library.add_subcommand(
      "cases", "Run workloads through heed_plan_create and heed_plan_run and compare every output with the oracle");
  o->machine.add_to(*command);
  command->add_option("--cases", o->cases, "A file with one workload a line, e.g. tests/cases/forward.txt");
  command->add_option("--shapes", o->shapes, "Workloads")->delimiter(',');
  command->add_option("--families", o->families, "Families whose default variants are built and run [all]")
      ->delimiter(',');
  command->add_option("--programs", o->programs,
                      "Build nothing: run what libheed chooses from this file of programs (heed programs build)");
  command->add_option("--seed", o->seed, "Seed of the inputs")->capture_default_str();
  command->add_flag(
      "--sanitize", o->sanitize,
      "Then run everything again under each of compute-sanitizer's tools: memcheck, racecheck, initcheck, "
      "synccheck; needs an NVIDIA GPU");
  command->add_option("--sanitize-limit", o->sanitize_limit_s, "Seconds that one tool may take")
      ->capture_default_str()
      ->check(above_zero());
  CLI::Option* evidence = command->add_option("--evidence", o->evidence, "Write a row of each tool to this JSON file");
  command->add_flag("--resume", o->resume, "Keep the rows of tools that this file has, and run the others")
      ->needs(evidence);
  command->footer(
      "Exit code 0 when every case that is not refused passes, under every tool.\n"
      "Examples:\n"
      "  heed library cases --cases tests/cases/forward.txt --device cpu\n"
      "  heed library cases --cases tests/cases/forward.txt --sanitize --evidence library_cases.json");
  command->callback([o, &exit_code] { exit_code = cases(*o); });
}

}  // namespace heed::cli
