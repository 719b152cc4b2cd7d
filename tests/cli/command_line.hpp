/// The command line as a user meets it: what it prints, where, and with which exit code.
#pragma once

#include <string>

#include "base/files.hpp"
#include "folders.hpp"
#include "process/process.hpp"
#include "requirements.hpp"
#include "testing.hpp"

namespace heed {

using testing_support::TemporaryFolder;

inline constexpr double kLimit_s = 600;  // ten times what the longest command here takes on an idle machine

// stdout and stderr apart: "out" holds stdout, "err" stderr.
struct Printed {
  int code = -1;
  std::string out;
  std::string err;
};

inline Printed heed_command(const std::string& arguments, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string command = environment + " " + std::string(testing_support::kHeedBinary) + " " + arguments + " >" +
                              folder.file("out") + " 2>" + folder.file("err");
  const ProcessResult result = run_process({"sh", "-c", command}, {}, kLimit_s);
  EXPECT_FALSE(result.timed_out) << arguments;
  return {result.signal != 0 ? 128 + result.signal : result.exit_code,
          read_file(folder.file("out"), ErrorCode::internal), read_file(folder.file("err"), ErrorCode::internal)};
}

// A failing command says one sentence on stderr, nothing on stdout, and exits with `code`.
inline void expect_refusal(const std::string& arguments, int code, const std::string& words,
                           const std::string& environment = "") {
  SCOPED_TRACE(arguments);
  const Printed run = heed_command(arguments, environment);
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr(words));
  EXPECT_THAT(run.err, ::testing::StartsWith("heed: "));
  EXPECT_EQ(run.err.find("terminate called"), std::string::npos);
}

class Cli : public ::testing::Test {
 protected:
  [[nodiscard]] std::string db() const { return "--db " + folder_.file("a.db"); }
  [[nodiscard]] static std::string cache() { return "--cache " + testing_support::shared_cache().string(); }
  [[nodiscard]] std::string tiny_evolution(int trials = 3) const {
    return "evolve --shape b1h1l48d16:fp32 --device cpu --population 2 --no-peers --measure-limit 0.02 --trials " +
           std::to_string(trials) + " " + db() + " " + cache();
  }
  TemporaryFolder folder_;
};

}  // namespace heed
