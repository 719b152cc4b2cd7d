/// Helpers that several tests share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/text.hpp"
#include "folders.hpp"
#include "heed/heed.hpp"

namespace heed::testing_support {

/// A folder that is gone after the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "heed-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// An environment variable has another value, or none, while this lives.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~EnvironmentVariable() { set(before_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value)
      ::setenv(name_, value->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

/// Runs `body`, which must throw an Error with `code` whose message contains `words`.
template <typename Body>
void expect_error(ErrorCode code, const std::string& words, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "no error; expected one about \"" << words << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(words));
  }
}

/// The case table of tests/cases: from the source tree, or from the current folder where a test program was carried to
/// another machine.
inline std::vector<Workload> case_table() {
  std::ifstream file(std::string(kSourceFolder) + "/tests/cases/forward.txt");
  if (!file) file.open("tests/cases/forward.txt");
  std::vector<Workload> cases;
  std::string line;
  while (std::getline(file, line))
    if (const std::string text = trim(line.substr(0, line.find('#'))); !text.empty())
      cases.push_back(parse_workload(text));
  if (cases.empty()) throw std::runtime_error("tests/cases/forward.txt was not found");
  return cases;
}

/// A cache that all tests of a run share, so that a kernel is built once.
inline std::filesystem::path shared_cache() {
  return std::filesystem::temp_directory_path() / ("heed-test-cache-" + std::to_string(::getuid()));
}

}  // namespace heed::testing_support
