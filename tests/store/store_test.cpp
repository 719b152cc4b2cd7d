#include "store/store.hpp"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <thread>

#include "testing.hpp"

namespace heed::store {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

RunRecord a_run() {
  RunRecord run;
  run.created = utc_now();
  run.workload = "b1h8l512d64:fp16";
  run.families = "fwd_cpu";
  run.device_kind = "cpu";
  run.device = {{"name", "test"}};
  run.options = {{"trials", 45}};
  run.heed = "0";
  run.source_digest = "d";
  return run;
}

TrialRecord a_trial(std::int64_t run, int number) {
  TrialRecord t;
  t.run = run;
  t.number = number;
  t.generation = number / 5;
  t.variant = "v";
  t.config = "block_m=64";
  t.edits = {{"diff", "--- a/x\n"}, {"digest", "d"}, {"tokens", "t"}, {"insight", "because"}};
  t.operation = "mutate";
  t.parents = {1, 2};
  t.why = "because";
  t.drafts = {{.config = "block_m=64", .ratio = 1.2, .screenings = 2}, {.config = "block_m=32", .ratio = 0.9}};
  t.gate_checks = {{{"name", "normal"}, {"passed", true}, {"error", {{"max_abs", 1e-4}}}}};
  t.ratio = 1.25;
  t.ratio_low = 1.2;
  t.ratio_high = 1.3;
  t.seed = 77;
  t.resources = {{"registers", 72}};
  t.samples = {{"ratios", {1.1, 1.2}}};
  t.clocks = nlohmann::json::object();
  t.diagnosis = {{"bound", "tail"}};
  t.finished = utc_now();
  return t;
}

TEST(Store, KeepsRunsTrialsAndComparisons) {
  const TemporaryFolder folder;
  std::int64_t id = 0;
  {
    Store store(folder.file("a.db"));
    id = store.add_run(a_run());
    store.set_base(id, {{"us", 5.0}});
    for (int i = 0; i < 7; ++i) store.add_trial(a_trial(id, i));
    store.add_comparison({0, id, "peer", "a", "b", {{"x", 1}}});
    store.set_result(id, {{"outcome", "faster"}}, RunState::finished);
  }
  Store store(folder.file("a.db"), Access::read_only);
  const RunRecord run = *store.find_run(id);
  EXPECT_EQ(run.workload, "b1h8l512d64:fp16");
  EXPECT_EQ(run.state, RunState::finished);
  EXPECT_EQ(run.base["us"], 5.0);
  EXPECT_EQ(run.result["outcome"], "faster");
  const std::vector<TrialRecord> trials = store.trials(id);
  ASSERT_EQ(trials.size(), 7U);
  EXPECT_EQ(trials[6].number, 6);
  EXPECT_EQ(trials[6].parents, (std::vector<int>{1, 2}));
  ASSERT_EQ(trials[6].drafts.size(), 2U);
  EXPECT_EQ(trials[6].drafts, a_trial(id, 6).drafts);
  EXPECT_EQ(trials[6].edits, a_trial(id, 6).edits);
  EXPECT_EQ(trials[6].gate_checks[0]["error"]["max_abs"], 1e-4);
  EXPECT_TRUE(trials[6].ok());
  EXPECT_EQ(trials[6].finding, Finding::none);
  EXPECT_EQ(trials[6].samples["ratios"][1], 1.2);
  EXPECT_EQ(trials[6].seed, 77U);
  EXPECT_EQ(trials[6].diagnosis["bound"], "tail");
  EXPECT_EQ(store.find_trial(trials[3].id)->number, 3);
  EXPECT_FALSE(store.find_trial(999).has_value());
  EXPECT_FALSE(store.find_run(999).has_value());
  EXPECT_EQ(store.comparisons(id).size(), 1U);
  EXPECT_EQ(store.runs().size(), 1U);
}

TEST(Store, RefusesTheSameTrialTwice) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  const std::int64_t id = store.add_run(a_run());
  store.add_trial(a_trial(id, 0));
  expect_error(ErrorCode::store, "UNIQUE", [&] { store.add_trial(a_trial(id, 0)); });
  EXPECT_EQ(store.trials(id).size(), 1U);
  store.add_trial(a_trial(id, 1));  // the store works on after a refusal
}

TEST(Store, ADiagnosisIsReplacedByABetterOne) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  const std::int64_t run = store.add_run(a_run());
  const std::int64_t first = store.add_trial(a_trial(run, 0));
  store.add_trial(a_trial(run, 1));
  store.set_diagnosis(first, {{"bound", "latency"}, {"with_counters", true}});
  const std::vector<TrialRecord> trials = store.trials(run);
  EXPECT_EQ(trials[0].diagnosis["bound"], "latency");
  EXPECT_EQ(trials[1].diagnosis["bound"], "tail");
}

TEST(Store, SaysWhatIsWrongWithAFile) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::store, "there is no database",
               [&] { Store store(folder.file("none.db"), Access::read_only); });
  write_file_atomically(folder.file("text.db"), std::string(5000, 'x'), ErrorCode::store);
  expect_error(ErrorCode::store, "corrupt or no SQLite database", [&] { Store store(folder.file("text.db")); });
  std::filesystem::create_directory(folder.path() / "folder.db");
  for (const Access access : {Access::read_write, Access::read_only})
    expect_error(ErrorCode::store, "is a folder; name a file in it with --db",
                 [&] { Store store(folder.file("folder.db"), access); });
  expect_error(ErrorCode::store, "cannot create the folder", [&] { Store store(folder.file("text.db") + "/x/a.db"); });
}

TEST(Store, SeesADamagedDatabase) {
  const TemporaryFolder folder;
  {
    Store store(folder.file("a.db"));
    const std::int64_t id = store.add_run(a_run());
    for (int i = 0; i < 200; ++i) store.add_trial(a_trial(id, i));
  }
  std::string bytes = read_file(folder.file("a.db"), ErrorCode::store);
  for (std::size_t i = 4096; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31);
  write_file_atomically(folder.file("a.db"), bytes, ErrorCode::store);
  expect_error(ErrorCode::store, "corrupt", [&] {
    Store store(folder.file("a.db"));
    (void)store.trials(1);
  });
}

// Damage in the middle of a file is found when it is opened, before a search writes into it.
TEST(Store, DamagedPagesAreSeenBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  {
    Store store(folder.file("a.db"));
    const std::int64_t id = store.add_run(a_run());
    for (int i = 0; i < 400; ++i) store.add_trial(a_trial(id, i));
  }
  const std::string whole = read_file(folder.file("a.db"), ErrorCode::store);
  std::string bytes = whole;
  for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 8192; ++i)
    bytes[i] = static_cast<char>(i * 37 + i / 256);
  write_file_atomically(folder.file("a.db"), bytes, ErrorCode::store);
  for (const Access access : {Access::read_write, Access::read_only})
    expect_error(ErrorCode::store, "corrupt", [&] { Store store(folder.file("a.db"), access); });
  EXPECT_EQ(read_file(folder.file("a.db"), ErrorCode::store), bytes);
}

// What SQLite's check cannot see: texts that hold something else than was written.
TEST(Store, DamagedTextsNameTheirRow) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  const std::int64_t id = store.add_run(a_run());
  store.add_trial(a_trial(id, 0));
  store.add_comparison({.id = 0, .run = id, .kind = "peer", .subject = "a", .against = "b", .data = {{"us", 1}}});
  const auto damaged = [&](const char* table, const char* column, const char* value, const char* words) {
    SCOPED_TRACE(std::string(table) + "." + column);
    store.database().execute("SAVEPOINT whole");
    store.database().execute(fmt::format("UPDATE {} SET \"{}\" = {}", table, column, value).c_str());
    expect_error(ErrorCode::store, words, [&] {
      (void)store.runs();
      (void)store.trials(id);
      (void)store.comparisons(id);
    });
    store.database().execute("ROLLBACK TO whole");
    store.database().execute("RELEASE whole");
  };
  for (const char* column : {"device", "options", "base", "result"}) {
    damaged("runs", column, "'{\"name\": \"x'", "of run 1 is no JSON");
    damaged("runs", column, "'7'", "of run 1 is no object");
  }
  damaged("runs", "state", "'finishee'", "state of run 1 is no state");
  damaged("runs", "workload", "CAST(x'62ff31' AS TEXT)", "workload of run 1 is no UTF-8");
  for (const char* column :
       {"edits", "parents", "drafts", "gate_checks", "resources", "samples", "clocks", "diagnosis"})
    damaged("trials", column, "'[1, 2'", "of trial 1 is no JSON");
  damaged("trials", "parents", "'{}'", "parents of trial 1 is no list");
  damaged("trials", "parents", "'[\"a\"]'", "no list of whole numbers");
  damaged("trials", "drafts", "'[{\"config\": 3}]'", "drafts of trial 1 is no list of drafts");
  damaged("trials", "verdict", "'okay'", "verdict of trial 1 is no verdict");
  damaged("trials", "finding", "''", "finding of trial 1 is no finding");
  damaged("trials", "samples", "'1e999'", "samples of trial 1 is no JSON");
  damaged("trials", "ratio", "9e999", "ratio of trial 1 is no finite number");
  damaged("trials", "why", "CAST(x'c328' AS TEXT)", "why of trial 1 is no UTF-8");
  damaged("comparisons", "data", "''", "data of comparison 1 is no JSON");
  EXPECT_EQ(store.trials(id).size(), 1U);
}

TEST(Store, AnInfiniteErrorStaysANumber) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  TrialRecord trial = a_trial(store.add_run(a_run()), 0);
  trial.max_abs = std::numeric_limits<double>::infinity();
  trial.rel_rms = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t id = store.add_trial(trial);
  EXPECT_EQ(store.find_trial(id)->max_abs, std::numeric_limits<double>::max());
  EXPECT_TRUE(std::isfinite(store.find_trial(id)->rel_rms));
}

// Runs `body` as a user whom permissions bind. @return its exit code
template <typename Body>
int as_nobody(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(99);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(Store, AReadOnlyFileCanBeReadButNotWritten) {
  const TemporaryFolder folder;
  {
    Store store(folder.file("a.db"));
    store.add_run(a_run());
  }
  namespace fs = std::filesystem;
  fs::permissions(folder.file("a.db"), fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
  fs::permissions(folder.path(), static_cast<fs::perms>(0555));
  EXPECT_EQ(as_nobody([&] {
              try {
                Store store(folder.file("a.db"));
                return 1;
              } catch (const Error& error) {
                return std::string(error.what()).find("is read-only") != std::string::npos ? 0 : 2;
              }
            }),
            0);
  EXPECT_EQ(as_nobody([&] {
              try {
                Store store(folder.file("a.db"), Access::read_only);
                return store.runs().size() == 1 ? 0 : 1;
              } catch (const Error&) {
                return 2;
              }
            }),
            0);
  fs::permissions(folder.path(), fs::perms::owner_all);
}

TEST(Store, AFullDiskLosesNothingThatWasStored) {
  const TemporaryFolder folder;
  std::int64_t id = 0;
  int stored = 0;
  {
    Store store(folder.file("a.db"));
    id = store.add_run(a_run());
    store.add_trial(a_trial(id, stored++));
    store.database().execute("PRAGMA wal_checkpoint(TRUNCATE)");
    store.database().execute("PRAGMA max_page_count = 1");  // no page more than there are now
    TrialRecord large = a_trial(id, stored);
    large.reason = std::string(1 << 20, 'x');
    expect_error(ErrorCode::store, "the disk is full", [&] { store.add_trial(large); });
  }
  Store store(folder.file("a.db"));
  EXPECT_EQ(store.trials(id).size(), static_cast<std::size_t>(stored));
  store.add_trial(a_trial(id, stored));  // goes on once there is room
}

TEST(Store, ALockedFileIsWaitedForThenNamed) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(folder.file("a.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  // Released after a while: the write succeeds.
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr);
  });
  EXPECT_GT(store.add_run(a_run()), 0);
  release.join();
  // Never released: a clear error.
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  expect_error(ErrorCode::store, "is locked by another process", [&] { store.add_run(a_run()); });
  sqlite3_close(other);
}

TEST(Store, TwoProcessesWriteSideBySide) {
  const TemporaryFolder folder;
  std::int64_t id = 0;
  {
    Store store(folder.file("a.db"));
    id = store.add_run(a_run());
  }
  const auto writer = [&](int first) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        Store store(folder.file("a.db"));
        for (int i = 0; i < 40; ++i) store.add_trial(a_trial(id, first + i));
        ::_exit(0);
      } catch (const std::exception&) {
        ::_exit(1);
      }
    }
    return child;
  };
  const pid_t children[] = {writer(0), writer(100)};
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  Store store(folder.file("a.db"));
  EXPECT_EQ(store.trials(id).size(), 80U);
}

TEST(Store, ARunBelongsToOneLivingProcess) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  const std::int64_t id = store.add_run(a_run());
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      Store other(folder.file("a.db"));
      other.claim(id);
      ::_exit(1);
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("is being worked on by process") != std::string::npos ? 0 : 2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  // The owner is gone: anybody may go on.
  store.database().execute("UPDATE runs SET owner = '999999:1'");
  store.claim(id);
  store.release(id);
  expect_error(ErrorCode::usage, "there is no run 99", [&] { store.claim(99); });
}

// What a resumed run proposes again rests on these.
TEST(Store, GenerationsAndPlacesOfDevices) {
  const TemporaryFolder folder;
  Store store(folder.file("a.db"));
  const std::int64_t run = store.add_run(a_run());
  const std::int64_t other = store.add_run(a_run());
  store.set_generation({run, 1, 4});
  store.set_generation({run, 0, 0});
  store.set_generation({run, 1, 3});
  store.set_generation({run, 1, 5, 2, 1});
  store.set_generation({other, 0, 9});
  const std::vector<GenerationRecord> generations = store.generations(run);
  ASSERT_EQ(generations.size(), 3U);
  EXPECT_EQ(generations[0].known, 0);
  EXPECT_EQ(generations[1].known, 3);
  EXPECT_EQ(generations[1].places, 0) << "all";
  EXPECT_EQ(generations[2].known, 5);
  EXPECT_EQ(generations[2].place, 2);
  EXPECT_EQ(generations[2].places, 1);
  TrialRecord trial = a_trial(run, 0);
  trial.place = 2;
  trial.device = "GPU 1";
  store.add_trial(trial);
  store.add_trial(a_trial(run, 1));
  const std::vector<TrialRecord> trials = store.trials(run);
  ASSERT_EQ(trials.size(), 2U);
  EXPECT_EQ(trials[0].place, 2);
  EXPECT_EQ(trials[0].device, "GPU 1");
  EXPECT_EQ(trials[1].place, -1) << "trials one after the other";
  EXPECT_TRUE(trials[1].device.empty());
}

}  // namespace
}  // namespace heed::store
