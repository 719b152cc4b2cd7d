#include "store/store.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/files.hpp"
#include "heed/heed.hpp"
#include "json/text.hpp"
#include "store/rows.hpp"

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
  island INTEGER NOT NULL, place INTEGER NOT NULL, device TEXT NOT NULL, variant TEXT NOT NULL, config TEXT NOT NULL, edits TEXT NOT NULL, operation TEXT NOT NULL, parents TEXT NOT NULL,
  why TEXT NOT NULL, drafts TEXT NOT NULL, verdict TEXT NOT NULL, finding TEXT NOT NULL, reason TEXT NOT NULL, "check" TEXT NOT NULL,
  ratio REAL NOT NULL, ratio_low REAL NOT NULL, ratio_high REAL NOT NULL, base_us REAL NOT NULL, trial_us REAL NOT NULL,
  max_abs REAL NOT NULL, rel_rms REAL NOT NULL, worst_row REAL NOT NULL, seed INTEGER NOT NULL, source_digest TEXT NOT NULL,
  machine_code TEXT NOT NULL, gate_checks TEXT NOT NULL, resources TEXT NOT NULL, samples TEXT NOT NULL, clocks TEXT NOT NULL, diagnosis TEXT NOT NULL, build_ms REAL NOT NULL,
  verify_ms REAL NOT NULL, measure_ms REAL NOT NULL, run_elapsed_s REAL NOT NULL,
  finished TEXT NOT NULL,
  UNIQUE (run, number)
) STRICT;
CREATE TABLE generations (
  run INTEGER NOT NULL REFERENCES runs(id), generation INTEGER NOT NULL, known INTEGER NOT NULL,
  place INTEGER NOT NULL, places INTEGER NOT NULL,
  PRIMARY KEY (run, generation, place)
) STRICT;
CREATE TABLE comparisons (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id), kind TEXT NOT NULL, subject TEXT NOT NULL,
  against TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
CREATE TABLE observations (
  id INTEGER PRIMARY KEY, family TEXT NOT NULL, change TEXT NOT NULL, diff TEXT NOT NULL, sentence TEXT NOT NULL, workload TEXT NOT NULL,
  arch TEXT NOT NULL, device TEXT NOT NULL, bound_before TEXT NOT NULL, bound_after TEXT NOT NULL,
  ratio REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, origin TEXT NOT NULL, created TEXT NOT NULL,
  UNIQUE (origin, change)
) STRICT;
CREATE TABLE exchanges (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id), generation INTEGER NOT NULL, place INTEGER NOT NULL,
  purpose TEXT NOT NULL, model TEXT NOT NULL, prompt TEXT NOT NULL, reply TEXT NOT NULL, failure TEXT NOT NULL, created TEXT NOT NULL
) STRICT;
)sql";

// A process, so that it can be told from a later one with the same number: pid and start time.
std::string start_time_of(pid_t pid) {
  const std::string text = read_kernel_file(fmt::format("/proc/{}/stat", pid));
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

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int layout_of(const std::filesystem::path& path) {
  constexpr std::string_view kMagic{"SQLite format 3", 16};  // with its zero
  constexpr std::size_t kUserVersion = 60;                   // four bytes, the highest first
  std::array<char, 100> header{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(header.data(), header.size()) || std::string_view(header.data(), kMagic.size()) != kMagic) return 0;
  int version = 0;
  for (std::size_t i = 0; i < 4; ++i) version = version << 8 | static_cast<unsigned char>(header[kUserVersion + i]);
  return version;
}

Store::Store(const std::filesystem::path& path, Access access) : database_(path, access) {
  expect_own();
  const int version = database_.version();
  if (version > kSchemaVersion)
    throw Error(ErrorCode::store,
                fmt::format("the database {} has layout {}, written by a newer Heed; this one knows layout {}. Use the "
                            "newer Heed, or name another file with --db",
                            path.string(), version, kSchemaVersion),
                path.string());
  if (version == kSchemaVersion) {
    database_.log_ahead();
    return;
  }
  if (version != 0)
    throw Error(ErrorCode::store,
                fmt::format("the database {} has layout {}, written by an older Heed; this one writes layout {}. Name "
                            "another file with --db",
                            path.string(), version, kSchemaVersion),
                path.string());
  // An empty file is an empty database to SQLite.
  if (access == Access::read_only)
    throw Error(ErrorCode::store,
                fmt::format("the database {} holds no runs; heed evolve makes the first", path.string()),
                path.string());
  database_.log_ahead();
  create_tables();
}

void Store::expect_own() {
  int tables = 0;
  int own = 0;
  Statement names = database_.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'");
  while (names.step()) {
    const std::string name = names.text(0);
    ++tables;
    own += name == "runs" || name == "trials" ? 1 : 0;
  }
  if (tables == 0 || own == 2) return;
  throw Error(ErrorCode::store,
              fmt::format("the database {} is of another program; name another file with --db", database_.path()),
              database_.path());
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
  return run_of(row, database_.path());
}

std::vector<RunRecord> Store::runs() {
  std::vector<RunRecord> all;
  Statement row = database_.prepare(fmt::format("SELECT {} FROM runs ORDER BY id", kRunColumns));
  while (row.step()) all.push_back(run_of(row, database_.path()));
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
    for (int i = 0; i < 38; ++i) marks += ", ?";
    return marks;
  }()));
  insert.add(t.run).add(t.number).add(t.generation).add(t.island);
  insert.add(t.place).add(t.device).add(t.variant);
  insert.add(t.config)
      .add(json_text(t.edits))
      .add(t.operation)
      .add(json_text(nlohmann::json(t.parents)))
      .add(t.why)
      .add(drafts_text(t.drafts));
  insert.add(to_string(t.verdict)).add(to_string(t.finding)).add(t.reason).add(t.check);
  for (const double value :
       {t.ratio, t.ratio_low, t.ratio_high, t.base_us, t.trial_us, t.max_abs, t.rel_rms, t.worst_row})
    insert.add(storable(value));
  insert.add(static_cast<std::int64_t>(t.seed));
  insert.add(t.source_digest)
      .add(t.machine_code)
      .add(json_text(t.gate_checks))
      .add(json_text(t.resources))
      .add(json_text(t.samples));
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

void Store::set_generation(const GenerationRecord& g) {
  database_.prepare("INSERT OR REPLACE INTO generations (run, generation, known, place, places) VALUES (?, ?, ?, ?, ?)")
      .add(g.run)
      .add(g.generation)
      .add(g.known)
      .add(g.place)
      .add(g.places)
      .run();
}

std::vector<GenerationRecord> Store::generations(std::int64_t run) {
  std::vector<GenerationRecord> all;
  Statement row = database_.prepare(
      "SELECT generation, known, place, places FROM generations WHERE run = ? ORDER BY generation, place");
  row.add(run);
  const auto number = [&](int column) { return static_cast<int>(row.integer(column)); };
  while (row.step()) all.push_back({run, number(0), number(1), number(2), number(3)});
  return all;
}

void Store::set_diagnosis(std::int64_t trial, const nlohmann::json& diagnosis) {
  database_.prepare("UPDATE trials SET diagnosis = ? WHERE id = ?").add(json_text(diagnosis)).add(trial).run();
}

std::vector<TrialRecord> Store::trials(std::int64_t run) {
  std::vector<TrialRecord> all;
  Statement row = database_.prepare(fmt::format("SELECT {} FROM trials WHERE run = ? ORDER BY number", kTrialColumns));
  row.add(run);
  while (row.step()) all.push_back(trial_of(row, database_.path()));
  return all;
}

std::optional<TrialRecord> Store::find_trial(std::int64_t id) {
  Statement row = database_.prepare(fmt::format("SELECT {} FROM trials WHERE id = ?", kTrialColumns));
  row.add(id);
  if (!row.step()) return std::nullopt;
  return trial_of(row, database_.path());
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
  while (row.step()) all.push_back(comparison_of(row, database_.path()));
  return all;
}

void Store::remove_comparisons(std::int64_t run) {
  database_.prepare("DELETE FROM comparisons WHERE run = ?").add(run).run();
}

}  // namespace heed::store
