// Something outside kills a worker, at any moment: no trial, no base and no run suffers for it.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/files.hpp"
#include "base/random.hpp"
#include "quick_trials.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;

// Kills every child of this process that is a worker. @return how many
int kill_workers() {
  int killed = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    const std::string text = read_kernel_file(entry.path() / "stat");
    const std::size_t after_name = text.rfind(") ");
    if (after_name == std::string::npos) continue;
    std::istringstream fields(text.substr(after_name + 2));
    std::string state;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent != ::getpid()) continue;
    if (read_kernel_file(entry.path() / "cmdline").find("worker") == std::string::npos) continue;
    killed += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
  }
  return killed;
}

// Does `work` while workers are killed once, after `delay_ms`.
template <typename Work>
void disturbed(int delay_ms, const Work& work) {
  std::thread killer([delay_ms] {
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    for (int wait = 0; wait < 200 && kill_workers() == 0; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  work();
  killer.join();
}

TEST(KilledWorker, IsReplacedWhateverItWasDoing) {
  const Workload workload = parse_workload("b1h2l64d32:fp32");
  Options options;
  options.launch_limit_s = 10;
  options.pair = {.least_quads = 3, .most_quads = 4, .target_uncertainty = 0.05, .hopeless_below = 0, .limit_s = 0.2};
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, options);
  const Built base = trial_runner.build(parse_variant("fwd_cpu", workload, cpu_facts()));
  for (const int delay_ms : {0, 1, 2, 5, 10, 20, 50, 100, 200, 400}) {
    SCOPED_TRACE(delay_ms);
    disturbed(delay_ms, [&] { EXPECT_NO_THROW(trial_runner.set_base(base)); });
    disturbed(delay_ms, [&] {
      const Outcome outcome = trial_runner.judge(
          base.variant, {.artifact = base.artifact, .timed_out = false, .log = {}}, fresh_seed() >> 1);
      EXPECT_TRUE(outcome.ok()) << to_string(outcome.verdict) << ": " << outcome.reason;
    });
    disturbed(delay_ms, [&] { EXPECT_GT(trial_runner.measure_large(base), 0); });
  }
}

TEST(KilledWorker, WhereEveryOneIsKilledTheRunEndsWithASentence) {
  const Workload workload = parse_workload("b1h2l64d32:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, Options{});
  const Built base = trial_runner.build(parse_variant("fwd_cpu", workload, cpu_facts()));
  std::atomic<bool> ended{false};
  std::thread killer([&] {
    while (!ended) kill_workers();
  });
  std::string said;
  try {
    trial_runner.set_base(base);
  } catch (const Error& error) {
    said = error.what();
  }
  ended = true;
  killer.join();
  EXPECT_THAT(said, ::testing::HasSubstr("something outside kills the workers of this run, 20 times in a row"));
}

}  // namespace
}  // namespace heed::trial
