// heed landscape, heed simulate: every point of a reduced space, and searches on it without a device
#include <fmt/format.h>

#include <cmath>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/champion_builds.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "evolve/shared_search.hpp"
#include "json/text.hpp"
#include "landscape/record.hpp"
#include "landscape/simulate.hpp"
#include "process/interrupt.hpp"
#include "report/evidence.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

using landscape::Landscape;
using nlohmann::json;

Landscape read_landscape(const std::string& path) {
  const json document = parse_json(read_file(path, ErrorCode::usage));
  if (document.is_discarded()) throw Error(ErrorCode::usage, fmt::format("{} is no JSON", path), path);
  return landscape::landscape_from_json(document, path);
}

struct RecordOptions {
  MachineOptions machine;
  WorkloadOptions workload;
  std::string family;
  std::string knobs;
  std::string output;
  std::string arch;
  bool verify = false;
  bool count = false;
};

bool are_of_one_space(const Landscape& a, const Landscape& b) {
  const auto names = [](const Landscape& l) {
    std::vector<std::string> all;
    for (const Knob& knob : l.knobs) all.push_back(knob.name);
    return all;
  };
  return a.workload == b.workload && a.family == b.family && a.device == b.device && a.others == b.others &&
         a.source_digest == b.source_digest && a.is_verified == b.is_verified && names(a) == names(b);
}

void record(const RecordOptions& o) {
  const Workload workload = o.workload.workload(std::nullopt);
  if (!o.arch.empty() && !o.count)
    throw Error(ErrorCode::usage, "--arch counts points without a device; it goes with --count alone", o.arch);
  const DeviceFacts device = o.arch.empty() ? o.machine.choose() : device_of_arch(o.arch);
  const Family& family = o.family.empty() ? default_family(workload, device) : find_family(o.family);
  if (const auto refusal = family.refuses(workload, device))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} cannot run {}: {}", family.name(), to_string(workload), *refusal),
                std::string(family.name()));
  Landscape l = landscape::landscape_of(family, workload, device,
                                        o.knobs.empty() ? std::vector<std::string>() : split(o.knobs, ','));
  l.is_verified = o.verify;
  if (o.count) {
    const std::size_t points = landscape::legal_points(l, workload, device).size();
    print(o.machine.json ? json_text(json{{"points", points}}, 1) + "\n" : fmt::format("{} legal points\n", points));
    return;
  }
  if (o.output.empty()) throw Error(ErrorCode::usage, "heed landscape writes a file; name it with --output");
  expect_writable(o.output, ErrorCode::store);
  if (std::filesystem::exists(o.output)) {
    Landscape before = read_landscape(o.output);
    if (!are_of_one_space(before, l))
      throw Error(ErrorCode::usage,
                  fmt::format("{} holds another landscape: of other knobs, another workload, device or other sources; "
                              "name another file",
                              o.output),
                  o.output);
    l.points = std::move(before.points);
  }
  const auto builder = o.machine.builder();
  trial::TrialRunner trial_runner(workload, device, *builder, nullptr, o.machine.trial_options());
  trial_runner.set_base(trial_runner.build(parse_variant(l.others, workload, device)));
  l.base_us = trial_runner.base_against_itself().pair.base_median_us;
  const auto keep = [&] { write_file_atomically(o.output, json_text(to_json(l), 1) + "\n", ErrorCode::store); };
  try {
    landscape::record(l, trial_runner, *builder, o.verify, [&](std::size_t done, std::size_t all) {
      keep();
      remark(o.machine.json, fmt::format("{} of {} points; the fastest {:.2f} us, the default {:.2f} us", done, all,
                                         l.best_us(), l.base_us));
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted)
      throw Error(ErrorCode::interrupted,
                  fmt::format("interrupted; {} holds what was measured, and the same command goes on", o.output));
    throw;
  }
  keep();
  if (o.machine.json)
    print(json_text(
              json{{"output", o.output}, {"points", l.points.size()}, {"best_us", l.best_us()}, {"base_us", l.base_us}},
              1) +
          "\n");
}

struct SimulateOptions {
  std::vector<std::string> files;
  std::string evidence;
  std::string searchers = "single,elite,islands,random,elite-diagnoses,elite-insights";
  std::string start = "default";
  int trials = 45;
  int seeds = 100;
  int population = 5;
  int under_way = evolve::kPlacesOfOneGpu;
  int drafts = 1;
  double noise = 0;
  double refused = 0;
  bool json = false;
};

json summary_json(const landscape::Summary& s) {
  return {{"searcher", s.searcher},       {"median", s.median},
          {"quartiles", {s.low, s.high}}, {"within_2_percent", s.within_2_percent},
          {"by_trial", s.by_trial},       {"of_all_seeds", s.of_all_seeds}};
}

std::string percent(double regret) {
  return std::isfinite(regret) ? fmt::format("{:.2f}%", 100 * regret) : std::string("none");
}

void simulate(const SimulateOptions& o) {
  if (!o.evidence.empty()) expect_writable(o.evidence, ErrorCode::store);
  std::vector<landscape::Searcher> searchers;
  const landscape::Start start = landscape::start_of(o.start);
  for (const std::string& name : split(o.searchers, ',')) {
    searchers.push_back(landscape::searcher_of(name, o.population));
    searchers.back().start = start;
    searchers.back().options.drafts = o.drafts;
    searchers.back().course = {.under_way = o.under_way, .noise = o.noise, .refused = o.refused};
  }
  json all = json::array();
  json evidence;
  std::string tables;
  std::vector<Landscape> landscapes;
  for (const std::string& file : o.files) landscapes.push_back(read_landscape(file));
  for (std::size_t i = 0; i < o.files.size(); ++i) {
    const std::string& file = o.files[i];
    const Landscape& l = landscapes[i];
    const landscape::Insights insights(landscapes, l);
    if (evidence.is_null()) evidence = report::evidence_header("simulation", l.device, {l.source_digest, {}});
    if (!o.evidence.empty() && evidence["device"] != l.device.at("name"))
      throw Error(ErrorCode::usage,
                  fmt::format("{} is of {}, the file before it of {}; an evidence file is of one device", file,
                              l.device.at("name").get<std::string>(), evidence["device"].get<std::string>()),
                  file);
    if (l.best() == nullptr) throw Error(ErrorCode::usage, fmt::format("no point of {} has a time", file), file);
    report::Table table(
        {"search", "median regret", "quartiles", "within 2%", "minus the first's, mean", "95% interval"});
    table.align_left(0);
    json rows = json::array();
    std::optional<landscape::Summary> first;
    for (const landscape::Searcher& searcher : searchers) {
      if (searcher.knowledge == landscape::Knowledge::insights && insights.empty()) continue;
      const landscape::Summary s =
          landscape::simulate(l, searcher, o.seeds, o.trials, &insights, [](int) { check_interrupt(); });
      rows.push_back(summary_json(s));
      std::string mean, interval;
      if (!first) {
        first = s;
      } else {
        const landscape::Difference d = landscape::difference_of(s, *first);
        rows.back()["minus_first"] = {{"mean", d.mean}, {"low", d.low}, {"high", d.high}};
        mean = percent(d.mean);
        interval = fmt::format("[{}, {}]", percent(d.low), percent(d.high));
      }
      table.add({s.searcher, percent(s.median), fmt::format("{} to {}", percent(s.low), percent(s.high)),
                 fmt::format("{:.0f}%", 100 * s.within_2_percent), mean, interval});
    }
    all.push_back({{"file", file},
                   {"workload", l.workload},
                   {"family", l.family},
                   {"device", l.device},
                   {"points", l.points.size()},
                   {"best_us", l.best_us()},
                   {"default_us", l.points.count(l.default_config) ? l.points.at(l.default_config).us : 0.0},
                   {"start", o.start},
                   {"trials", o.trials},
                   {"seeds", o.seeds},
                   {"population", o.population},
                   {"under_way", o.under_way},
                   {"drafts", o.drafts},
                   {"noise", o.noise},
                   {"refused", o.refused},
                   {"searches", rows}});
    const std::string text =
        fmt::format("{} of {}, {} points, the fastest {:.2f} us; {} trials from {}, {} seeds\n{}", l.workload, l.family,
                    l.points.size(), l.best_us(), o.trials,
                    start == landscape::Start::random ? "a random point" : "the default", o.seeds, table.str());
    if (!o.json) print(text + "\n");
    tables += (tables.empty() ? "" : "\n") + text;
  }
  if (!o.evidence.empty()) {
    evidence["rows"] = all;
    evidence["table"] = tables;
    write_file_atomically(o.evidence, json_text(evidence, 1) + "\n", ErrorCode::store);
  }
  if (o.json) print(json_text(json{{"simulations", all}}, 1) + "\n");
}

}  // namespace

void add_landscape(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<RecordOptions>();
  CLI::App* command = app.add_subcommand(
      "landscape",
      "Measure every point of a reduced space of a family, for heed simulate and other tuners (T4 format)");
  o->workload.add_shape_to(*command);
  o->machine.add_to(*command);
  command->add_option("--family", o->family, "Kernel family [the default for the workload]");
  command->add_option(
      "--knobs", o->knobs,
      "Knobs that vary, with commas between, each NAME or NAME=VALUE/VALUE; the others stay at the default");
  command->add_option("-o,--output", o->output, "File to write, or to go on with");
  command->add_flag("--verify", o->verify, "Let every point pass the gate before it is timed");
  command->add_flag("--count", o->count, "Only print how many legal points there are");
  command->add_option("--arch", o->arch, "With --count: of a GPU of this architecture, e.g. sm_90a, without one");
  command->footer(
      "Example:\n"
      "  heed landscape --shape b1h8l256d64:fp32 --family fwd_cpu --knobs block_m,block_n,tile_rows -o landscape.json");
  command->callback([o] { record(*o); });
}

void add_simulate(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Replay searches on recorded landscapes: how far behind the fastest point they end, without a device");
  command->add_option("files", o->files, "Files that heed landscape wrote")->required();
  command
      ->add_option("--searches", o->searchers,
                   "Searches to compare, with commas between: single, elite, islands, random, and the first three with "
                   "-diagnoses (mutations favour knobs that act on what bounds the parent) or -insights (they favour "
                   "changes that paid in the other files of the family)")
      ->capture_default_str();
  command
      ->add_option("--start", o->start, "First point of a search: default, as in a run, or random, drawn by the seed")
      ->capture_default_str();
  command->add_option("--trials", o->trials, "Trials of a search")->capture_default_str()->check(CLI::Range(1, 100000));
  command->add_option("--seeds", o->seeds, "Searches of each kind")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command->add_option("--population", o->population, "Elites kept, and trials a generation")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command
      ->add_option(
          "--under-way", o->under_way,
          "Trials under way at a time, none of which the next one rests on: as many as one GPU has; 0 for whole "
          "generations one after the other, as on a CPU")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  command->add_option("--drafts", o->drafts, "Drafts of a trial, of which the one that reads fastest is tried")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--noise", o->noise, "Relative standard deviation of one reading of a draft, as 0.01")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--refused", o->refused, "Share of the points that the gate refuses, whatever their drafts read")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--evidence", o->evidence, "Also write the result into this file, as evidence");
  command->add_flag("--json", o->json, "Print JSON");
  command->footer("Example:\n  heed simulate landscape.json --searches elite,random --seeds 100");
  command->callback([o] { simulate(*o); });
}

}  // namespace heed::cli
