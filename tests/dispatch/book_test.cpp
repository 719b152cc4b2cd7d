// The book: which of two champions stays, what is refused, and that writers lose nothing to each other.
#include "dispatch/book.hpp"

#include <sys/wait.h>

#include <functional>
#include <limits>
#include <thread>

#include "base/file_lock.hpp"
#include "dispatch/book_entries.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

using testing_support::book_entry;
using testing_support::expect_error;
using testing_support::TemporaryFolder;
using Kept = Book::Kept;

TEST(Book, KeepsOneOfTwoByItsRule) {
  struct Case {
    const char* name;
    std::function<void(BookEntry&)> change;  // of the second, which is the first otherwise
    Kept kept;
    std::size_t entries = 1;
  };
  const Case cases[] = {
      {"same", [](BookEntry&) {}, Kept::same},
      {"higher low end", [](BookEntry& e) { e = book_entry(1.2); }, Kept::replaced},
      {"lower low end", [](BookEntry& e) { e = book_entry(1.05); }, Kept::earlier},
      {"equal low end", [](BookEntry& e) { e.record.provenance->ratio.high = 9; }, Kept::earlier},
      {"equal low end, newer", [](BookEntry& e) { e.record.provenance->date = "2027-01-01T00:00:00Z"; }, Kept::earlier},
      {"newer referee",
       [](BookEntry& e) {
         e = book_entry(1.05);
         e.record.provenance->referee = 3;
         e.record.provenance->date = "2027-01-01T00:00:00Z";
       },
       Kept::replaced},
      {"other sources, older",
       [](BookEntry& e) {
         e = book_entry(1.5);
         e.record.provenance->source_digest = "ef";
         e.record.provenance->date = "2025-01-01T00:00:00Z";
       },
       Kept::earlier},
      {"other sources, as old", [](BookEntry& e) { e.record.provenance->source_digest = "ef"; }, Kept::earlier},
      {"other contract",
       [](BookEntry& e) {
         e = book_entry(1.5);
         e.record.contract = "other";
       },
       Kept::earlier},
      {"other device", [](BookEntry& e) { e.record.provenance->device = "GPU B"; }, Kept::added, 2},
      {"other architecture", [](BookEntry& e) { e.record.arch = "sm_80"; }, Kept::added, 2},
      {"other workload", [](BookEntry& e) { e.record.workload = "b2h8l512d64:fp16"; }, Kept::added, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Book book;
    EXPECT_EQ(book.merge(book_entry()).kept, Kept::added);
    BookEntry second = book_entry();
    c.change(second);
    EXPECT_EQ(book.merge(second).kept, c.kept);
    EXPECT_EQ(book.entries().size(), c.entries);
    const bool is_second = c.kept == Kept::added || c.kept == Kept::replaced;
    EXPECT_EQ(*book.entries().back().record.provenance,
              is_second ? *second.record.provenance : *book_entry().record.provenance);
  }
}

TEST(Book, ABinaryOfAnotherContractGivesWayToOneThatRuns) {
  Book book;
  BookEntry old = book_entry(1.5);
  old.record.contract = "other";
  (void)book.merge(old);
  EXPECT_EQ(book.merge(book_entry(1.1)).kept, Kept::replaced);
}

TEST(Book, RefusesWhatIsNoEvidence) {
  const auto refuses = [](const std::string& words, const std::function<void(BookEntry&)>& change) {
    Book book;
    BookEntry entry = book_entry();
    change(entry);
    expect_error(ErrorCode::programs, words, [&] { (void)book.merge(entry); });
    EXPECT_TRUE(book.entries().empty());
  };
  refuses("does not say where it comes from", [](BookEntry& e) { e.record.provenance.reset(); });
  refuses("nothing of the device", [](BookEntry& e) { e.record.provenance->device.clear(); });
  refuses("the sources and the referee", [](BookEntry& e) { e.record.provenance->referee = 0; });
  refuses("the sources and the referee", [](BookEntry& e) { e.record.provenance->source_digest.clear(); });
  refuses("reaches down to 1", [](BookEntry& e) { e.record.provenance->ratio = {1.1, 1.0, 1.2}; });
  refuses("reaches down to 1", [](BookEntry& e) { e.record.provenance->ratio = {1.1, 0.9, 1.2}; });
  refuses("has no interval", [](BookEntry& e) { e.record.provenance->ratio = {1.1, 1.2, 1.3}; });
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  refuses("", [](BookEntry& e) { e.record.provenance->ratio = {1.1, kNan, 1.2}; });
  refuses("has no interval", [](BookEntry& e) { e.record.provenance->ratio = {kNan, 1.1, 1.2}; });
}

std::string bytes_of_two() {
  Book book;
  (void)book.merge(book_entry());
  (void)book.merge(book_entry(1.2, "b2h8l512d64:fp16"));
  return book.bytes();
}

TEST(Book, ReadsWhatItWroteAndNothingThatWasAlteredOrCut) {
  const std::string whole = bytes_of_two();
  const Book book = Book::of(*ProgramFile::parse(whole, "f"));
  ASSERT_EQ(book.entries().size(), 2U);
  EXPECT_EQ(book.entries()[0].image, book_entry().image);
  EXPECT_EQ(*book.entries()[0].record.provenance, *book_entry().record.provenance);
  EXPECT_EQ(book.bytes(), whole);
  const auto reads = [](const std::string& bytes) {
    try {
      (void)Book::of(*ProgramFile::parse(bytes, "f"));
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::programs) << error.what();
      return false;
    }
  };
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string altered = whole;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ 1 << bit % 8);
    ASSERT_FALSE(reads(altered)) << "bit " << bit;
  }
  for (std::size_t end = 0; end < whole.size(); end += 64) ASSERT_FALSE(reads(whole.substr(0, end))) << end;
}

TEST(Book, AFileOfProgramsWithoutProvenanceIsNone) {
  BookEntry entry = book_entry();
  entry.record.provenance.reset();
  ProgramFileWriter writer("abcd");
  writer.add(entry.record, entry.image);
  expect_error(ErrorCode::programs, "is no book", [&] { (void)Book::of(*ProgramFile::parse(writer.bytes(), "f")); });
}

bool add(Book& book, int number) {
  return book.merge(book_entry(1.1, "b" + std::to_string(number) + "h8l512d64:fp16")).kept == Kept::added;
}

TEST(Book, AChangeThatThrowsLeavesItAsItWas) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.heed");
  update_book(path, [](Book& book) { return add(book, 1); });
  const std::string before = read_file(path, ErrorCode::internal);
  EXPECT_THROW(update_book(path,
                           [](Book& book) -> bool {
                             add(book, 2);
                             throw std::runtime_error("no");
                           }),
               std::runtime_error);
  update_book(path, [](Book& book) { return add(book, 2), false; });
  EXPECT_EQ(read_file(path, ErrorCode::internal), before);
}

TEST(Book, SweepsItsOwnHalfWrittenFilesAlone) {
  const TemporaryFolder folder;
  const std::string own = folder.file(".a.heed.123.0.tmp");
  const std::string others = folder.file(".a.heed.old.123.0.tmp");  // of a book a.heed.old
  for (const std::string& name : {own, others}) std::ofstream(name) << "half";
  update_book(folder.file("a.heed"), [](Book& book) { return add(book, 1); });
  EXPECT_FALSE(std::filesystem::exists(own));
  EXPECT_TRUE(std::filesystem::exists(others));
}

TEST(Book, WritersWaitForEachOther) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.heed");
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 1; i <= 4; ++i) update_book(path, [&](Book& book) { return add(book, 4 * writer + i); });
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Book::read(path).entries().size(), 16U);
  const FileLock held(path, ErrorCode::store);
  expect_error(ErrorCode::store, "another process has held its lock",
               [&] { const FileLock second(path, ErrorCode::store, 0.02); });
}

}  // namespace
}  // namespace heed::dispatch
