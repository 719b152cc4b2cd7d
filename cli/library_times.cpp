// heed library times: a run through libheed beside the same launch in a worker, and beside the arena's time
#include <fmt/format.h>

#include <cmath>

#include "base/files.hpp"
#include "base/random.hpp"
#include "cli/library.hpp"
#include "conformance/plan_block.hpp"
#include "json/fields.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/table.hpp"
#include "variant/renames.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct LibraryTimesOptions {
  MachineOptions machine;
  std::vector<std::string> shapes;
  std::string arena;
  std::string evidence;
  double limit = 0.01;
};

struct Wanted {
  Workload workload;
  std::string variant;
  double arena_us = 0;  // 0: the arena has not measured it
};

// Of an arena's evidence the rows of warm graphs; on a CPU these are blocks of calls.
std::vector<Wanted> wanted_of_arena(const std::string& path, const DeviceFacts& device) {
  const json arena = parse_json(read_file(path, ErrorCode::usage));
  const auto broken = [&](const std::string& what) {
    return Error(ErrorCode::usage, fmt::format("{} {}; give a file that python -m heed.arena wrote", path, what), path);
  };
  if (!arena.is_object() || fields::text_of(arena, "what") != "arena" || !arena.contains("rows"))
    throw broken("is no evidence of an arena");
  if (const std::string there = fields::text_of(arena, "device"); there != device.name)
    throw broken(
        fmt::format("was measured on {}, and this is {}", there.empty() ? "another device" : there, device.name));
  std::vector<Wanted> wanted;
  for (const json& row : arena["rows"])
    if (fields::text_of(row, "mode") == "graph_warm" && row.contains("heed_us") && row.contains("config"))
      wanted.push_back({parse_workload(fields::text_of(row, "workload")),
                        with_current_names(fields::text_of(row, "config")), fields::number(row, "heed_us")});
  if (wanted.empty()) throw broken("has no row of warm graphs with a time of Heed's");
  return wanted;
}

json measured(const Wanted& wanted, const LibraryTimesOptions& o, jit::Builder& builder, const DeviceFacts& device) {
  const Workload& w = wanted.workload;
  trial::TrialRunner trial_runner(w, device, builder, nullptr, o.machine.trial_options());
  const Variant variant = admitted(wanted.variant, w, device);
  const trial::Built built = trial_runner.build(variant);
  const std::string image = read_file(built.artifact.path, ErrorCode::cache);
  const measure::Block worker = trial_runner.standalone_block(built);
  const measure::TimedSets sets(w, trial_runner.timing(), LaunchMemory{}, fresh_seed());
  const int threads = device.kind == DeviceKind::cpu ? static_cast<int>(variant.plan(w, device).threads) : 0;
  const measure::Block library =
      conformance::plan_block(sets, device, conformance::Program{describe(variant), image, {}, threads});
  (void)worker();
  (void)library();
  measure::PairOptions options = trial_runner.options().final_pair;
  const measure::PairResult pair = measure::measure_pair(worker, library, options);
  json row = {{"workload", to_string(w)},
              {"variant", variant.id()},
              {"config", describe(variant)},
              {"worker_us", pair.base_median_us},
              {"library_us", pair.trial_median_us},
              {"ratio", record::to_json(pair.ratio)},
              {"samples", record::samples_json(pair)}};
  // Times of libheed over those of the worker, less 1.
  const double beyond = 1 / pair.ratio.value - 1;
  row["difference"] = beyond;
  bool passed = std::abs(beyond) <= o.limit;
  if (wanted.arena_us > 0) {
    const double of_arena = wanted.arena_us / pair.base_median_us - 1;
    row["arena_us"] = wanted.arena_us;
    row["arena_difference"] = of_arena;
    passed = passed && std::abs(of_arena) <= o.limit;
  }
  row["passed"] = passed;
  return row;
}

std::string times_text(const json& rows) {
  report::Table table({"workload", "worker us", "libheed us", "worker / libheed", "95% interval", "difference",
                       "arena us", "difference", "verdict"});
  table.align_left(8);
  const auto percent = [](double share) { return fmt::format("{:+.2f}%", 100 * share); };
  for (const json& row : rows) {
    const json& ratio = row["ratio"];
    const bool has_arena = row.contains("arena_us");
    table.add({row["workload"].get<std::string>(), fmt::format("{:.3f}", row["worker_us"].get<double>()),
               fmt::format("{:.3f}", row["library_us"].get<double>()),
               fmt::format("{:.4f}", ratio["value"].get<double>()),
               fmt::format("[{:.4f}, {:.4f}]", ratio["low"].get<double>(), ratio["high"].get<double>()),
               percent(row["difference"].get<double>()),
               has_arena ? fmt::format("{:.3f}", row["arena_us"].get<double>()) : "-",
               has_arena ? percent(row["arena_difference"].get<double>()) : "-",
               row["passed"].get<bool>() ? "passed" : "FAILED"});
  }
  return table.str();
}

int times(const LibraryTimesOptions& o) {
  const DeviceFacts device = o.machine.choose();
  std::vector<Wanted> wanted;
  if (!o.arena.empty()) wanted = wanted_of_arena(o.arena, device);
  for (const std::string& shape : o.shapes) wanted.push_back({parse_workload(shape), std::string(kAutomatic), 0});
  if (wanted.empty())
    throw Error(ErrorCode::usage, "nothing to time: give --shapes, or --arena with what python -m heed.arena wrote");
  for (const Wanted& one : wanted)
    if (one.workload.has_features())
      throw Error(ErrorCode::unsupported,
                  fmt::format("{} has features, whose calls the arena times apart; name a shape without",
                              to_string(one.workload)),
                  to_string(one.workload));
  GrowingEvidence evidence(o.evidence, "library_times", device);
  evidence.set("limit", o.limit);
  const auto builder = o.machine.builder();
  bool passed = true;
  for (const Wanted& one : wanted) {
    check_interrupt();
    evidence.add(measured(one, o, *builder, device));
    const json& row = evidence.rows().back();
    passed = passed && row["passed"].get<bool>();
    remark(o.machine.json,
           fmt::format("{}/{} {}: worker {:.3f} us, libheed {:.3f} us", evidence.rows().size(), wanted.size(),
                       to_string(one.workload), row["worker_us"].get<double>(), row["library_us"].get<double>()));
  }
  const std::string table = times_text(evidence.rows());
  evidence.finish(table);
  print(o.machine.json ? json_text(evidence.document(), 1) + "\n" : "\n" + table);
  return passed ? 0 : 1;
}

}  // namespace

void add_library_times(CLI::App& library, int& exit_code) {
  auto o = std::make_shared<LibraryTimesOptions>();
  CLI::App* command = library.add_subcommand(
      "times",
      "Time runs through libheed beside the same launches in a worker, in pairs, and beside the arena's times");
  o->machine.add_to(*command);
  command->add_option("--shapes", o->shapes, "Workloads, for the variant that Heed chooses")->delimiter(',');
  command->add_option(
      "--arena", o->arena,
      "Evidence that python -m heed.arena wrote on this machine: its workloads and variants, and its times "
      "of warm graphs, are compared too");
  command->add_option("--limit", o->limit, "The largest difference that passes, as a share of the worker's time")
      ->capture_default_str()
      ->check(above_zero());
  command->add_option("--evidence", o->evidence, "Write a row of each workload to this JSON file");
  command->footer(
      "Exit code 0 when no time is further from the worker's than the limit.\n"
      "Examples:\n"
      "  heed library times --shapes b1h8l512d64,b4h16l512d64\n"
      "  heed library times --arena evidence/h100/arena.json --evidence library_times.json");
  command->callback([o, &exit_code] { exit_code = times(*o); });
}

}  // namespace heed::cli
