// heed insights: what single changes of kernels were seen to do, and what that says of a workload
#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "cli/command.hpp"
#include "insights/harvest.hpp"
#include "insights/insight.hpp"
#include "json/text.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct InsightsOptions {
  StoreOptions store;
  std::string shape;
  std::string family;
  std::string arch;
  std::string bound;
  std::string change;
  std::string file;
  int most = 20;
  bool json = false;
};

json json_of(const insights::Insight& insight) {
  json observations = json::array();
  for (const store::ObservationRecord& one : insight.observations) observations.push_back(store::to_json(one));
  return {{"family", insight.family},     {"change", insight.change},          {"sentence", insight.sentence},
          {"expected", insight.expected}, {"weight", insight.weight},          {"in_favour", insight.in_favour},
          {"against", insight.against},   {"without_effect", insight.without}, {"observations", observations}};
}

// Every family and place of an observation where none is named: then each observation is nearest to itself.
std::vector<insights::Insight> wanted(const InsightsOptions& o, store::Store& store) {
  std::optional<std::string> family;
  if (!o.family.empty()) family = find_family(o.family).name();
  const std::vector<store::ObservationRecord> all = store::observations(store, family);
  std::vector<insights::Insight> found;
  std::vector<std::string> families;
  for (const store::ObservationRecord& one : all)
    if (std::find(families.begin(), families.end(), one.family) == families.end()) families.push_back(one.family);
  for (const std::string& name : families) {
    std::vector<store::ObservationRecord> of_family;
    for (const store::ObservationRecord& one : all)
      if (one.family == name) of_family.push_back(one);
    insights::Place place{.family = name,
                          .workload = parse_workload(o.shape.empty() ? of_family.back().workload : o.shape),
                          .arch = o.arch.empty() ? of_family.back().arch : o.arch,
                          .bound = o.bound};
    for (insights::Insight& insight : insights::insights_for(of_family, place)) found.push_back(std::move(insight));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::abs(std::log(a.expected)) > std::abs(std::log(b.expected));
  });
  return found;
}

void list(const InsightsOptions& o) {
  const auto store = o.store.open(store::Access::read_only);
  std::vector<insights::Insight> found = wanted(o, *store);
  if (static_cast<int>(found.size()) > o.most) found.resize(static_cast<std::size_t>(o.most));
  if (o.json) {
    json all = json::array();
    for (const insights::Insight& insight : found) all.push_back(json_of(insight));
    print(json_text(json{{"insights", all}}, 1) + "\n");
    return;
  }
  if (found.empty()) print("no insights; heed insights harvest takes them from the runs of the database\n");
  for (const insights::Insight& insight : found)
    print(fmt::format("{:+6.1f}%  {:<22} {}\n", 100 * (insight.expected - 1), insight.family, insight.sentence));
}

void why(const InsightsOptions& o) {
  const auto store = o.store.open(store::Access::read_only);
  std::vector<insights::Insight> found = wanted(o, *store);
  std::erase_if(found, [&](const insights::Insight& one) { return one.change != o.change; });
  if (found.empty())
    throw Error(ErrorCode::usage,
                fmt::format("no insight is about \"{}\"; heed insights list --json prints the changes that are known",
                            o.change),
                o.change);
  if (o.json) {
    json all = json::array();
    for (const insights::Insight& insight : found) all.push_back(json_of(insight));
    print(json_text(json{{"insights", all}}, 1) + "\n");
    return;
  }
  for (const insights::Insight& insight : found) {
    print(fmt::format("{}: {}\nexpected {:+.1f}%, from {} observations:\n", insight.family, insight.sentence,
                      100 * (insight.expected - 1), insight.observations.size()));
    for (const store::ObservationRecord& one : insight.observations)
      print(fmt::format("  {:.4f} [{:.4f}, {:.4f}]  {}  {}  bound {} -> {}\n    {}\n", one.ratio, one.low, one.high,
                        one.workload, one.device, one.bound_before.empty() ? "unknown" : one.bound_before,
                        one.bound_after.empty() ? "unknown" : one.bound_after, one.origin));
    for (const store::ObservationRecord& one : insight.observations)
      if (!one.diff.empty()) {
        print(one.diff + "\n");
        break;
      }
  }
}

void print_added(const InsightsOptions& o, std::size_t seen, std::size_t added) {
  if (o.json)
    print(json_text(json{{"observations", seen}, {"added", added}}, 1) + "\n");
  else
    print(fmt::format("{} observations, {} of them new\n", seen, added));
}

void harvest(const InsightsOptions& o) {
  const auto store = o.store.open(store::Access::read_write);
  std::size_t seen = 0;
  std::size_t added = 0;
  for (const store::RunRecord& run : store->runs())
    for (const store::ObservationRecord& one : insights::harvest(run, store->trials(run.id))) {
      ++seen;
      added += store::add_observation(*store, one) ? 1 : 0;
    }
  print_added(o, seen, added);
}

void write(const InsightsOptions& o) {
  const auto store = o.store.open(store::Access::read_only);
  json all = json::array();
  for (const store::ObservationRecord& one : store::observations(*store)) all.push_back(store::to_json(one));
  const std::size_t count = all.size();
  write_file_atomically(o.file, json_text(json{{"observations", std::move(all)}}, 1) + "\n", ErrorCode::store);
  if (o.json)
    print(json_text(json{{"output", o.file}, {"observations", count}}, 1) + "\n");
  else
    print(fmt::format("{}: {} observations\n", o.file, count));
}

void read(const InsightsOptions& o) {
  const json document = parse_json(read_file(o.file, ErrorCode::usage));
  if (!document.is_object() || !document.contains("observations") || !document["observations"].is_array())
    throw Error(ErrorCode::usage, fmt::format("{} is no file of insights; heed insights export writes one", o.file),
                o.file);
  // All are read before any is kept.
  std::vector<store::ObservationRecord> all;
  for (const json& one : document["observations"]) all.push_back(store::observation_from_json(one));
  const auto store = o.store.open(store::Access::read_write);
  std::size_t added = 0;
  for (const store::ObservationRecord& one : all) added += store::add_observation(*store, one) ? 1 : 0;
  print_added(o, all.size(), added);
}

}  // namespace

void add_insights(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto o = std::make_shared<InsightsOptions>();
  CLI::App* command = app.add_subcommand(
      "insights",
      "Effects of single changes of kernels on speed, where each was measured, and those to expect elsewhere");
  command->require_subcommand(1);
  const auto subcommand = [&](const char* name, const char* help, const char* example,
                              void (*call)(const InsightsOptions&)) {
    CLI::App* one = command->add_subcommand(name, help);
    one->footer(fmt::format("Example:\n  heed insights {}", example));
    o->store.add_to(*one);
    one->add_flag("--json", o->json, "Print JSON");
    one->callback([o, call] { call(*o); });
    return one;
  };
  const auto places = [&](CLI::App* one) {
    one->add_option("--shape", o->shape, "Workload to judge observations for [that of the last observation]");
    one->add_option("--family", o->family, "Kernel family [all]");
    one->add_option("--arch", o->arch, "Architecture to judge for, e.g. sm_90a [that of the last observation]");
    one->add_option("--bound", o->bound, "Bound of the kernel there, as heed profile names it [unknown]");
  };
  CLI::App* one = subcommand("list", "Insights by the gain or loss to expect at a workload",
                             "list --shape b1h8l512d64 --arch sm_90a", list);
  places(one);
  one->add_option("--most", o->most, "Lines to print")->capture_default_str()->check(above_zero());
  one = subcommand("why", "The observations behind an insight", "why \"tile_rows 4 -> 8\"", why);
  places(one);
  one->add_option("change", o->change, "The change, e.g. \"tile_rows 4 -> 8\"")->required();
  subcommand("harvest", "Take the observations of all runs of the database again; runs add theirs when they end",
             "harvest --db team.db", harvest);
  one = subcommand("export", "Write all observations to a JSON file", "export insights.json", write);
  one->add_option("file", o->file, "File to write")->required();
  one = subcommand("import", "Add the observations of a file that another machine exported", "import insights.json",
                   read);
  one->add_option("file", o->file, "File to read")->required();
  command->footer(
      "Examples:\n"
      "  heed insights list --shape b1h8l512d64 --arch sm_90a\n"
      "  heed insights why \"tile_rows 4 -> 8\"\n"
      "  heed insights export insights.json");
}

}  // namespace heed::cli
