#include "base/files.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <iterator>

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

TEST(Files, DevicesHaveNoEndAndAreRefused) {
  for (const char* device : {"/dev/zero", "/dev/full"})
    testing_support::expect_error(ErrorCode::cache, "it is a device, not a file",
                                  [&] { read_file(device, ErrorCode::cache); });
  EXPECT_EQ(read_file("/dev/null", ErrorCode::cache), "");
}

// The reader of a pipe waits for a writer, for ever where there is none.
TEST(Files, APipeIsNoStoredFile) {
  const testing_support::TemporaryFolder folder;
  const auto pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  testing_support::expect_error(ErrorCode::programs, "it is a pipe, not a file",
                                [&] { read_stored_file(pipe, ErrorCode::programs, 9); });
  write_file_atomically(folder.file("a"), "one", ErrorCode::internal);
  EXPECT_EQ(read_stored_file(folder.file("a"), ErrorCode::internal, 3), "one");
  testing_support::expect_error(ErrorCode::programs, "it has 3 bytes, and what belongs there at most 2",
                                [&] { read_stored_file(folder.file("a"), ErrorCode::programs, 2); });
}

// Relative paths name another folder in each working directory.
TEST(Files, ARelativeHomeIsNone) {
  const testing_support::EnvironmentVariable data("XDG_DATA_HOME", "data");
  const testing_support::EnvironmentVariable home("HOME", "home");
  EXPECT_EQ(folder_of_environment("XDG_DATA_HOME", ".local/share"), "");
  EXPECT_TRUE(default_database_path().is_absolute());
  const testing_support::EnvironmentVariable whole("HOME", "/home/of");
  EXPECT_EQ(default_database_path(), "/home/of/.local/share/heed/heed.db");
}

TEST(Files, WhatTheKernelTellsMayVanish) {
  EXPECT_NE(read_kernel_file("/proc/self/stat"), "");
  EXPECT_EQ(read_kernel_file("/proc/self/nothing"), "");
  // A task that ends between the opening and the reading: its files answer ESRCH.
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  std::ifstream opened("/proc/" + std::to_string(child) + "/stat");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_ANY_THROW((void)std::string(std::istreambuf_iterator<char>(opened), std::istreambuf_iterator<char>()))
      << "read_kernel_file need not catch this any more";
}

}  // namespace
}  // namespace heed
