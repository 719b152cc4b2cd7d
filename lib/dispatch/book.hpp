/// The book: champions with their binaries, where they come from and what was measured, in one file that libheed
/// dispatches from. It is a file of programs each of whose records has a provenance.
///
/// One champion for each architecture, workload and device name. Of two for the same, the rule of `Book::merge` keeps
/// one. Whoever writes holds the book's lock, and replaces the file by a rename: a reader needs no lock, and sees the
/// old book or the new one; a writer that is killed leaves the old one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/program_file.hpp"

namespace heed::dispatch {

/// @throws Error(programs) where a program of the file lacks its provenance or its contract
void expect_book(const ProgramFile& file);

struct BookEntry {
  ProgramRecord record;  ///< with a provenance
  std::string image;
};

class Book {
 public:
  /// An empty one.
  Book() = default;
  /// Every image is taken out and checked. @throws Error(programs) as ProgramFile::open and expect_book
  static Book read(const std::filesystem::path& path);
  static Book of(const ProgramFile& file);

  [[nodiscard]] const std::vector<BookEntry>& entries() const { return entries_; }

  enum class Kept {
    added,     ///< there was none of its architecture, workload and device
    replaced,  ///< it took an earlier one's place
    earlier,   ///< the earlier one stays
    same       ///< it is there already
  };
  struct Merged {
    Kept kept;
    std::string why;  ///< the rule as it applied, in a few words; empty where nothing was there
  };
  /// Puts an entry in its place. Where there is one: one of this library's kernel contract stays before one of another;
  /// of the same referee and the same measured sources the one with the
  /// higher lower end of its ratio stays; else their ratios say nothing of each other, and the one whose search is
  /// newer stays. Where that is equal too the earlier one stays.
  /// @throws Error(programs) for an entry that is no champion's, with the reason
  Merged merge(BookEntry entry);
  /// @return how many there were
  std::size_t remove(const std::function<bool(const ProgramRecord&)>& which);

  /// The whole file.
  [[nodiscard]] std::string bytes() const;

 private:
  std::vector<BookEntry> entries_;
};

/// Reads a book, or begins an empty one where there is none, has `change` change it, and writes it where that says so;
/// all while holding its lock. @throws Error(store) for a folder or a book that cannot be written, what reading throws,
/// and what `change` throws, with the book as it was
void update_book(const std::filesystem::path& path, const std::function<bool(Book&)>& change);

/// What update_book would fail with for want of a folder or a permission, before the work that is to be written.
void expect_writable_book(const std::filesystem::path& path);

/// Where the book lies when nobody names one: HEED_BOOK, else book.heed in $XDG_DATA_HOME/heed or ~/.local/share/heed.
struct BookLocation {
  std::filesystem::path path;  ///< empty: there is none
  bool is_named = false;       ///< by HEED_BOOK: that it is not there is an error
  std::string none;            ///< why there is none, in a sentence
};
/// Reads the environment alone: a library asks no user database for a home.
BookLocation default_book();

}  // namespace heed::dispatch
