/// The few pieces of SQLite's C interface that the store needs, with errors as Error(store).
/// https://www.sqlite.org/c3ref/intro.html
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace heed::store {

class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql, const std::string& path);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, int value) { return bind(index, static_cast<std::int64_t>(value)); }
  Statement& bind(int index, double value);
  Statement& bind(int index, std::string_view value);
  /// Binds the next parameter: the first call the first, and so on.
  template <typename T>
  Statement& add(const T& value) {
    return bind(++bound_, value);
  }

  /// True while there is a row.
  bool step();
  /// For statements without rows.
  void run() { step(); }

  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] double real(int column) const;
  [[nodiscard]] std::string text(int column) const;
  /// Of a column, as the statement names it.
  [[nodiscard]] std::string name(int column) const;

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  std::string path_;
};

enum class Access { read_write, read_only };

class Database {
 public:
  /// Opens or creates, and has SQLite check every page (0.1 s for 100 MB). Full sync, ten seconds of patience with
  /// other processes. Writes nothing into a file that is there.
  /// @throws Error(store) when the file is no database, corrupt, unreadable, a folder, or (read_write) cannot be
  /// written
  Database(const std::filesystem::path& path, Access access);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// Goes on with a write-ahead log, which the file remembers; nothing where it is read-only.
  void log_ahead();
  void execute(const char* sql);
  [[nodiscard]] Statement prepare(std::string_view sql) { return {database_, sql, path_}; }
  [[nodiscard]] std::int64_t last_id() const;
  [[nodiscard]] int version();
  [[nodiscard]] bool read_only() const { return read_only_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void open(const std::filesystem::path& path, Access access);
  void check();

  sqlite3* database_ = nullptr;
  std::string path_;
  bool read_only_ = false;
};

/// BEGIN IMMEDIATE ... COMMIT; rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace heed::store
