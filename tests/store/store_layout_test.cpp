// Databases of other layouts: what an older or a newer Heed has written.
#include "store/store.hpp"
#include "testing.hpp"

namespace heed::store {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

TEST(Store, LeavesOtherLayoutsAlone) {
  const TemporaryFolder folder;
  { Store store(folder.file("a.db")); }
  {
    Database database(folder.file("a.db"), Access::read_write);
    database.execute("PRAGMA user_version = 99");
  }
  expect_error(ErrorCode::store, "layout 99, written by a newer Heed", [&] { Store store(folder.file("a.db")); });
  expect_error(ErrorCode::store, "layout 99", [&] { Store store(folder.file("a.db"), Access::read_only); });
  {
    Database database(folder.file("a.db"), Access::read_write);
    database.execute("PRAGMA user_version = 1");
  }
  expect_error(ErrorCode::store, "layout 1, written by an older Heed", [&] { Store store(folder.file("a.db")); });
  EXPECT_EQ(layout_of(folder.file("a.db")), 1);
  EXPECT_EQ(layout_of(folder.file("none.db")), 0);
  write_file_atomically(folder.file("other.db"), std::string(200, 'x'), ErrorCode::internal);
  EXPECT_EQ(layout_of(folder.file("other.db")), 0);
}

TEST(Store, LeavesDatabasesOfOtherProgramsAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  Database(path, Access::read_write).execute("CREATE TABLE runs (song TEXT); PRAGMA user_version = 3");
  const std::string before = read_file(path, ErrorCode::internal);
  for (const Access access : {Access::read_write, Access::read_only})
    expect_error(ErrorCode::store, "is of another program", [&] { Store store(path, access); });
  EXPECT_EQ(read_file(path, ErrorCode::internal), before);
}

TEST(Store, AnEmptyFileIsNotWrittenToByReading) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  write_file_atomically(path, "", ErrorCode::internal);
  expect_error(ErrorCode::store, "holds no runs", [&] { Store store(path, Access::read_only); });
  EXPECT_EQ(read_file(path, ErrorCode::internal), "");
  { Store store(path); }
  EXPECT_TRUE(Store(path, Access::read_only).runs().empty());
}

}  // namespace
}  // namespace heed::store
