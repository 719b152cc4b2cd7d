#include "base/files.hpp"

#include <sys/stat.h>

#include <future>

#include "testing.hpp"

namespace heed {
namespace {

TEST(Files, AFileTakesThePlaceOfTheOneBefore) {
  const testing_support::TemporaryFolder folder;
  const auto path = folder.file("a");
  write_file_atomically(path, "one", ErrorCode::internal);
  write_file_atomically(path, "two", ErrorCode::internal);
  EXPECT_EQ(read_file(path, ErrorCode::internal), "two");
}

// /dev/null as an output is still a device afterwards.
TEST(Files, APipeIsWrittenToAndStaysOne) {
  const testing_support::TemporaryFolder folder;
  const auto path = folder.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto reader = std::async(std::launch::async, [&] { return read_file(path, ErrorCode::internal); });
  write_file_atomically(path, "text", ErrorCode::internal);
  EXPECT_EQ(reader.get(), "text");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

}  // namespace
}  // namespace heed
