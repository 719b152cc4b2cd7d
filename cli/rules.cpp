// heed rules: the tables behind the families' defaults, and whether they still hold
#include <fmt/format.h>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"
#include "report/table.hpp"
#include "trial/rule_check.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

struct RulesOptions {
  MachineOptions machine;
  std::string family;
  std::string rule;
  bool measure = false;
  std::string evidence;
};

std::vector<const Family*> families_with_rules() {
  std::vector<const Family*> found;
  for (const Family* family : families())
    if (!family->rules().empty()) found.push_back(family);
  return found;
}

const Family& chosen_family(const std::string& name) {
  const Family& family = find_family(name);
  if (!family.rules().empty()) return family;
  std::vector<std::string> names;
  for (const Family* one : families_with_rules()) names.emplace_back(one->name());
  throw Error(ErrorCode::usage,
              fmt::format("the default of {} is decided by no table; those of {} are", name, join(names, ", ")), name);
}

void expect_rule(const Family& family, const std::string& rule) {
  std::vector<std::string_view> names;
  for (const DefaultRule& one : family.rules()) {
    if (rule.empty() || one.name == rule) return;
    names.push_back(one.name);
  }
  throw Error(ErrorCode::usage, fmt::format("{} has no rule {}: {}", family.name(), rule, one_of(rule, names)), rule);
}

json rules_json(const Family& family, const std::string& rule) {
  json all = json::array();
  for (const DefaultRule& one : family.rules()) {
    if (!rule.empty() && one.name != rule) continue;
    json rows = json::array();
    for (const DefaultRule::Row& row : one.rows) rows.push_back({{"knobs", row.knobs}, {"provenance", row.provenance}});
    all.push_back({{"family", family.name()}, {"rule", one.name}, {"rows", rows}});
  }
  return all;
}

std::string rules_text(const Family& family, const std::string& rule) {
  std::string text = std::string(family.name()) + "\n";
  for (const DefaultRule& one : family.rules()) {
    if (!rule.empty() && one.name != rule) continue;
    text += fmt::format("  {}: the first row that holds decides\n", one.name);
    for (std::size_t row = 0; row < one.rows.size(); ++row)
      text += fmt::format("    {}  {}\n       {}\n", row + 1, one.rows[row].knobs, one.rows[row].provenance);
  }
  return text;
}

void list(const RulesOptions& o) {
  if (o.family.empty() && !o.rule.empty())
    throw Error(ErrorCode::usage, "--rule needs the family whose table it is: heed rules FAMILY --rule NAME", o.rule);
  std::vector<const Family*> chosen = families_with_rules();
  if (!o.family.empty()) chosen = {&chosen_family(o.family)};
  json all = json::array();
  std::string text;
  for (const Family* family : chosen) {
    expect_rule(*family, o.rule);
    for (json& one : rules_json(*family, o.rule)) all.push_back(std::move(one));
    text += (text.empty() ? "" : "\n") + rules_text(*family, o.rule);
  }
  print(o.machine.json ? json_text(json{{"rules", all}}, 1) + "\n" : text);
}

json reading_json(const trial::RuleReading& r, const DefaultRule& rule) {
  json one = {{"rule", r.rule},
              {"row", r.row + 1},
              {"other", r.other + 1},
              {"workload", to_string(r.workload)},
              {"knobs", rule.rows[r.row].knobs},
              {"other_knobs", rule.rows[r.other].knobs},
              {"config", r.variant},
              {"verdict", to_string(r.outcome.verdict)},
              {"heed_us", r.base_us},
              {"self_spread", r.self_spread}};
  if (!r.outcome.ok()) {
    one["reason"] = r.outcome.reason;
    return one;
  }
  one["other_us"] = r.outcome.pair.trial_median_us;
  one["ratio"] = record::to_json(r.outcome.pair.ratio);
  one["other_is_faster"] = r.other_is_faster;
  return one;
}

int measure(const RulesOptions& o) {
  if (o.family.empty())
    throw Error(ErrorCode::usage, "--measure needs a family: heed rules FAMILY --measure", "--measure");
  const Family& family = chosen_family(o.family);
  expect_rule(family, o.rule);
  if (!o.evidence.empty()) check_evidence_can_be_written(o.evidence);
  const DeviceFacts device = o.machine.choose();
  const std::vector<trial::RuleWorkload> workloads = trial::workloads_of_rules(family, device, o.rule);
  if (workloads.empty())
    throw Error(ErrorCode::unsupported,
                fmt::format("{} decides by these rows for no workload that runs on {}", family.name(), device.name),
                std::string(family.name()));
  const auto builder = o.machine.builder();
  const std::vector<DefaultRule> rules = family.rules();
  const auto rule_named = [&](const std::string& name) -> const DefaultRule& {
    for (const DefaultRule& one : rules)
      if (one.name == name) return one;
    throw Error(ErrorCode::internal, "a reading of a rule that the family does not have", name);
  };
  report::Table table({"workload", "rule", "row", "us", "other row", "ratio", "95% interval"});
  for (const std::size_t column : {1, 4}) table.align_left(column);
  json rows = json::array();
  int faster = 0;
  std::optional<Error> interruption;
  std::unique_ptr<trial::TrialRunner> trial_runner;
  for (std::size_t i = 0; i < workloads.size() && !interruption; ++i) {
    remark(o.machine.json, fmt::format("{}/{} {}", i + 1, workloads.size(), to_string(workloads[i].workload)));
    try {
      check_interrupt();
      auto next = std::make_unique<trial::TrialRunner>(workloads[i].workload, device, *builder, nullptr,
                                                       o.machine.trial_options(), trial_runner.get());
      trial_runner = std::move(next);
      trial::check_rules(*trial_runner, *builder, family, workloads[i], [&](const trial::RuleReading& r) {
        const DefaultRule& rule = rule_named(r.rule);
        rows.push_back(reading_json(r, rule));
        faster += r.other_is_faster ? 1 : 0;
        const measure::Ratio& ratio = r.outcome.pair.ratio;
        table.add({to_string(r.workload), r.rule, std::to_string(r.row + 1), fmt::format("{:.2f}", r.base_us),
                   fmt::format("{} {}", r.other + 1, rule.rows[r.other].knobs),
                   r.outcome.ok() ? fmt::format("{:.3f}{}", ratio.value, r.other_is_faster ? " faster" : "")
                                  : std::string(to_string(r.outcome.verdict)),
                   r.outcome.ok() ? fmt::format("[{:.4f}, {:.4f}]", ratio.low, ratio.high) : r.outcome.reason});
      });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::interrupted) throw;
      interruption = error;
    }
  }
  std::string text = table.str();
  text += faster == 0 ? fmt::format("\nNo other row is faster in {} readings.\n", rows.size())
                      : fmt::format("\nIn {} of {} readings another row is faster.\n", faster, rows.size());
  json evidence = report::evidence_header("rules", record::to_json(device), sources());
  evidence["family"] = family.name();
  evidence["complete"] = !interruption;
  evidence["rows"] = rows;
  evidence["table"] = text;
  if (!o.evidence.empty()) write_file_atomically(o.evidence, json_text(evidence, 1) + "\n", ErrorCode::store);
  print(o.machine.json ? json_text(evidence, 1) + "\n" : "\n" + text);
  if (interruption) throw Error(*interruption);
  return 0;
}

}  // namespace

void add_rules(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<RulesOptions>();
  CLI::App* command =
      app.add_subcommand("rules",
                         "The tables that decide the families' defaults, what they rest on, and whether they "
                         "still hold");
  command->add_option("family", o->family, "Family whose tables are printed or measured [all that have some]");
  command->add_option("--rule", o->rule, "One table of the family [all]");
  command->add_flag("--measure", o->measure,
                    "Measure again: at the workloads that a row names, the default beside what each other row of the "
                    "table would make of it");
  command->add_option("--evidence", o->evidence, "Write what was measured as evidence to this JSON file");
  o->machine.add_to(*command);
  command->footer(
      "A ratio is the default's time over that with the other row: above 1 the other row is faster. Rows that make the "
      "same\n"
      "variant, or an illegal one, are left out.\n"
      "Examples:\n"
      "  heed rules fwd_sm90_persistent\n"
      "  heed rules fwd_cpu --measure --device cpu --evidence rules.json");
  command->callback([o, &exit_code] {
    if (!o->measure && !o->evidence.empty())
      throw Error(ErrorCode::usage, "--evidence goes with --measure: nothing was measured", o->evidence);
    if (o->measure)
      exit_code = measure(*o);
    else
      list(*o);
  });
}

}  // namespace heed::cli
