#include "store/rows.hpp"

#include <fmt/format.h>

#include <optional>

#include "heed/heed.hpp"
#include "json/text.hpp"

namespace heed::store {
namespace {

std::optional<RunState> parse_state(std::string_view text) {
  for (const RunState state : {RunState::running, RunState::interrupted, RunState::finished, RunState::judged})
    if (text == to_string(state)) return state;
  return std::nullopt;
}

// Reads the columns of one row.
class Row {
 public:
  /// @param what "run", "trial" or "comparison"; column 0 is its id
  Row(const Statement& row, const char* what, const std::string& path) : row_(row), what_(what), path_(path) {}

  [[nodiscard]] std::int64_t integer(int column) const { return row_.integer(column); }

  [[nodiscard]] double real(int column) const {
    const double value = row_.real(column);
    if (!std::isfinite(value)) fail(column, "is no finite number");
    return value;
  }

  [[nodiscard]] std::string text(int column) const {
    std::string value = row_.text(column);
    try {
      (void)nlohmann::json(value).dump();  // throws where it is no UTF-8
    } catch (const nlohmann::json::exception&) {
      fail(column, "is no UTF-8 text");
    }
    return value;
  }

  [[nodiscard]] nlohmann::json json(int column) const {
    nlohmann::json value = parse_json(row_.text(column));
    if (value.is_discarded()) fail(column, "is no JSON");
    return value;
  }

  [[nodiscard]] std::vector<int> numbers(int column) const {
    const nlohmann::json value = json(column);
    std::vector<int> numbers;
    if (!value.is_array()) fail(column, "is no list");
    for (const nlohmann::json& one : value) {
      if (!one.is_number_integer()) fail(column, "is no list of whole numbers");
      numbers.push_back(one.get<int>());
    }
    return numbers;
  }

  [[nodiscard]] std::vector<DraftRecord> drafts(int column) const {
    const nlohmann::json value = json(column);
    if (!value.is_array()) fail(column, "is no list");
    std::vector<DraftRecord> drafts;
    try {
      for (const nlohmann::json& one : value)
        drafts.push_back({.config = one.at("config").get<std::string>(),
                          .edits = one.at("edits").get<std::string>(),
                          .operation = one.at("operation").get<std::string>(),
                          .why = one.at("why").get<std::string>(),
                          .ratio = one.at("ratio").get<double>(),
                          .certain = one.at("certain").get<double>(),
                          .us = one.at("us").get<double>(),
                          .screenings = one.at("screenings").get<int>(),
                          .reason = one.at("reason").get<std::string>()});
    } catch (const nlohmann::json::exception&) {
      fail(column, "is no list of drafts");
    }
    return drafts;
  }

  [[nodiscard]] Verdict verdict(int column) const {
    const std::optional<Verdict> verdict = parse_verdict(row_.text(column));
    if (!verdict) fail(column, "is no verdict");
    return *verdict;
  }

  [[nodiscard]] Finding finding(int column) const {
    const std::optional<Finding> finding = parse_finding(row_.text(column));
    if (!finding) fail(column, "is no finding");
    return *finding;
  }

  [[noreturn]] void fail(int column, const char* how) const {
    const std::string name = fmt::format("{} {}", what_, row_.integer(0));
    throw Error(ErrorCode::store,
                fmt::format("the database {} is damaged: {} of {} {}; move it away, or name another with --db", path_,
                            row_.name(column), name, how),
                name);
  }

 private:
  const Statement& row_;
  const char* what_;
  const std::string& path_;
};

// What the columns of a run and of its parts begin with when they are there.
void expect_object(const Row& row, int column, const nlohmann::json& value) {
  if (!value.is_object() && !value.is_null()) row.fail(column, "is no object");
}

}  // namespace

std::string_view to_string(RunState state) {
  switch (state) {
    case RunState::running:
      return "running";
    case RunState::interrupted:
      return "interrupted";
    case RunState::finished:
      return "finished";
    case RunState::judged:
      return "judged";
  }
  return "?";
}

nlohmann::json to_json(const DraftRecord& draft) {
  return {{"config", draft.config},   {"edits", draft.edits},           {"operation", draft.operation},
          {"why", draft.why},         {"ratio", storable(draft.ratio)}, {"certain", storable(draft.certain)},
          {"us", storable(draft.us)}, {"screenings", draft.screenings}, {"reason", draft.reason}};
}

std::string drafts_text(const std::vector<DraftRecord>& drafts) {
  nlohmann::json all = nlohmann::json::array();
  for (const DraftRecord& draft : drafts) all.push_back(to_json(draft));
  return json_text(all);
}

RunRecord run_of(const Statement& statement, const std::string& path) {
  const Row row(statement, "run", path);
  RunRecord run;
  run.id = row.integer(0);
  run.created = row.text(1);
  run.workload = row.text(2);
  run.families = row.text(3);
  run.device_kind = row.text(4);
  run.device = row.json(5);
  run.options = row.json(6);
  run.heed = row.text(7);
  run.source_digest = row.text(8);
  const std::optional<RunState> state = parse_state(row.text(9));
  if (!state) row.fail(9, "is no state of a run");
  run.state = *state;
  run.base = row.json(10);
  run.result = row.json(11);
  for (const auto& [column, value] : {std::pair{5, &run.device}, {6, &run.options}, {10, &run.base}, {11, &run.result}})
    expect_object(row, column, *value);
  return run;
}

TrialRecord trial_of(const Statement& statement, const std::string& path) {
  const Row row(statement, "trial", path);
  TrialRecord t;
  int column = 0;
  t.id = row.integer(column++);
  t.run = row.integer(column++);
  t.number = static_cast<int>(row.integer(column++));
  t.generation = static_cast<int>(row.integer(column++));
  t.island = static_cast<int>(row.integer(column++));
  t.place = static_cast<int>(row.integer(column++));
  t.device = row.text(column++);
  t.variant = row.text(column++);
  t.config = row.text(column++);
  t.edits = row.json(column++);
  expect_object(row, column - 1, t.edits);
  t.operation = row.text(column++);
  t.parents = row.numbers(column++);
  t.why = row.text(column++);
  t.drafts = row.drafts(column++);
  t.verdict = row.verdict(column++);
  t.finding = row.finding(column++);
  t.reason = row.text(column++);
  t.check = row.text(column++);
  t.ratio = row.real(column++);
  t.ratio_low = row.real(column++);
  t.ratio_high = row.real(column++);
  t.base_us = row.real(column++);
  t.trial_us = row.real(column++);
  t.max_abs = row.real(column++);
  t.rel_rms = row.real(column++);
  t.worst_row = row.real(column++);
  t.seed = static_cast<std::uint64_t>(row.integer(column++));
  t.source_digest = row.text(column++);
  t.machine_code = row.text(column++);
  t.gate_checks = row.json(column++);
  t.resources = row.json(column++);
  t.samples = row.json(column++);
  t.clocks = row.json(column++);
  t.diagnosis = row.json(column++);
  t.build_ms = row.real(column++);
  t.verify_ms = row.real(column++);
  t.measure_ms = row.real(column++);
  t.run_elapsed_s = row.real(column++);
  t.finished = row.text(column++);
  return t;
}

ComparisonRecord comparison_of(const Statement& statement, const std::string& path) {
  const Row row(statement, "comparison", path);
  return {row.integer(0), row.integer(1), row.text(2), row.text(3), row.text(4), row.json(5)};
}

}  // namespace heed::store
