/// The worker's side of a device: loads binaries into slots, runs them on images, times them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/counters.hpp"
#include "heed/heed.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {

/// What went wrong on the device, as the parent will tell it.
struct DeviceFailure : std::runtime_error {
  enum class Kind {
    launch,      ///< refused: bad configuration, out of memory
    crash,       ///< the device stopped: illegal address, trap
    left_state,  ///< the candidate left the processor in another state than it found it
  };
  Kind kind;
  DeviceFailure(Kind k, const std::string& what) : std::runtime_error(what), kind(k) {}
};

/// Number of binaries an executor holds at once: a base, a candidate, and the launch floor's empty kernel.
inline constexpr int kSlots = 4;

class Executor {
 public:
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Loads a binary; an earlier one in the slot is dropped.
  virtual void load(int slot, const std::string& path, const LaunchPlan& plan) = 0;
  /// No more loads: on a CPU the process gives up files, network and new processes before any candidate runs.
  virtual void seal() = 0;

  /// Copies the image to the device, launches once, copies it back to `result` (same size). Waits for the end.
  virtual void run(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result, const Launch& launch) = 0;

  /// The same with several launches on one image, in order.
  virtual void run_chain(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
                         const std::vector<Launch>& launches, Follow follow) = 0;

  /// Takes an image that holds all timed sets, and for each slot given the launches of one replay, in order.
  /// @param follow in_stream or dependent
  virtual void prepare(std::byte* image, std::uint64_t bytes,
                       const std::vector<std::pair<int, std::vector<Launch>>>& launches,
                       const std::vector<Range>& poisoned, Follow follow) = 0;
  /// Poisons what `prepare` was told to, on a GPU fills its L2 with other lines, replays once, then replays `replays`
  /// times. @return µs per launch of every replay but the first
  virtual std::vector<double> time(int slot, int replays) = 0;
  /// Replays for `ms` of wall clock without reading times.
  virtual void warm_up(int slot, double ms) = 0;
  /// Single launches with host time included. @return µs per call: back to back, then each waited for
  virtual std::pair<double, double> time_eager(int slot, int calls) = 0;
  /// Copies the timed image back to `result`.
  virtual void fetch(std::byte* result, std::uint64_t bytes) = 0;

  /// Copies the image to the device, launches once to warm up, then reads hardware counters of one launch.
  virtual CounterReading count(int slot, const std::byte* image, std::uint64_t bytes, const Launch& launch,
                               const std::string& library, const std::vector<MetricChoice>& choices) = 0;

 protected:
  Executor() = default;
};

std::unique_ptr<Executor> make_cpu_executor();
/// @throws Error(no_device)
std::unique_ptr<Executor> make_cuda_executor();

}  // namespace heed::worker
