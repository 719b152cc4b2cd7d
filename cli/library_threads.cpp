// heed library threads: many threads that run plans on streams of their own
#include <fmt/format.h>

#include "base/files.hpp"
#include "cli/library.hpp"
#include "conformance/stress.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

// Ragged tiles, grouped heads and a mask for the families of many rows; a handful of rows for those that split keys.
const std::vector<std::string> kShapes = {"b2h8hkv2l300k700d64:bf16:causal_bottom_right",
                                          "b2h8hkv2l4k700d64:bf16:causal_bottom_right"};

struct LibraryThreadsOptions {
  MachineOptions machine;
  std::vector<std::string> shapes = kShapes;
  conformance::StressOptions stress;
  std::string evidence;
};

json row_of(const conformance::StressResult& r) {
  return {{"workload", r.workload}, {"variant", r.variant},   {"threads", r.threads}, {"runs", r.runs},
          {"looks", r.looks},       {"differed", r.differed}, {"failure", r.failure}, {"passed", r.failure.empty()}};
}

std::string threads_text(const json& rows) {
  report::Table table({"family", "workload", "threads", "runs", "results compared", "differed", "verdict"});
  table.align_left(1);
  table.align_left(6);
  for (const json& row : rows) {
    const auto variant = row["variant"].get<std::string>();
    table.add({variant.substr(0, variant.find(':')), row["workload"].get<std::string>(),
               std::to_string(row["threads"].get<int>()), std::to_string(row["runs"].get<std::int64_t>()),
               std::to_string(row["looks"].get<std::int64_t>()), std::to_string(row["differed"].get<std::int64_t>()),
               row["passed"].get<bool>() ? "passed" : "FAILED: " + row["failure"].get<std::string>().substr(0, 100)});
  }
  return table.str();
}

// A plan of each family for each shape that it runs.
std::vector<std::unique_ptr<conformance::CheckedPlan>> plans_of(const LibraryThreadsOptions& o,
                                                                const DeviceFacts& device,
                                                                std::vector<std::string>& images) {
  const auto builder = o.machine.builder();
  struct Job {
    Workload workload;
    std::string variant;
    std::future<jit::BuildOutcome> build;
  };
  std::vector<Job> jobs;
  for (const std::string& shape : o.shapes) {
    const Workload w = parse_workload(shape);
    for (const Family* family : searched_families(w, device)) {
      if (family->refuses(w, device)) continue;
      const Variant variant = make_variant(*family, family->default_config(w, device), w);
      jobs.push_back({w, describe(variant), builder->start(jit::request_for(variant, w, device))});
    }
  }
  if (jobs.empty()) throw Error(ErrorCode::unsupported, "no family runs these workloads on this device");
  std::vector<std::unique_ptr<conformance::CheckedPlan>> plans;
  for (Job& job : jobs) {
    const jit::BuildOutcome built = job.build.get();
    check_interrupt();
    if (!built.artifact) throw Error(ErrorCode::build_failed, built.log, job.variant);
    images.push_back(read_file(built.artifact->path, ErrorCode::cache));
    plans.push_back(std::make_unique<conformance::CheckedPlan>(
        job.workload, device.kind, conformance::Program{job.variant, images.back(), {}, 0}, plans.size() + 1));
  }
  return plans;
}

int threads(const LibraryThreadsOptions& o) {
  const DeviceFacts device = o.machine.choose();
  GrowingEvidence evidence(o.evidence, "library_threads", device);
  std::vector<std::string> images;  // a plan keeps what it needs of one
  const auto plans = plans_of(o, device, images);
  if (static_cast<std::size_t>(o.stress.threads) < plans.size())
    throw Error(ErrorCode::usage,
                fmt::format("{} threads cannot run {} plans; give --threads {} or fewer --shapes", o.stress.threads,
                            plans.size(), plans.size()),
                std::to_string(o.stress.threads));
  evidence.set("options", {{"threads", o.stress.threads},
                           {"streams", o.stress.streams},
                           {"seconds", o.stress.seconds},
                           {"runs_of_a_round", o.stress.runs_of_a_round}});
  remark(o.machine.json, fmt::format("{} threads with {} streams each run {} plans for {:.0f} s on {}",
                                     o.stress.threads, o.stress.streams, plans.size(), o.stress.seconds, device.name));
  bool passed = true;
  const auto results = conformance::stress(plans, o.stress, [] { return interrupted(); });
  for (const conformance::StressResult& result : results) {
    passed = passed && result.failure.empty();
    evidence.add(row_of(result));
  }
  check_interrupt();
  const std::string table = threads_text(evidence.rows());
  evidence.finish(table);
  print(o.machine.json ? json_text(evidence.document(), 1) + "\n" : "\n" + table);
  return passed ? 0 : 1;
}

}  // namespace

void add_library_threads(CLI::App& library, int& exit_code) {
  auto o = std::make_shared<LibraryThreadsOptions>();
  CLI::App* command = library.add_subcommand(
      "threads", "Run plans from many threads, each on streams of its own, and compare results byte for byte");
  o->machine.add_to(*command);
  command->add_option("--shapes", o->shapes, "Workloads; each family that runs one has a plan for it")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--threads", o->stress.threads, "Threads; thread i runs plan i modulo their number")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--streams", o->stress.streams, "Streams of each thread, with tensors and a workspace each")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--seconds", o->stress.seconds, "How long")->capture_default_str()->check(above_zero());
  command->add_option("--round", o->stress.runs_of_a_round, "Runs of a stream between two looks at its results")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--evidence", o->evidence, "Write a row of each plan to this JSON file");
  command->footer(
      "Exit code 0 when every result is that of a run by itself, which the oracle has passed.\n"
      "Example:\n  heed library threads --seconds 60 --evidence library_threads.json");
  command->callback([o, &exit_code] { exit_code = threads(*o); });
}

}  // namespace heed::cli
