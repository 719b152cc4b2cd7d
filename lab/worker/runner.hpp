/// A process for one operation of a CPU worker: it runs candidate code and nothing else.
///
/// A runner is a fork of the worker that has given up what it was: of the worker's memory it keeps the candidate's
/// code, a list of launches to read, the inputs to read, and outputs, workspace, counters, stacks and scratch to write;
/// no file, no vDSO, no time-stamp counter, and no system call but waiting without a limit. The worker holds the clock,
/// freezes the runner from outside, and kills it when the operation ends, so nothing a candidate has kept lives on.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/executor.hpp"
#include "worker/runner_process.hpp"

namespace heed::worker {

/// What a runner is to run, and the memory it may see.
struct RunnerTask {
  std::uintptr_t code = 0;  ///< pages of the candidate
  std::size_t code_bytes = 0;
  std::uintptr_t entry = 0;
  std::span<const CpuLaunch> launches;  ///< their tensors lie in the image
  int threads = 1;
  std::int64_t scratch_bytes = 0;  ///< a thread's
  std::byte* image = nullptr;      ///< page-aligned shared memory; null: the launches have no tensors
  std::uint64_t image_bytes = 0;
  bool counts = false;  ///< whether hardware counts are wanted, where the kernel allows them
};

class Runner {
 public:
  /// Forks, and waits until the runner has confined itself.
  /// @throws Error(worker) naming the step that the system refused
  explicit Runner(const RunnerTask& task);
  /// Kills it and waits for its end.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Starts the first `launches` of the list, on a runner that waits or is frozen.
  void begin(std::size_t launches);
  /// Waits until the runner says that they are done. @throws DeviceFailure(crash) when it has ended instead
  void wait();
  /// Waits until it says that `launches` of them are done, or for `most_us`.
  void wait_for_launches(std::size_t launches, double most_us);
  /// How many launches of those begun last the runner says are done.
  [[nodiscard]] std::size_t launches_done() const;

  /// Stops every thread where it is; returns when all have stopped. @throws DeviceFailure(crash) when it has ended
  void freeze();
  /// Lets a frozen runner go on where it is.
  void thaw();
  /// Waits until its threads sleep, as they soon do when launches are done, for 150 ms at most. @return how long one of
  /// them was surely seen to run, in us, without what it waited for a processor; 0 where the kernel does not tell
  [[nodiscard]] double awake_us() const;
  /// Fills scratch with NaN, so that a read of something never written shows and nothing lives on there. For a runner
  /// that waits or is frozen.
  void poison_scratch();
  /// Whether a launch left the control bits of the floating-point unit (rounding, flushing, traps) other than it found
  /// them.
  [[nodiscard]] bool control_was_changed() const;
  /// Whether anything was written into the memory of those claims that is none: something to keep from launch to
  /// launch.
  [[nodiscard]] bool wrote_beside_its_claims() const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Counts since the runner's start; empty where they were not asked for or the kernel has none.
  [[nodiscard]] std::optional<HardwareCounts> counts() const;

 private:
  static constexpr long kLookEvery_ns = 20'000'000;
  void lay_out(const RunnerTask& task);
  void fork_runner();
  void open_counters();
  [[nodiscard]] bool is_done(std::size_t launch) const;
  void wait_on(const std::uint32_t& word, std::uint32_t value);
  /// A runner that has ended may have said so between two waits: every kLookEvery_ns.
  void look_for_end();
  [[noreturn]] void ended(int status);
  void stop();

  pid_t pid_ = -1;
  bool frozen_ = false;
  std::byte* region_ = nullptr;
  std::size_t region_bytes_ = 0;
  inside::Plan* plan_ = nullptr;
  std::span<const std::byte> written_;  // of status and progress, whole pages
  std::vector<inside::Range> scratch_;
  std::size_t launch_count_ = 0;
  std::size_t begun_ = 0;
  int instructions_ = -1;
  int cycles_ = -1;
};

/// Runs a few machine instructions in a runner and sees that a forbidden system call ends it. Empty when this machine
/// can run CPU candidates; else the step that it refuses.
std::optional<std::string> why_no_runner();

/// Whether a candidate can read the processor's counter of time: on aarch64 before Linux 6.12, which closes it
/// (PR_SET_TSC, https://man7.org/linux/man-pages/man2/PR_SET_TSC.2const.html). Where a runner can be had.
bool runner_has_a_clock();

}  // namespace heed::worker
