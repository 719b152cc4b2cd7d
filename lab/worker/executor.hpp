/// The worker's side of a device: loads binaries into slots, runs them on images, times them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "worker/hardware_counters.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {

/// What went wrong on the device, as the parent will tell it.
struct DeviceFailure : std::runtime_error {
  enum class Kind {
    launch,      ///< refused: bad configuration, out of memory
    crash,       ///< the device stopped: illegal address, trap
    left_state,  ///< the candidate left the processor in another state than it found it
    killed,      ///< a process of the worker's was killed by something outside
  };
  Kind kind;
  DeviceFailure(Kind k, const std::string& what) : std::runtime_error(what), kind(k) {}
};

/// What launches cost, as the processor counted it, in user code of all threads.
struct HardwareCounts {
  double instructions = 0;
  double cycles = 0;
};

/// What a device was busy with for requests; worker.hpp's BusyTime says where each part comes from.
struct DeviceBusy {
  double us = 0;
  double recorded_us = 0;
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
  /// @param poisoned what a block begins by filling with 0xff: outputs and workspaces
  /// @param keys K of each timed set
  /// @param follow in_stream or dependent
  virtual void prepare(std::byte* image, std::uint64_t bytes,
                       const std::vector<std::pair<int, std::vector<Launch>>>& launches,
                       const std::vector<Range>& poisoned, const std::vector<ChannelRange>& keys, Follow follow) = 0;
  /// A block: poisons what `prepare` was told to, on a GPU fills its L2 with other lines, makes a lead replay (a CPU's
  /// may be of fewer launches), then `replays` replays. Before each of these replays, the lead too and outside the
  /// timed interval, K of every set is multiplied by the next vector, and what a launch leaves behind is poisoned:
  /// shared or scratch memory, registers, stacks.
  /// @param factors replays + 1 vectors of a factor a channel; for prepared `keys` all of one dim
  /// @return µs per launch of every replay but the lead
  virtual std::vector<double> time(int slot, int replays, const std::vector<ChannelFactors>& factors) = 0;
  /// The same as a block of more than `replays` replays, as far as a candidate can see, until one more replay has
  /// begun: it stops when about `launches` (1 to all) of that replay's launches are complete. Leaves the timed image as
  /// it is then, for `fetch`.
  /// @param factors replays + 2 vectors: the lead, the replays, the one that is stopped
  virtual Stopped spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors) = 0;
  /// What the next spot check does to K besides. Left out where launches cannot be paused.
  virtual void change_keys(KeyChanges /*changes*/) {}
  /// Copies ranges of the timed image to the same places of `result`, which is as large as the image.
  virtual void fetch(std::byte* result, const std::vector<Range>& ranges) = 0;
  /// What the processor counted in each replay of the last `time`, per launch; empty where nothing is counted.
  [[nodiscard]] virtual std::vector<HardwareCounts> counted() const { return {}; }
  /// Replays for `ms` of wall clock without reading times, K as it is.
  virtual void warm_up(int slot, double ms) = 0;
  /// Single launches with host time included, on poisoned outputs, in the order of the list. @return µs per call: back
  /// to back, then each waited for
  virtual std::pair<double, double> time_eager(int slot, int calls) = 0;

  /// Copies the image to the device, launches once to warm up, then reads hardware counters of one launch.
  virtual CounterReading count(int slot, const std::byte* image, std::uint64_t bytes, const Launch& launch,
                               const std::string& library, const std::vector<MetricChoice>& choices) = 0;

  /// From here on `run` and `run_chain` collect activity records. @throws Error(unsupported) where they cannot
  virtual void record_activities(const std::string& /*library*/) {
    throw Error(ErrorCode::unsupported, "activities are recorded on NVIDIA GPUs only");
  }
  /// Since the last call; empty where nothing counts it.
  virtual std::optional<DeviceBusy> take_busy() { return std::nullopt; }

 protected:
  Executor() = default;
};

std::unique_ptr<Executor> make_cpu_executor();
/// @throws Error(no_device)
std::unique_ptr<Executor> make_cuda_executor();

}  // namespace heed::worker
