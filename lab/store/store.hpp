/// Runs, trials and measurements in one SQLite file. A trial is one transaction: after any kill, every trial that
/// finished is there and none is there by half. Knows no CUDA.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "store/records.hpp"
#include "store/sqlite.hpp"

namespace heed::store {

/// Layout of the tables. A file with a higher number was written by a newer Heed and is left alone.
inline constexpr int kSchemaVersion = 10;

/// The layout that the header of a database file names (https://www.sqlite.org/fileformat.html, user version); 0 where
/// there is no file, or another one. Opens nothing.
int layout_of(const std::filesystem::path& path);

class Store {
 public:
  /// Creates the file and its tables when there are none. @throws Error(store)
  explicit Store(const std::filesystem::path& path, Access access = Access::read_write);

  std::int64_t add_run(const RunRecord& run);
  [[nodiscard]] std::optional<RunRecord> find_run(std::int64_t id);
  [[nodiscard]] std::vector<RunRecord> runs();
  /// Replaces what was kept of that generation.
  void set_generation(const GenerationRecord& generation);
  /// Of a run, in their order.
  [[nodiscard]] std::vector<GenerationRecord> generations(std::int64_t run);
  void set_state(std::int64_t run, RunState state);
  void set_base(std::int64_t run, const nlohmann::json& base);
  void set_result(std::int64_t run, const nlohmann::json& result, RunState state);

  /// Makes this process the one that works on a run. @throws Error(store) when another living process does
  void claim(std::int64_t run);
  void release(std::int64_t run);

  /// One transaction. @return its id
  std::int64_t add_trial(const TrialRecord& trial);
  /// Replaces the diagnosis of a stored trial by one that rests on more.
  void set_diagnosis(std::int64_t trial, const nlohmann::json& diagnosis);
  [[nodiscard]] std::vector<TrialRecord> trials(std::int64_t run);
  [[nodiscard]] std::optional<TrialRecord> find_trial(std::int64_t id);

  void add_comparison(const ComparisonRecord& comparison);
  [[nodiscard]] std::vector<ComparisonRecord> comparisons(std::int64_t run);
  void remove_comparisons(std::int64_t run);

  [[nodiscard]] Database& database() { return database_; }

 private:
  void create_tables();
  /// @throws Error(store) where the file holds tables of another program
  void expect_own();
  Database database_;
};

/// Now, in UTC, ISO 8601.
std::string utc_now();

}  // namespace heed::store
