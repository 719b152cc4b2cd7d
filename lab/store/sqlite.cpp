#include "store/sqlite.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include "base/files.hpp"
#include "heed/heed.hpp"

namespace heed::store {
namespace {

constexpr int kPatience_ms = 10'000;

[[noreturn]] void fail(sqlite3* database, int code, const std::string& path) {
  const std::string detail = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  std::string text;
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      text = "is corrupt or no SQLite database; move it away, or name another with --db";
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      text = fmt::format("is locked by another process and stayed so for {} s; try again when it is done",
                         kPatience_ms / 1000);
      break;
    case SQLITE_READONLY:
      text = "is read-only; make it writable, or name another with --db";
      break;
    case SQLITE_FULL:
      text = "could not grow: the disk is full. Every trial finished so far is stored; free some space and resume";
      break;
    case SQLITE_IOERR:
      text = fmt::format("cannot be read or written ({}; is the disk full?). Every trial finished so far is stored",
                         detail);
      break;
    case SQLITE_CANTOPEN:
      text = fmt::format("cannot be opened: {}", detail);
      break;
    default:
      text = fmt::format("refused an operation: {}", detail);
      break;
  }
  throw Error(ErrorCode::store, fmt::format("the database {} {}", path, text), path);
}

}  // namespace

Statement::Statement(sqlite3* database, std::string_view sql, const std::string& path)
    : database_(database), path_(path) {
  const int code = sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr);
  if (code != SQLITE_OK) fail(database, code, path_);
}

Statement::~Statement() {
  sqlite3_finalize(statement_);
}

Statement& Statement::bind(int index, std::int64_t value) {
  if (const int code = sqlite3_bind_int64(statement_, index, value); code != SQLITE_OK) fail(database_, code, path_);
  return *this;
}

Statement& Statement::bind(int index, double value) {
  if (const int code = sqlite3_bind_double(statement_, index, value); code != SQLITE_OK) fail(database_, code, path_);
  return *this;
}

Statement& Statement::bind(int index, std::string_view value) {
  const int code = sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  if (code != SQLITE_OK) fail(database_, code, path_);
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  fail(database_, code, path_);
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}
double Statement::real(int column) const {
  return sqlite3_column_double(statement_, column);
}

std::string Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return data == nullptr ? std::string()
                         : std::string(data, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
}

std::string Statement::name(int column) const {
  const char* name = sqlite3_column_name(statement_, column);
  return name == nullptr ? std::string() : name;
}

Database::Database(const std::filesystem::path& path, Access access) : path_(path.string()) {
  try {
    open(path, access);
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
}

void Database::open(const std::filesystem::path& path, Access access) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw Error(ErrorCode::store,
                fmt::format("the database {} is a folder; name a file in it with --db, for example {}", path_,
                            (path / "heed.db").string()),
                path_);
  if (access == Access::read_write && !path.parent_path().empty()) make_folder(path.parent_path(), ErrorCode::store);
  if (access == Access::read_only && !std::filesystem::exists(path, error))
    throw Error(ErrorCode::store,
                fmt::format("there is no database {}; heed evolve creates it, or name another with --db", path_),
                path_);
  const int flags = access == Access::read_write ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READWRITE;
  if (const int code = sqlite3_open_v2(path_.c_str(), &database_, flags, nullptr); code != SQLITE_OK) {
    if (access == Access::read_write || (code & 0xff) != SQLITE_CANTOPEN) fail(database_, code, path_);
    sqlite3_close(database_);
    database_ = nullptr;
    if (const int again = sqlite3_open_v2(path_.c_str(), &database_, SQLITE_OPEN_READONLY, nullptr); again != SQLITE_OK)
      fail(database_, again, path_);
  }
  sqlite3_busy_timeout(database_, kPatience_ms);
  read_only_ = sqlite3_db_readonly(database_, "main") == 1;
  if (read_only_ && access == Access::read_write) fail(database_, SQLITE_READONLY, path_);
  if (read_only_) {
    // Reading a write-ahead log needs a writable folder. Without one, what has been checkpointed can still be read.
    sqlite3_close(database_);
    database_ = nullptr;
    std::string uri = "file:";  // https://www.sqlite.org/uri.html
    for (const char c : path_) uri += c == '%' || c == '?' || c == '#' ? fmt::format("%{:02x}", c) : std::string(1, c);
    uri += "?immutable=1";
    if (const int code = sqlite3_open_v2(uri.c_str(), &database_, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
        code != SQLITE_OK)
      fail(database_, code, path_);
  } else {
    execute("PRAGMA synchronous = FULL");
    execute("PRAGMA foreign_keys = ON");
  }
  check();
}

// The first read finds out whether this is a database at all; the check, whether all of it is one: a search that writes
// into damaged pages ends as a run that cannot be read.
void Database::check() {
  (void)version();
  Statement statement = prepare("PRAGMA integrity_check(1)");
  const std::string found = statement.step() ? statement.text(0) : std::string();
  if (found == "ok") return;
  throw Error(ErrorCode::store,
              fmt::format("the database {} is corrupt ({}); move it away, or name another with --db", path_,
                          found.substr(0, found.find('\n'))),
              path_);
}

void Database::log_ahead() {
  if (!read_only_) execute("PRAGMA journal_mode = WAL");
}

Database::~Database() {
  sqlite3_close(database_);
}

void Database::execute(const char* sql) {
  if (const int code = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr); code != SQLITE_OK)
    fail(database_, code, path_);
}

std::int64_t Database::last_id() const {
  return sqlite3_last_insert_rowid(database_);
}

int Database::version() {
  Statement statement = prepare("PRAGMA user_version");
  statement.step();
  return static_cast<int>(statement.integer(0));
}

Transaction::Transaction(Database& database) : database_(database) {
  database_.execute("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const Error&) {  // SQLite rolls back by itself after a full disk or a lost file
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

}  // namespace heed::store
