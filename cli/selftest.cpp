// heed selftest
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "exploits/exploits.hpp"
#include "json/text.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"
#include "trial/false_alarms.hpp"

namespace heed::cli {
namespace {

constexpr int kComparisons = 200;

struct SelftestOptions {
  MachineOptions machine;
  int comparisons = 0;  // 0: the zoo
  std::vector<std::string> only;
  std::string evidence;
};

// Prints what a self-test found, as JSON or as text, and writes it as evidence where that was asked for.
void conclude(const SelftestOptions& o, const DeviceFacts& device, const std::string& what,
              const nlohmann::json& fields, const std::string& text, const std::string& table) {
  nlohmann::json all = report::evidence_header(what, record::to_json(device), sources());
  all.update(fields);
  all["table"] = table;
  if (!o.evidence.empty()) write_file_atomically(o.evidence, json_text(all, 1) + "\n", ErrorCode::store);
  print(o.machine.json ? json_text(all, 1) + "\n" : text);
}

std::string line_of(const exploits::SelftestRow& row) {
  const bool honest = row.expected == "ok";
  return fmt::format("{:<7} {:<20} {:<50} {}",
                     row.caught ? (honest ? "passed" : "caught") : (honest ? "REFUSED" : "MISSED"), row.name,
                     row.description, row.found);
}

int run_zoo(const SelftestOptions& o) {
  const bool as_json = o.machine.json;
  const DeviceFacts device = o.machine.choose();
  const auto builder = o.machine.builder();
  remark(as_json, fmt::format("running the exploit zoo on {}\n", device.name));
  const std::vector<exploits::SelftestRow> rows = exploits::run_selftest(
      device, *builder,
      [&](const exploits::SelftestRow& row) {
        remark(as_json, line_of(row));
        if (!row.caught)
          remark(as_json, fmt::format("        expected {}; {}", row.expected, split(row.reason, '\n').front()));
      },
      o.only);
  int failures = 0;
  int exploits = 0;
  nlohmann::json all = nlohmann::json::array();
  std::string table;
  for (const exploits::SelftestRow& row : rows) {
    if (!row.caught) ++failures;
    if (row.expected != "ok") ++exploits;
    table += line_of(row) + "\n";
    all.push_back({{"name", row.name},
                   {"description", row.description},
                   {"expected", row.expected},
                   {"found", row.found},
                   {"reason", row.reason},
                   {"caught", row.caught}});
  }
  const std::string summary =
      failures == 0
          ? fmt::format("\nAll {} exploits were caught and the honest kernels passed: results on this machine count.\n",
                        exploits)
          : fmt::format("\n{} of {} rows are not as they must be: do not trust results on this machine.\n", failures,
                        rows.size());
  conclude(o, device, "selftest", {{"rows", all}, {"failures", failures}}, summary, table + summary);
  return failures == 0 ? 0 : 1;
}

std::string false_alarms_text(const trial::FalseAlarms& found) {
  std::vector<double> values, lows, widths;
  for (const measure::Ratio& r : found.ratios) {
    values.push_back(r.value);
    lows.push_back(r.low);
    widths.push_back((r.high - r.low) / 2);
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return fmt::format(
      "kernel        {} at {}, {:.2f} us\n"
      "comparisons   {} with itself, in {:.0f} s\n"
      "ratios        median {:.4f}, from {:.4f} to {:.4f}; intervals of +-{:.4f}, the highest begins at {:.4f}\n"
      "margin        {:.4f}: how far from 1 it was seen beforehand\n"
      "called faster {} (at most {} may be)\n",
      found.variant, to_string(found.workload), found.us, found.ratios.size(), found.elapsed_s, measure::median(values),
      *least, *most, measure::median(widths), *std::max_element(lows.begin(), lows.end()), found.spread, found.faster,
      found.allowed());
}

int compare_with_itself(const SelftestOptions& o) {
  const DeviceFacts device = o.machine.choose();
  const auto builder = o.machine.builder();
  remark(o.machine.json, fmt::format("comparing an honest kernel with itself on {}\n", device.name));
  int done = 0;
  const trial::FalseAlarms found = trial::count_false_alarms(
      device, *builder, o.machine.trial_options(), o.comparisons, [&](const measure::Ratio& ratio) {
        if (++done % 20 == 0 || done == o.comparisons)
          remark(o.machine.json, fmt::format("{:>4}/{}  {:.4f} [{:.4f}, {:.4f}]", done, o.comparisons, ratio.value,
                                             ratio.low, ratio.high));
      });
  nlohmann::json ratios = nlohmann::json::array();
  for (const measure::Ratio& r : found.ratios) ratios.push_back(record::to_json(r));
  const nlohmann::json row = {{"workload", to_string(found.workload)},
                              {"variant", found.variant},
                              {"config", found.config},
                              {"mode", device.kind == DeviceKind::cuda ? "graph_warm" : "warm"},
                              {"heed_us", found.us},
                              {"comparisons", found.ratios.size()},
                              {"faster", found.faster},
                              {"allowed", found.allowed()},
                              {"self_spread", found.spread},
                              {"elapsed_s", found.elapsed_s},
                              {"ratios", ratios}};
  const std::string table = false_alarms_text(found);
  const nlohmann::json programs = {{found.variant, found.machine_code}};
  conclude(o, device, "selftest_aa", {{"rows", {row}}, {"programs", programs}, {"failures", found.passed() ? 0 : 1}},
           fmt::format("\n{}\n{}", table,
                       found.passed() ? "\"Faster\" means something on this machine.\n"
                                      : "Too many: do not trust \"faster\" on this machine.\n"),
           table);
  return found.passed() ? 0 : 1;
}

}  // namespace

void add_selftest(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<SelftestOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "Run kernels that cheat through the gate and the measurement: each one must be caught");
  o->machine.add_to(*command);
  CLI::Option* aa = command
                        ->add_option("--aa", o->comparisons,
                                     "Instead, compare an honest kernel with itself so many times: at most one in a "
                                     "hundred may be called faster [200]")
                        ->expected(0, 1)
                        ->default_str(std::to_string(kComparisons));
  CLI::Option* evidence =
      command->add_option("--evidence", o->evidence, "Write the result as evidence to this JSON file");
  command->add_option("--exploit", o->only, "Run this exploit alone; may be given several times [all]")
      ->excludes(aa)
      ->excludes(evidence);
  command->footer(
      "Examples:\n"
      "  heed selftest\n"
      "  heed selftest --aa 200 --evidence aa.json\n"
      "  heed selftest --exploit claims_to_be_done\n"
      "Exit code 0 when every exploit is caught and the honest kernel passes (--aa: when few enough comparisons are "
      "called faster), 1 otherwise.");
  command->callback([o, aa, &exit_code] {
    if (!o->evidence.empty()) expect_writable(o->evidence, ErrorCode::store);
    exit_code = aa->count() > 0 ? compare_with_itself(*o) : run_zoo(*o);
  });
}

}  // namespace heed::cli
