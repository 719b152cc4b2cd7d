#include "dispatch/book.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "base/file_lock.hpp"
#include "base/files.hpp"
#include "dispatch/contract.hpp"

namespace heed::dispatch {
namespace {

namespace fs = std::filesystem;

bool is_of_same(const ProgramRecord& a, const ProgramRecord& b) {
  return a.arch == b.arch && a.workload == b.workload && a.provenance->device == b.provenance->device;
}

// A symbolic link stays one: what it points to is replaced.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real;
}

// What a writer that was killed left half written, named as write_file_atomically does: .FILE.PID.COUNT.tmp. Whoever
// holds the lock is the only writer of this file; files of longer names beside it have their own.
void sweep(const fs::path& path) {
  const std::string begin = "." + path.filename().string() + ".";
  const std::string end = ".tmp";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size()) continue;
    const std::string numbers = name.substr(begin.size(), name.size() - begin.size() - end.size());
    std::error_code ignored;
    if (numbers.find_first_not_of("0123456789.") == std::string::npos) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

Book Book::read(const fs::path& path) {
  return of(*ProgramFile::open(path));
}

void expect_book(const ProgramFile& file) {
  for (const ProgramRecord& record : file.records())
    if (!record.provenance || record.contract.empty())
      throw Error(ErrorCode::programs,
                  fmt::format("{} is no book: it does not say where its program {} comes from; heed book add makes one",
                              file.name(), record.variant),
                  file.name());
}

Book Book::of(const ProgramFile& file) {
  expect_book(file);
  Book book;
  for (const ProgramRecord& record : file.records()) book.entries_.push_back({record, file.image(record)});
  return book;
}

Book::Merged Book::merge(BookEntry entry) {
  const std::string lacks =
      entry.record.provenance ? lacks_evidence(*entry.record.provenance) : "does not say where it comes from";
  if (!lacks.empty())
    throw Error(ErrorCode::programs,
                fmt::format("the program for {} on {} {}", entry.record.workload, entry.record.arch, lacks),
                entry.record.variant);
  const auto at = std::find_if(entries_.begin(), entries_.end(),
                               [&](const BookEntry& e) { return is_of_same(e.record, entry.record); });
  if (at == entries_.end()) {
    entries_.push_back(std::move(entry));
    return {Kept::added, ""};
  }
  const Provenance& there = *at->record.provenance;
  const Provenance& fresh = *entry.record.provenance;
  if (there == fresh && at->image == entry.image) return {Kept::same, "it is there already"};
  // A binary of another contract is never launched: it gives way to one that can be, and takes no such one's place.
  const bool runs_there = at->record.contract == kernel_contract(at->record.workload);
  const bool runs_here = entry.record.contract == kernel_contract(entry.record.workload);
  if (runs_there != runs_here) {
    if (runs_here) *at = std::move(entry);
    return {runs_here ? Kept::replaced : Kept::earlier,
            fmt::format("the one {} was built for another kernel contract", runs_here ? "there" : "here")};
  }
  const bool compares = there.referee == fresh.referee && there.source_digest == fresh.source_digest;
  const bool replaces = compares ? fresh.ratio.low > there.ratio.low : fresh.date > there.date;
  const std::string why =
      compares ? fmt::format("lower ends of their ratios: {:.4f} there, {:.4f} here", there.ratio.low, fresh.ratio.low)
               : fmt::format("of other sources or another referee, where the newer stays: {} there, {} here",
                             there.date, fresh.date);
  if (!replaces) return {Kept::earlier, why};
  *at = std::move(entry);
  return {Kept::replaced, why};
}

std::size_t Book::remove(const std::function<bool(const ProgramRecord&)>& which) {
  return std::erase_if(entries_, [&](const BookEntry& entry) { return which(entry.record); });
}

std::string Book::bytes() const {
  ProgramFileWriter writer(entries_.empty() ? std::string() : entries_.back().record.source_digest);
  for (const BookEntry& entry : entries_) writer.add(entry.record, entry.image);
  return writer.bytes();
}

void expect_writable_book(const fs::path& named) {
  const fs::path path = real_path(named);
  expect_writable(path, ErrorCode::store);
  struct stat info {};
  // The rename would replace it all the same: who took the permission away meant the book.
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0)
    throw Error(ErrorCode::store,
                fmt::format("cannot write {}: it is read-only; name another book with --book", path.string()),
                path.string());
}

void update_book(const fs::path& named, const std::function<bool(Book&)>& change) {
  expect_writable_book(named);
  const fs::path path = real_path(named);
  const FileLock lock(path, ErrorCode::store);
  std::error_code error;
  const bool is_there = fs::exists(path, error) || error;  // what cannot be told, reading tells
  Book book = is_there ? Book::read(path) : Book();
  if (!change(book)) return;
  sweep(path);
  write_file_atomically(path, book.bytes(), ErrorCode::store);
}

BookLocation default_book() {
  if (const char* named = std::getenv("HEED_BOOK"); named != nullptr) {
    if (*named != '\0') return {named, true, ""};
    return {{}, false, "HEED_BOOK is empty, which stands for no book; name one with --book"};
  }
  const fs::path folder = folder_of_environment("XDG_DATA_HOME", ".local/share");
  if (!folder.empty()) return {folder / "book.heed", false, ""};
  return {
      {}, false, "there is no place for a book: HEED_BOOK, XDG_DATA_HOME and HOME are not set; name one with --book"};
}

}  // namespace heed::dispatch
