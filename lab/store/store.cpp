#include "store/store.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>

#include "heed/heed.hpp"
#include "json/text.hpp"

namespace heed::store {
namespace {

constexpr const char* kTables = R"sql(
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, created TEXT NOT NULL, workload TEXT NOT NULL, families TEXT NOT NULL, device_kind TEXT NOT NULL,
  device TEXT NOT NULL, options TEXT NOT NULL, heed TEXT NOT NULL, source_digest TEXT NOT NULL, state TEXT NOT NULL,
  base TEXT NOT NULL DEFAULT 'null', result TEXT NOT NULL DEFAULT 'null', owner TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE trials (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id), number INTEGER NOT NULL, generation INTEGER NOT NULL,
  island INTEGER NOT NULL, variant TEXT NOT NULL, config TEXT NOT NULL, operation TEXT NOT NULL, parents TEXT NOT NULL,
  why TEXT NOT NULL, drafts TEXT NOT NULL, verdict TEXT NOT NULL, finding TEXT NOT NULL, reason TEXT NOT NULL, "check" TEXT NOT NULL,
  ratio REAL NOT NULL, ratio_low REAL NOT NULL, ratio_high REAL NOT NULL, base_us REAL NOT NULL, trial_us REAL NOT NULL,
  max_abs REAL NOT NULL, rel_rms REAL NOT NULL, worst_row REAL NOT NULL, seed INTEGER NOT NULL, source_digest TEXT NOT NULL,
  machine_code TEXT NOT NULL, resources TEXT NOT NULL, samples TEXT NOT NULL, clocks TEXT NOT NULL, diagnosis TEXT NOT NULL, build_ms REAL NOT NULL,
  verify_ms REAL NOT NULL, measure_ms REAL NOT NULL, run_elapsed_s REAL NOT NULL,
  finished TEXT NOT NULL,
  UNIQUE (run, number)
) STRICT;
CREATE TABLE comparisons (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id), kind TEXT NOT NULL, subject TEXT NOT NULL,
  against TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
)sql";

constexpr const char* kRunColumns =
    "id, created, workload, families, device_kind, device, options, heed, source_digest, state, base, result";
constexpr const char* kTrialColumns =
    "id, run, number, generation, island, variant, config, operation, parents, why, drafts, verdict, finding, reason, "
    "\"check\", ratio, ratio_low, "
    "ratio_high, base_us, trial_us, max_abs, rel_rms, worst_row, seed, source_digest, machine_code, resources, "
    "samples, clocks, diagnosis, build_ms, "
    "verify_ms, measure_ms, run_elapsed_s, finished";

std::optional<RunState> parse_state(std::string_view text) {
  for (const RunState state : {RunState::running, RunState::interrupted, RunState::finished})
    if (text == to_string(state)) return state;
  return std::nullopt;
}

// SQLite stores no NaN and JSON no infinity, which the error of a wrong kernel may be.
double storable(double value) {
  return std::isfinite(value) ? value : std::copysign(std::numeric_limits<double>::max(), value);
}

// Reads the columns of one row, and throws Error(store) for one that no Heed has written: a database may have been
// damaged where SQLite's own check sees nothing, in the middle of a text.
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
    nlohmann::json value = nlohmann::json::parse(row_.text(column), nullptr, /*allow_exceptions=*/false);
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

RunRecord run_of(const Row& row) {
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

TrialRecord trial_of(const Row& row) {
  TrialRecord t;
  int column = 0;
  t.id = row.integer(column++);
  t.run = row.integer(column++);
  t.number = static_cast<int>(row.integer(column++));
  t.generation = static_cast<int>(row.integer(column++));
  t.island = static_cast<int>(row.integer(column++));
  t.variant = row.text(column++);
  t.config = row.text(column++);
  t.operation = row.text(column++);
  t.parents = row.numbers(column++);
  t.why = row.text(column++);
  t.drafts = row.json(column++);
  t.verdict = row.text(column++);
  t.finding = row.text(column++);
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

// A process, so that it can be told from a later one with the same number: pid and start time.
std::string start_time_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t after_name = text.rfind(')');  // the name may hold spaces
  if (after_name == std::string::npos) return {};
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // field 22 of proc(5) is the start time; the state is the first here
  return field;
}

std::string identity_of(pid_t pid) {
  return fmt::format("{}:{}", pid, start_time_of(pid));
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
  }
  return "?";
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Store::Store(const std::filesystem::path& path, Access access) : database_(path, access) {
  const int version = database_.version();
  if (version > kSchemaVersion)
    throw Error(ErrorCode::store,
                fmt::format("the database {} has layout {}, written by a newer Heed; this one knows layout {}. Use the "
                            "newer Heed, or name another file with --db",
                            path.string(), version, kSchemaVersion),
                path.string());
  if (version == kSchemaVersion) return;
  if (version != 0)
    throw Error(ErrorCode::store,
                fmt::format("the database {} has layout {}, written by an older Heed; this one writes layout {}. Name "
                            "another file with --db",
                            path.string(), version, kSchemaVersion),
                path.string());
  if (database_.read_only())
    throw Error(ErrorCode::store, fmt::format("the database {} holds no runs", path.string()), path.string());
  create_tables();
}

void Store::create_tables() {
  Transaction transaction(database_);
  if (database_.version() == kSchemaVersion) return;  // another process was faster
  database_.execute(kTables);
  database_.execute(fmt::format("PRAGMA user_version = {}", kSchemaVersion).c_str());
  transaction.commit();
}

std::int64_t Store::add_run(const RunRecord& run) {
  Transaction transaction(database_);
  database_
      .prepare(
          "INSERT INTO runs (created, workload, families, device_kind, device, options, heed, source_digest, state, "
          "owner) "
          "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .add(run.created)
      .add(run.workload)
      .add(run.families)
      .add(run.device_kind)
      .add(json_text(run.device))
      .add(json_text(run.options))
      .add(run.heed)
      .add(run.source_digest)
      .add(to_string(run.state))
      .add(identity_of(::getpid()))
      .run();
  const std::int64_t id = database_.last_id();
  transaction.commit();
  return id;
}

std::optional<RunRecord> Store::find_run(std::int64_t id) {
  Statement row = database_.prepare(fmt::format("SELECT {} FROM runs WHERE id = ?", kRunColumns));
  row.add(id);
  if (!row.step()) return std::nullopt;
  return run_of({row, "run", database_.path()});
}

std::vector<RunRecord> Store::runs() {
  std::vector<RunRecord> all;
  Statement row = database_.prepare(fmt::format("SELECT {} FROM runs ORDER BY id", kRunColumns));
  while (row.step()) all.push_back(run_of({row, "run", database_.path()}));
  return all;
}

void Store::set_state(std::int64_t run, RunState state) {
  database_.prepare("UPDATE runs SET state = ? WHERE id = ?").add(to_string(state)).add(run).run();
}

void Store::set_base(std::int64_t run, const nlohmann::json& base) {
  database_.prepare("UPDATE runs SET base = ? WHERE id = ?").add(json_text(base)).add(run).run();
}

void Store::set_result(std::int64_t run, const nlohmann::json& result, RunState state) {
  database_.prepare("UPDATE runs SET result = ?, state = ? WHERE id = ?")
      .add(json_text(result))
      .add(to_string(state))
      .add(run)
      .run();
}

void Store::claim(std::int64_t run) {
  Transaction transaction(database_);
  std::string owner;
  {
    Statement row = database_.prepare("SELECT owner FROM runs WHERE id = ?");
    row.add(run);
    if (!row.step())
      throw Error(ErrorCode::usage, fmt::format("there is no run {}; heed runs lists them", run), std::to_string(run));
    owner = row.text(0);
  }
  if (!owner.empty() && owner != identity_of(::getpid())) {
    const auto pid = static_cast<pid_t>(std::strtol(owner.c_str(), nullptr, 10));
    if (owner == identity_of(pid))
      throw Error(ErrorCode::store,
                  fmt::format("run {} is being worked on by process {}; wait for it or stop it first", run, pid),
                  std::to_string(run));
  }
  database_.prepare("UPDATE runs SET owner = ?, state = 'running' WHERE id = ?")
      .add(identity_of(::getpid()))
      .add(run)
      .run();
  transaction.commit();
}

void Store::release(std::int64_t run) {
  database_.prepare("UPDATE runs SET owner = '' WHERE id = ?").add(run).run();
}

std::int64_t Store::add_trial(const TrialRecord& t) {
  Transaction transaction(database_);
  Statement insert = database_.prepare(fmt::format("INSERT INTO trials ({}) VALUES (NULL{})", kTrialColumns, [] {
    std::string marks;
    for (int i = 0; i < 34; ++i) marks += ", ?";
    return marks;
  }()));
  insert.add(t.run).add(t.number).add(t.generation).add(t.island).add(t.variant);
  insert.add(t.config).add(t.operation).add(json_text(nlohmann::json(t.parents))).add(t.why).add(json_text(t.drafts));
  insert.add(t.verdict).add(t.finding).add(t.reason).add(t.check);
  for (const double value :
       {t.ratio, t.ratio_low, t.ratio_high, t.base_us, t.trial_us, t.max_abs, t.rel_rms, t.worst_row})
    insert.add(storable(value));
  insert.add(static_cast<std::int64_t>(t.seed));
  insert.add(t.source_digest).add(t.machine_code).add(json_text(t.resources)).add(json_text(t.samples));
  insert.add(json_text(t.clocks))
      .add(json_text(t.diagnosis))
      .add(t.build_ms)
      .add(t.verify_ms)
      .add(t.measure_ms)
      .add(t.run_elapsed_s)
      .add(t.finished);
  insert.run();
  const std::int64_t id = database_.last_id();
  transaction.commit();
  return id;
}

void Store::set_diagnosis(std::int64_t trial, const nlohmann::json& diagnosis) {
  database_.prepare("UPDATE trials SET diagnosis = ? WHERE id = ?").add(json_text(diagnosis)).add(trial).run();
}

std::vector<TrialRecord> Store::trials(std::int64_t run) {
  std::vector<TrialRecord> all;
  Statement row = database_.prepare(fmt::format("SELECT {} FROM trials WHERE run = ? ORDER BY number", kTrialColumns));
  row.add(run);
  while (row.step()) all.push_back(trial_of({row, "trial", database_.path()}));
  return all;
}

std::optional<TrialRecord> Store::find_trial(std::int64_t id) {
  Statement row = database_.prepare(fmt::format("SELECT {} FROM trials WHERE id = ?", kTrialColumns));
  row.add(id);
  if (!row.step()) return std::nullopt;
  return trial_of({row, "trial", database_.path()});
}

void Store::add_comparison(const ComparisonRecord& c) {
  database_.prepare("INSERT INTO comparisons (run, kind, subject, against, data) VALUES (?, ?, ?, ?, ?)")
      .add(c.run)
      .add(c.kind)
      .add(c.subject)
      .add(c.against)
      .add(json_text(c.data))
      .run();
}

std::vector<ComparisonRecord> Store::comparisons(std::int64_t run) {
  std::vector<ComparisonRecord> all;
  Statement row =
      database_.prepare("SELECT id, run, kind, subject, against, data FROM comparisons WHERE run = ? ORDER BY id");
  row.add(run);
  while (row.step()) {
    const Row one(row, "comparison", database_.path());
    all.push_back({one.integer(0), one.integer(1), one.text(2), one.text(3), one.text(4), one.json(5)});
  }
  return all;
}

void Store::remove_comparisons(std::int64_t run) {
  database_.prepare("DELETE FROM comparisons WHERE run = ?").add(run).run();
}

}  // namespace heed::store
