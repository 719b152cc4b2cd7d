/// How long threads wanted a processor and did not get one, as Linux counts it in /proc/PID/task/TID/schedstat:
/// https://docs.kernel.org/scheduler/sched-stats.html
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string_view>

namespace heed {

/// Seconds that a thread waited on a run queue, from the three numbers of its schedstat. None where it is no such line.
std::optional<double> parse_processor_wait(std::string_view schedstat);

/// Seconds on a run queue, by thread.
using ProcessorWaits = std::map<pid_t, double>;

/// Of every thread of a process and of its children, since each was started. Empty where Linux does not count it.
ProcessorWaits processor_waits(pid_t process);

/// The longest wait of one thread between two looks, in seconds; threads of the second look alone began between them.
double longest_wait(const ProcessorWaits& before, const ProcessorWaits& after);

/// Whether a limit of time is over for threads that other programs may have kept from the processors. It has passed,
/// and in `watched_s` more seconds the thread that waited longest waited `waited_s`. That share is taken for the share
/// of all the time; what is left of it must reach the limit, or all of it ten limits.
bool is_over(double limit_s, double watched_s, double waited_s);

/// A limit of time for another process, of which its wait for processors is no part. What waits is read once the limit
/// has passed, for reading takes milliseconds; its share from then on is taken for that of the time before. Where
/// nothing waits, the limit is over one look later: a tenth of it, or half a second.
class PatientDeadline {
 public:
  explicit PatientDeadline(double limit_s);
  /// Until `is_over` should be asked: of the limit, then of each look. Not positive when it is time.
  [[nodiscard]] double left_s() const;
  /// Call when nothing is left. @param process and its children are looked at
  [[nodiscard]] bool is_over(pid_t process);

 private:
  using Clock = std::chrono::steady_clock;
  double limit_s_;
  Clock::time_point next_look_;
  bool watches_ = false;
  Clock::time_point watched_since_;
  ProcessorWaits before_;
};

}  // namespace heed
