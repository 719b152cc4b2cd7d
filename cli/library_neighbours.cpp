// heed library neighbours: what libheed dispatches for workloads that no search was made for, beside the best that a
// search of the very workload finds
#include <fmt/format.h>

#include <set>

#include "api/plan.hpp"
#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/library.hpp"
#include "dispatch/tuned_table.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/table.hpp"
#include "variant/renames.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct LibraryNeighboursOptions {
  MachineOptions machine;
  std::string champions;
  std::string programs;
  std::string evidence;
  double limit = 0.03;
};

// What a search of a workload on this device ended with.
struct Local {
  Workload workload;
  std::string best;  // family:knob=value,..., or empty: its default, which nothing beat
};

std::vector<Local> locals_of(const LibraryNeighboursOptions& o, const DeviceFacts& device) {
  const auto table = dispatch::TunedTable::parse(read_file(o.champions, ErrorCode::usage), o.champions);
  std::vector<Local> locals;
  for (const dispatch::TunedEntry& entry : table.entries())
    if (entry.arch == device.arch && entry.provenance.device == device.name)
      locals.push_back({parse_workload(entry.workload), entry.variant});
  if (locals.empty())
    throw Error(ErrorCode::usage,
                fmt::format("{} holds no search on {} ({}); search the workloads here (heed evolve) and write what was "
                            "found with heed champions",
                            o.champions, device.name, device.arch),
                o.champions);
  return locals;
}

api::Choice dispatched(const Workload& workload, const LibraryNeighboursOptions& o, const DeviceFacts& device) {
  const heed_problem dense = api::problem_of(workload, device.kind);
  api::Problem problem = api::read_problem(&dense);
  problem.workload = workload;
  api::Options options;
  options.programs = o.programs;
  options.book = "";  // what this machine found since is not what is judged
  return api::decide(problem, options, device).choice;
}

json measured(const Local& local, const LibraryNeighboursOptions& o, jit::Builder& builder, const DeviceFacts& device) {
  const Workload& w = local.workload;
  const api::Choice choice = dispatched(w, o, device);
  if (choice.step == dispatch::Step::champion || choice.step == dispatch::Step::book)
    throw Error(ErrorCode::usage,
                fmt::format("{} is no unseen workload: {}; leave it out of the searches", to_string(w), choice.reason),
                to_string(w));
  const Variant best =
      admitted(local.best.empty() ? std::string(kAutomatic) : with_current_names(local.best), w, device);
  const Variant given = admitted(describe(choice.variant), w, device);
  json row = {{"workload", to_string(w)},
              {"step", to_string(choice.step)},
              {"reason", choice.reason},
              {"variant", given.id()},
              {"config", describe(given)},
              {"best", best.id()},
              {"best_config", describe(best)},
              {"best_is", local.best.empty() ? "the default, which no trial beat" : "the search's champion"}};
  if (given.id() == best.id()) {
    row.update({{"behind", 0.0}, {"passed", true}, {"verdict", "the same program"}});
    return row;
  }
  trial::TrialRunner trial_runner(w, device, builder, nullptr, o.machine.trial_options());
  trial_runner.set_base(trial_runner.build(best));
  const trial::Outcome outcome =
      trial_runner.judge(given, builder.build(trial_runner.request_for(given)), fresh_seed() >> 1,
                         trial_runner.options().final_pair, /*fresh=*/true);
  row["verdict"] = outcome.ok() ? "measured" : fmt::format("{}: {}", to_string(outcome.verdict), outcome.reason);
  if (!outcome.ok()) {
    row["passed"] = false;
    return row;
  }
  const double behind = 1 / outcome.pair.ratio.value - 1;
  row.update({{"best_us", outcome.pair.base_median_us},
              {"us", outcome.pair.trial_median_us},
              {"ratio", record::to_json(outcome.pair.ratio)},
              {"samples", record::samples_json(outcome.pair)},
              {"behind", behind},
              {"passed", behind <= o.limit}});
  return row;
}

std::string text_of(const json& rows) {
  report::Table table({"workload", "taken by", "best is", "us", "best us", "behind", "95% interval", "verdict"});
  for (const std::size_t column : {1, 2, 7}) table.align_left(column);
  for (const json& row : rows) {
    const bool has_times = row.contains("us");
    const auto share = [&](const char* end) { return 100 * (1 / row["ratio"][end].get<double>() - 1); };
    table.add({row["workload"].get<std::string>(), row["step"].get<std::string>(), row["best_is"].get<std::string>(),
               has_times ? fmt::format("{:.2f}", row["us"].get<double>()) : "-",
               has_times ? fmt::format("{:.2f}", row["best_us"].get<double>()) : "-",
               row.contains("behind") ? fmt::format("{:+.1f}%", 100 * row["behind"].get<double>()) : "-",
               has_times ? fmt::format("[{:+.1f}%, {:+.1f}%]", share("high"), share("low")) : "-",
               row["passed"].get<bool>() ? "passed" : "FAILED: " + row["verdict"].get<std::string>().substr(0, 80)});
  }
  return table.str();
}

int neighbours(const LibraryNeighboursOptions& o) {
  const DeviceFacts device = o.machine.choose();
  const std::vector<Local> locals = locals_of(o, device);
  GrowingEvidence evidence(o.evidence, "library_neighbours", device);
  evidence.set("limit", o.limit);
  const auto builder = o.machine.builder();
  bool passed = true;
  for (const Local& local : locals) {
    check_interrupt();
    evidence.add(measured(local, o, *builder, device));
    const json& row = evidence.rows().back();
    passed = passed && row["passed"].get<bool>();
    remark(o.machine.json, fmt::format("{}/{} {}: {}", evidence.rows().size(), locals.size(), to_string(local.workload),
                                       row["verdict"].get<std::string>()));
  }
  const std::string table = text_of(evidence.rows());
  evidence.finish(table);
  print(o.machine.json ? json_text(evidence.document(), 1) + "\n" : "\n" + table);
  return passed ? 0 : 1;
}

}  // namespace

void add_library_neighbours(CLI::App& library, int& exit_code) {
  auto o = std::make_shared<LibraryNeighboursOptions>();
  CLI::App* command = library.add_subcommand(
      "neighbours",
      "Measure what libheed dispatches for workloads it has no champion of beside the best of their searches");
  o->machine.add_to(*command);
  command
      ->add_option("--champions", o->champions,
                   "What searches of these workloads on this device found, as heed champions writes it")
      ->required();
  command->add_option("--programs", o->programs, "The file of programs [HEED_PROGRAMS, else the library's own]");
  command->add_option("--limit", o->limit, "How far behind the local best may be, as a share of its time")
      ->capture_default_str()
      ->check(above_zero());
  command->add_option("--evidence", o->evidence, "Write a row of each workload to this JSON file");
  command->footer(
      "The local best is the champion of the workload's own search, or its default where no trial beat it. Exit code 0 "
      "when "
      "none is further behind than the limit.\n"
      "Example, of the workloads in tests/cases/neighbours.txt:\n"
      "  heed champions --db runs.db -o found.json\n"
      "  heed library neighbours --champions found.json --evidence library_neighbours.json");
  command->callback([o, &exit_code] { exit_code = neighbours(*o); });
}

}  // namespace heed::cli
