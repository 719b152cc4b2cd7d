#include "report/workloads.hpp"

#include <fmt/format.h>

#include "json/fields.hpp"
#include "report/outcome.hpp"
#include "report/table.hpp"

namespace heed::report {

using fields::member;
using fields::number;
using fields::text_of;

namespace {

using nlohmann::json;

// The final comparison of a row's run; null where there was none.
const json& final_of(const WorkloadRow& row) {
  static const json none;
  return row.run && row.run->result.is_object() ? member(row.run->result, "final") : none;
}

bool found_champion(const WorkloadRow& row) {
  return row.run && has_champion(row.run->result);
}

double base_us(const WorkloadRow& row) {
  if (const json& final = final_of(row); final.is_object()) return number(final, "base_us");
  return row.run && row.run->base.is_object() ? number(row.run->base, "us") : 0;
}

double saved_s(const WorkloadRow& row) {
  if (!found_champion(row)) return 0;
  return static_cast<double>(row.calls) * (base_us(row) - number(final_of(row), "trial_us")) * 1e-6;
}

double seconds_of_all(const std::vector<WorkloadRow>& rows) {
  double seconds = 0;
  for (const WorkloadRow& row : rows) seconds += row.seconds;
  return seconds;
}

json result_json(const WorkloadRow& row) {
  const json& result = row.run->result;
  const json& final = final_of(row);
  json compact = {{"outcome", outcome_of(result)},
                  {"summary", text_of(result, "summary")},
                  {"trials", row.trials_made},
                  {"base", row.run->base.is_object() ? text_of(row.run->base, "describe") : ""},
                  {"base_us", base_us(row)}};
  if (final.is_object()) {
    compact["ratio"] = member(final, "ratio");
    compact["self_spread"] = number(result, "self_spread");
  }
  if (found_champion(row)) {
    compact["champion"] = text_of(final, "config");
    compact["champion_us"] = number(final, "trial_us");
    compact["saved_s"] = saved_s(row);
  }
  return compact;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} us", seconds * 1e6);
}

std::string name_of(const WorkloadRow& row) {
  return row.workload.empty() ? "-" : row.workload;
}

std::string share_text(const WorkloadRow& row, double of_all) {
  return row.seconds > 0 ? fmt::format("{:.1f}%", 100 * row.seconds / of_all) : "-";
}

}  // namespace

double saved_s(const std::vector<WorkloadRow>& rows) {
  double saved = 0;
  for (const WorkloadRow& row : rows) saved += saved_s(row);
  return saved;
}

json workloads_json(const std::vector<WorkloadRow>& rows) {
  const double of_all = seconds_of_all(rows);
  json all = json::array();
  for (const WorkloadRow& row : rows) {
    json entry = {{"workload", row.workload}, {"calls", row.calls},
                  {"seconds", row.seconds},   {"share", of_all > 0 ? row.seconds / of_all : 0},
                  {"gain", row.gain},         {"trials", row.trials}};
    if (!row.skipped.empty()) entry["skipped"] = row.skipped;
    if (!row.failed.empty()) entry["failed"] = row.failed;
    if (row.run) {
      entry["run"] = row.run->id;
      entry["reused"] = row.reused;
      entry["result"] = result_json(row);
    }
    all.push_back(std::move(entry));
  }
  return {{"workloads", all}, {"saved_s", saved_s(rows)}};
}

std::string workloads_text(const std::vector<WorkloadRow>& rows) {
  const double of_all = seconds_of_all(rows);
  Table runs({"workload", "calls", "of the time", "trials", "base us", "champion us", "ratio", "95% interval", "run"});
  Table others({"not evolved", "calls", "of the time", "why"});
  others.align_left(3);
  std::size_t champions = 0;
  for (const WorkloadRow& row : rows) {
    std::vector<std::string> line = {name_of(row), std::to_string(row.calls), share_text(row, of_all)};
    if (!row.run) {
      line.push_back(row.failed.empty() ? row.skipped : "failed: " + row.failed);
      others.add(std::move(line));
      continue;
    }
    if (found_champion(row)) ++champions;
    const json& final = final_of(row);
    const json& ratio = member(final, "ratio");
    line.insert(line.end(),
                {std::to_string(row.trials_made), base_us(row) > 0 ? fmt::format("{:.2f}", base_us(row)) : "-",
                 found_champion(row) ? fmt::format("{:.2f}", number(final, "trial_us")) : "-",
                 ratio.is_object() ? fmt::format("{:.4f}", number(ratio, "value")) : "-",
                 ratio.is_object() ? fmt::format("[{:.4f}, {:.4f}]", number(ratio, "low"), number(ratio, "high")) : "-",
                 std::to_string(row.run->id)});
    runs.add(std::move(line));
  }
  std::string text;
  if (!runs.empty()) text += runs.str();
  if (!others.empty()) text += (text.empty() ? "" : "\n") + others.str();
  if (champions == 0)
    return text + "\nNo champion: no workload has a variant that is measurably faster than its base.\n";
  text += fmt::format("\nExpected saving for each recorded run of the model: {}, by {} champion{} against the base",
                      time_text(saved_s(rows)), champions, champions == 1 ? "" : "s");
  return text + (of_all > 0 ? fmt::format("; the recorded calls took {}.\n", time_text(of_all)) : ".\n");
}

}  // namespace heed::report
