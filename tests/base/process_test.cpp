#include "process/process.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/digest.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "process/interrupt.hpp"
#include "process/line_process.hpp"
#include "testing.hpp"

namespace heed {
namespace {

TEST(Process, FeedsInputAndCollectsOutput) {
  const ProcessResult result = run_process({"cat"}, std::string(300'000, 'x'), 10);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output.size(), 300'000U);
}

TEST(Process, ReportsExitCodesAndSignals) {
  EXPECT_EQ(run_process({"sh", "-c", "exit 3"}, {}, 10).exit_code, 3);
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}, {}, 10).signal, SIGKILL);
}

TEST(Process, KillsTheWholeGroupAtTheLimit) {
  const auto begin = std::chrono::steady_clock::now();
  const ProcessResult result = run_process({"sh", "-c", "sleep 30 & sleep 30"}, {}, 0.3);
  EXPECT_TRUE(result.timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// What a program that goes on behind its closed stdout and stderr keeps.
TEST(Process, KillsTheWholeGroupOfAProgramThatHasClosedItsOutput) {
  const testing_support::TemporaryFolder folder;
  for (const Errors errors : {Errors::with_output, Errors::apart}) {
    const auto begin = std::chrono::steady_clock::now();
    const ProcessResult result =
        run_process({"sh", "-c", "echo hi; exec >&- 2>&-; sleep 600 & echo $! > \"$0\"; sleep 600", folder.file("pid")},
                    {}, 0.3, {}, errors);
    EXPECT_TRUE(result.timed_out);
    EXPECT_EQ(result.output, "hi\n");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(300));
    const auto pid = static_cast<pid_t>(std::stoi(read_file(folder.file("pid"), ErrorCode::internal)));
    const auto is_alive = [&] {
      const std::string status = read_kernel_file("/proc/" + std::to_string(pid) + "/stat");
      return !status.empty() && status.find(") Z ") == std::string::npos;
    };
    for (int i = 0; i < 1000 && is_alive(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(is_alive());
  }
}

TEST(Process, AnInterruptEndsAProgramThatHasClosedItsOutput) {
  std::atomic<bool> stop = false;
  const Stoppable stoppable(stop);
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stop = true;
  });
  EXPECT_TRUE(run_process({"sh", "-c", "exec >&- 2>&-; sleep 600"}, {}, 500).interrupted);
  user.join();
}

TEST(Process, AProgramThatHasClosedItsOutputIsWaitedFor) {
  const ProcessResult result =
      run_process({"sh", "-c", "exec >&-; head -c 300000 /dev/zero >&2; cat > /dev/null; exit 3"},
                  std::string(300'000, 'x'), 500, {}, Errors::apart);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.errors.size(), 64U << 10);
}

// A run ignores the signal, or has a handler, so that a full file is an error with a sentence.
TEST(Process, ProgramsAreEndedByALimitOfFileSizes) {
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_EQ(run_process({"sh", "-c", "kill -XFSZ $$"}, {}, 60).signal, SIGXFSZ);
  std::signal(SIGXFSZ, before);
}

TEST(Process, SaysWhenAProgramIsMissing) {
  const ProcessResult result = run_process({"/no/such/program"}, {}, 5);
  EXPECT_FALSE(result.started);
  EXPECT_THAT(result.output, ::testing::HasSubstr("No such file"));
}

TEST(Process, ChildThatReadsNothingIsNoProblem) {
  EXPECT_TRUE(run_process({"true"}, std::string(1 << 20, 'x'), 10).ok());
}

TEST(LineProcess, AnswersLineByLine) {
  LineProcess echo({"sh", "-c", "while read line; do echo \"<$line>\"; done"});
  EXPECT_EQ(echo.ask("a", 5), "<a>");
  EXPECT_EQ(echo.ask("b c", 5), "<b c>");
}

TEST(LineProcess, EndIsNoAnswer) {
  LineProcess gone({"true"});
  EXPECT_FALSE(gone.ask("a", 5).has_value());
  LineProcess silent({"sleep", "20"});
  EXPECT_FALSE(silent.ask("a", 0.2).has_value());
}

TEST(Parallel, VisitsEveryIndexOnce) {
  std::vector<std::atomic<int>> visits(1000);
  parallel_for(1000, 4, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
  for (const auto& count : visits) EXPECT_EQ(count, 1);
}

TEST(Parallel, RethrowsAFailure) {
  EXPECT_THROW(parallel_for(100, 4,
                            [](std::int64_t i) {
                              if (i == 50) throw std::runtime_error("stop");
                            }),
               std::runtime_error);
}

TEST(Digest, PartsDoNotRunTogether) {
  EXPECT_NE(Digester().add("ab").add("c").hex(), Digester().add("a").add("bc").hex());
  EXPECT_EQ(digest("heed").size(), 32U);
}

TEST(Random, SameSeedSameNumbers) {
  Random a(7);
  Random b(7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(substream(7, 1), substream(7, 2));
}

TEST(Random, NormalHasTheRightMoments) {
  Random random(3);
  double sum = 0;
  double square = 0;
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    square += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(square / kCount, 1, 0.02);
}

TEST(Files, AtomicWriteReplaces) {
  const testing_support::TemporaryFolder folder;
  write_file_atomically(folder.file("a"), "one", ErrorCode::cache);
  write_file_atomically(folder.file("a"), "two", ErrorCode::cache);
  EXPECT_EQ(read_file(folder.file("a"), ErrorCode::cache), "two");
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    (void)entry;
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "a temporary file was left";
}

TEST(Files, ErrorsNamePathAndReason) {
  testing_support::expect_error(ErrorCode::invalid_input, "/no/such: No such file",
                                [] { read_file("/no/such", ErrorCode::invalid_input); });
  testing_support::expect_error(ErrorCode::cache, "it is a folder", [] { read_file("/tmp", ErrorCode::cache); });
  testing_support::expect_error(ErrorCode::cache, "cannot write",
                                [] { write_file_atomically("/no/such/file", "x", ErrorCode::cache); });
}

}  // namespace
}  // namespace heed
