/// A worker process and the memory shared with it, as the parent holds them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {

/// A worker did not do its work. The worker is gone; the run goes on with a fresh one.
class WorkerFailure : public std::runtime_error {
 public:
  enum class Kind {
    launch_failed,  ///< the device refused the launch or the memory
    crashed,        ///< a signal, a device fault, or an end nobody asked for
    timed_out,      ///< over its limit: wall clock, without what its threads waited for a processor
    garbage,        ///< bytes on the socket that are no answer
    left_state,     ///< a candidate left the processor in another state than it found it
    killed,         ///< by a signal that no candidate can cause: the machine's memory ran out, or somebody sent it
  };
  WorkerFailure(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  [[nodiscard]] Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// Memory mapped in both processes: images in, results out.
class Arena {
 public:
  /// @throws Error(unsupported) when it would take more than 60% of the memory that is available now
  explicit Arena(std::uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] int descriptor() const { return fd_; }

 private:
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// How long a GPU was at work for a worker's requests. A CPU's worker says nothing of it.
///
/// Where a request launches what is timed, it comes from the readings themselves or, where there are none, from the
/// worker's clock while its stream is full: nothing is added to a timed block. Elsewhere from CUPTI's activity records
/// where they are collected, else from an event before and after all work of the request, copies among them.
struct BusyTime {
  double us = 0;
  double recorded_us = 0;  ///< the part that activity records say
};

/// One worker process. Every call throws WorkerFailure when the worker fails it, and Error(interrupted) on Ctrl-C.
class Worker {
 public:
  /// @throws Error(worker) where no worker starts: the machine's doing, and no verdict on a candidate
  Worker(DeviceKind device, std::shared_ptr<Arena> arena);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] DeviceKind device() const { return device_; }
  [[nodiscard]] Arena& arena() { return *arena_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool sealed() const { return sealed_; }
  /// Until a call has failed.
  [[nodiscard]] bool lives() const { return pid_ > 0; }

  /// Every answer from here on adds to it what its request kept the device busy.
  void report_busy_to(std::shared_ptr<BusyTime> busy) { busy_ = std::move(busy); }
  /// From here on requests that time nothing collect CUPTI's activity records.
  /// @param library path of libcupti; empty: the usual places
  /// @return why they do not; empty where they do
  std::string record_activities(const std::string& library = {});

  void load(int slot, const std::string& path, const LaunchPlan& plan);
  void seal();
  /// Image at [image, image + bytes) of the arena, result at [result, result + bytes). @return wall-clock µs, for
  /// information
  void run(int slot, std::uint64_t image, std::uint64_t bytes, std::uint64_t result, const Launch& launch,
           double limit_s);
  /// The same with several launches on one image.
  void run_chain(int slot, std::uint64_t image, std::uint64_t bytes, std::uint64_t result,
                 const std::vector<Launch>& launches, Follow follow, double limit_s);
  void prepare(std::uint64_t image, std::uint64_t bytes,
               const std::vector<std::pair<int, std::vector<Launch>>>& launches, const std::vector<Range>& poisoned,
               const std::vector<ChannelRange>& keys, double limit_s, Follow follow = Follow::in_stream);
  void warm_up(int slot, double ms, double limit_s);

  struct Times {
    std::vector<double> us;  ///< per launch, one entry a replay
    double wall_us = 0;      ///< of the whole call, by this process's own clock
    /// What the processor counted, like `us`; empty where the machine counts nothing. Only a CPU's are counted.
    std::vector<double> instructions, cycles;
  };
  /// A block of timed replays. @param factors replays + 1 vectors; see Executor::time
  Times time(int slot, int replays, const std::vector<ChannelFactors>& factors, double limit_s);
  /// A block that is stopped within the replay after `replays`, near its launch `launches`, and `wanted` of the timed
  /// image as it was then, at the same places behind `result` of the arena. @param factors replays + 2 vectors; see
  /// Executor::spot_check. @param changes on a CPU alone
  Stopped spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors,
                     const std::vector<Range>& wanted, std::uint64_t result, std::uint64_t bytes, double limit_s,
                     const KeyChanges& changes = {});
  /// `wanted` of the timed image as the last launches left it, to the same places behind `result` of the arena.
  void fetch(const std::vector<Range>& wanted, std::uint64_t result, std::uint64_t bytes, double limit_s);
  /// µs per call: back to back, synchronised.
  std::pair<double, double> time_eager(int slot, int calls, double limit_s);
  /// Hardware counters of one launch on the image at [image, image + bytes) of the arena. For a worker that times
  /// nothing: reading counters replays the kernel and may change the clocks.
  /// @param library path of libcupti; empty: the usual places
  CounterReading count(int slot, std::uint64_t image, std::uint64_t bytes, const Launch& launch,
                       const std::string& library, const std::vector<MetricChoice>& choices, double limit_s);

 private:
  void spawn();
  nlohmann::json call(nlohmann::json request, double limit_s);
  Received wait_for_answer(double limit_s);
  void note_busy(const nlohmann::json& answer, double wall_us);
  void stop();

  DeviceKind device_;
  std::shared_ptr<Arena> arena_;
  pid_t pid_ = -1;
  int socket_ = -1;
  int log_ = -1;
  bool sealed_ = false;
  std::shared_ptr<BusyTime> busy_;
};

/// The child's side: serves requests on kSocket until it is closed. Returns the exit code.
int run_worker_child(DeviceKind device);

}  // namespace heed::worker
