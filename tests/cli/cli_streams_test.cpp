// Streams and files that are not what a command hopes for: full disks, readers that leave, closed streams, devices,
// files of other programs, and lists of nothing.
#include <fmt/format.h>

#include "cli/command_line.hpp"
#include "store/sqlite.hpp"

namespace heed {
namespace {

ProcessResult in_a_shell(const std::string& line) {
  return run_process({"sh", "-c", fmt::format("heed() {{ {} \"$@\"; }}; {}", testing_support::kHeedBinary, line)}, {},
                     kLimit_s, {}, Errors::apart);
}

TEST_F(Cli, OutputThatIsLostIsAFailure) {
  for (const char* command : {"families", "families --json", "--help", "--version", "families --help",
                              "emit fwd_cpu --shape b1h1l48d16:fp32"}) {
    const ProcessResult full = in_a_shell(fmt::format("heed {} >/dev/full", command));
    EXPECT_EQ(full.exit_code, 1) << command;
    EXPECT_EQ(full.errors, "heed: cannot write to stdout: No space left on device\n") << command;
    const ProcessResult closed = in_a_shell(fmt::format("heed {} >&-", command));
    EXPECT_EQ(closed.exit_code, 1) << command;
    EXPECT_EQ(closed.errors, "heed: cannot write to stdout: Bad file descriptor\n") << command;
  }
  EXPECT_EQ(in_a_shell("heed families 2>&- >/dev/null").exit_code, 0);
  for (const char* stream : {"/dev/full", "&-"})
    for (const char* command : {"evovle", "families fwd_none", "programs list /nothing"})
      EXPECT_LE(in_a_shell(fmt::format("heed {} 2>{}", command, stream)).exit_code, 2) << command << stream;
  EXPECT_EQ(in_a_shell("heed families <&-").exit_code, 0);
}

// A shell's limit of file sizes would end the program by a signal.
TEST_F(Cli, AFileThatMayGrowNoFurtherIsAFailure) {
  const ProcessResult run = in_a_shell(
      fmt::format("ulimit -f 1; heed emit fwd_cpu --shape b1h1l48d16:fp32 --whole >{}", folder_.file("out")));
  EXPECT_EQ(run.exit_code, 1) << run.signal;
  EXPECT_EQ(run.errors, "heed: cannot write to stdout: File too large\n");
}

// Nothing that is opened takes the number of a stream that was closed, and is printed into.
TEST_F(Cli, ClosedStreamsAreNoDatabase) {
  EXPECT_EQ(heed_command("insights harvest " + db()).code, 0);
  const std::string file = folder_.file("a.db");
  const std::string before = read_file(file, ErrorCode::internal);
  EXPECT_EQ(in_a_shell(fmt::format("heed runs --db {} <&- >&- 2>&-", file)).exit_code, 1);
  EXPECT_EQ(read_file(file, ErrorCode::internal), before);
}

// As a search behind `| head`: it ends as by Ctrl-C, and what it has is stored.
TEST_F(Cli, AReaderThatLeavesEndsTheCommand) {
  const ProcessResult left =
      in_a_shell(fmt::format("{{ heed {}; echo $? >{}; }} | head -n 1", tiny_evolution(1000), folder_.file("code")));
  EXPECT_THAT(left.output, ::testing::StartsWith("run 1: "));
  EXPECT_THAT(read_file(folder_.file("code"), ErrorCode::internal), ::testing::AnyOf("130\n", "141\n"));
  EXPECT_EQ(heed_command("runs " + db()).code, 0);
}

TEST_F(Cli, DevicesAreNoFiles) {
  expect_refusal("run --qkv /dev/zero -o " + folder_.file("o.npy"), 1, "it is a pipe or a device, not a file");
  expect_refusal("champions -o /dev/zero " + db(), 1, "there is no database");
  expect_refusal("verify --cases /dev/full", 2, "cannot read /dev/full: it is a device");
  expect_refusal("calibrate --shape b1h1l16d16 --modes int8 --choices /dev/full", 2, "/dev/full: it is a device");
}

TEST_F(Cli, DatabasesOfOthersStayAsTheyAre) {
  const std::string other = folder_.file("a.db");
  store::Database(other, store::Access::read_write).execute("CREATE TABLE songs (name TEXT)");
  const std::string before = read_file(other, ErrorCode::internal);
  for (const std::string command : {"runs", "show 1", "insights harvest"})
    expect_refusal(command + " " + db(), 1, "is of another program; name another file with --db");
  expect_refusal(tiny_evolution(), 1, "is of another program");
  EXPECT_EQ(read_file(other, ErrorCode::internal), before);
  write_file_atomically(folder_.file("none.db"), "", ErrorCode::internal);
  expect_refusal("runs --db " + folder_.file("none.db"), 1, "holds no runs; heed evolve makes the first");
  EXPECT_EQ(read_file(folder_.file("none.db"), ErrorCode::internal), "");
}

TEST_F(Cli, ListsOfNothingAreRefused) {
  write_file_atomically(folder_.file("none"), "# nothing\n\n", ErrorCode::internal);
  const std::string none = folder_.file("none");
  for (const std::string command : {"verify --cases ", "library cases --device cpu --cases "})
    expect_refusal(command + none, 2, "names no workload");
  expect_refusal(fmt::format("build --device cpu --into {} --list {}", folder_.file("into"), none), 2,
                 "names no variant");
  write_file_atomically(none, R"({"champions": [], "schema": 1, "unbeaten": [], "what": "champions"})",
                        ErrorCode::internal);
  expect_refusal(fmt::format("book add --book {} --champions {}", folder_.file("b.heed"), none), 2,
                 "holds no champion");
  expect_refusal(fmt::format("book add --book {} --arch sm_80 --champions {}/tuned/champions.json",
                             folder_.file("b.heed"), testing_support::kSourceFolder),
                 2, "holds no champion of sm_80; it has those of ");
}

TEST_F(Cli, WhatIsMissingComesWithAWayOn) {
  expect_refusal("dispatch --shape b1h1l48d16:fp32 --device-name x --programs " + folder_.file("none.programs"), 1,
                 "heed programs build -o FILE makes one");
  expect_refusal("verify --shape b1h1l48d16:fp32 --device cpu --cache /proc/none", 1, "name another with --cache");
  if (run_process({"nvidia-smi"}, {}, 20).ok()) return;
  expect_refusal("prebuild --shapes b1h8l512d64", 1, "--arch sm_90a builds for a GPU of another machine");
  expect_refusal("build fwd_sm80 --shape b1h8l512d64 -o " + folder_.file("v"), 1, "--arch sm_90a builds");
}

}  // namespace
}  // namespace heed
