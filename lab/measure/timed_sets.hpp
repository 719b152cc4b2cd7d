/// The inputs that timed launches run on, and the check of what those launches wrote.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "verify/compare.hpp"
#include "verify/scene.hpp"
#include "worker/worker.hpp"

namespace heed::measure {

enum class Caches {
  warm,  ///< all sets together fit the last-level cache with room to spare
  cold,  ///< all sets together are three times the last-level cache, so each launch finds its inputs in memory
};

/// How many sets, and how many launches a replay.
struct TimingPlan {
  int sets = 0;
  int launches = 0;
  int replays = 0;  ///< a block of a paired comparison
  /// Tensors that launches of a replay write to one after the other: those of the sets, or one a launch. A candidate
  /// for CPUs can find the list of its launches; where a later one writes the same tensor it could leave one out.
  int outputs = 0;  ///< no more than the sets: those of the sets
};

/// @param most_block_us what the replays of a block may take, as far as that can be guessed; one is made all the same
TimingPlan plan_timing(const Workload& workload, const DeviceFacts& device, Caches caches,
                       double most_block_us = std::numeric_limits<double>::infinity());

/// The numbers below `count` in random order.
std::vector<int> permutation(int count, Random& random);

/// Launches that a replay over `sets` sets may have so that no head of queries meets the same keys twice: each of Q
/// with each of K, as often as Q can be moved on by a head of keys.
std::int64_t most_launches(const Workload& workload, int sets);

/// Several input sets, side by side in one image.
///
/// With round r = n / S and cycle c = n / S^2, launch n of a replay reads Q of set n % S, K of set (n + r) % S and V of
/// set (n + 2 r + c) % S, and writes O of set n % S or one of its own; the sets are counted in a random order. In cycle
/// c Q begins c heads of keys later, its first heads behind its last. So no head of queries meets the same keys twice
/// within a replay: neither outputs nor scores that were left or kept somewhere are those of another launch. Which
/// memory the next launch reads cannot be guessed, so nothing can be gained by fetching it early.
///
/// Behind the sets the image holds the outputs that are no set's, between guards of random bytes.
class TimedSets {
 public:
  /// @param memory what a launch may take besides the tensors; each set has its own
  /// @param inputs what the tensors hold; where the time of a kernel depends on them, large scores show it
  TimedSets(const Workload& workload, const TimingPlan& plan, const LaunchMemory& memory, std::uint64_t seed,
            verify::InputClass inputs = verify::InputClass::normal);

  [[nodiscard]] const TimingPlan& plan() const { return plan_; }
  [[nodiscard]] const LaunchMemory& memory() const { return memory_; }
  [[nodiscard]] std::uint64_t image_bytes() const { return set_bytes() + output_stride_ * own_outputs(); }
  /// Arena needed: the image and a copy to look at afterwards.
  [[nodiscard]] std::uint64_t arena_bytes() const { return 2 * image_bytes(); }

  /// Bytes that a block of replays reads or writes outside of what it times: K before each replay, O and workspaces
  /// once.
  [[nodiscard]] double untimed_bytes() const;

  /// Puts the image into the worker's arena and hands over the launches of each (slot, plan).
  /// @param follow in_stream, or dependent for plans that allow it
  void prepare(worker::Worker& worker, const std::vector<std::pair<int, LaunchPlan>>& slots, double limit_s,
               worker::Follow follow = worker::Follow::in_stream);

  /// Random signs for the channels of K before each of `count` replays; the sets keep account of them.
  [[nodiscard]] std::vector<worker::ChannelFactors> flips(int count);

  /// Factors that bring K from what it is multiplied by to each of `totals` in turn.
  [[nodiscard]] std::vector<worker::ChannelFactors> factors_to(const std::vector<worker::ChannelFactors>& totals);
  /// What K in the worker is multiplied by, all in all.
  [[nodiscard]] const worker::ChannelFactors& product() const { return product_; }

  [[nodiscard]] const Workload& workload() const { return workload_; }
  [[nodiscard]] verify::InputClass inputs() const { return inputs_; }
  [[nodiscard]] const verify::Scene& scene(int set) const { return scenes_[static_cast<std::size_t>(set)]; }
  /// Bytes from one set to the next; what lies between a scene's end and the next set is random, and stays so.
  [[nodiscard]] std::uint64_t stride() const { return stride_; }
  [[nodiscard]] std::uint64_t offset_of(int set) const { return stride_ * static_cast<std::uint64_t>(set); }
  [[nodiscard]] int outputs() const { return std::max(plan_.sets, plan_.outputs); }
  /// Bytes from the image's beginning to an output: that of the set of this number, then those of launches alone.
  [[nodiscard]] std::uint64_t output_offset(int output) const;

  /// The sets that a launch reads and writes.
  struct Sources {
    int q = 0;
    int k = 0;
    int v = 0;
    int workspace = 0;
    int output = 0;
    std::uint64_t q_bytes = 0;  ///< from the beginning of Q to where the launch's begins
  };
  [[nodiscard]] Sources sources(int launch) const;

  /// What a launch must have written with K multiplied by `factors`, in some rows of some heads, which the seed
  /// chooses. The factors go into Q, exactly.
  /// @param changes of K: its loud rows
  /// @param share of the rows that are usual
  [[nodiscard]] verify::Reference reference(int launch, const worker::ChannelFactors& factors, std::uint64_t seed,
                                            const worker::KeyChanges& changes = {}, double share = 1) const;
  /// Rows of K of every set, about two for each head of keys, or fewer of many sets.
  [[nodiscard]] std::vector<worker::ChannelRange> some_key_rows(Random& random) const;

  /// Which of a set's bytes launches were able to change.
  enum class Reach {
    all,         ///< as on a device, where every launch can write to everything
    but_inputs,  ///< inputs lie in pages that the process cannot write to
  };
  /// Compares a set's bytes `after` launches with what they were, K with its own multiplied by `factors`: all but O and
  /// the workspace, and what lies between the scene's end and the next set.
  /// @param under_way a launch into O of the set was stopped, so that its semaphores may be anything
  [[nodiscard]] verify::Comparison check_memory(int set, const std::byte* after, const worker::ChannelFactors& factors,
                                                bool under_way, Reach reach = Reach::all) const;

  /// Compares what lies around the outputs that are no set's with what it was. @param image the image `after` launches
  [[nodiscard]] verify::Comparison check_guards(const std::byte* image) const;

  /// Memory for copies of the image, which the next measurement uses again: fresh pages take longer than the copy (12
  /// of 14 ms for 42 MB).
  [[nodiscard]] std::vector<std::byte> take_buffer();
  void give_back(std::vector<std::byte> buffer) {
    if (!buffer.empty()) spare_.push_back(std::move(buffer));
  }

 private:
  [[nodiscard]] std::uint64_t set_bytes() const { return stride_ * static_cast<std::uint64_t>(plan_.sets); }
  [[nodiscard]] std::uint64_t own_outputs() const { return static_cast<std::uint64_t>(outputs() - plan_.sets); }
  [[nodiscard]] worker::ChannelRange channels_of(const verify::Place& place, Dtype dtype, std::uint64_t offset) const;
  [[nodiscard]] std::vector<std::byte> slack_of(int set) const;
  [[nodiscard]] verify::Comparison check_keys(int set, const std::byte* after,
                                              const worker::ChannelFactors& factors) const;

  Workload workload_;
  TimingPlan plan_;
  LaunchMemory memory_;
  verify::InputClass inputs_;
  std::uint64_t seed_;
  std::uint64_t stride_ = 0;
  std::uint64_t output_stride_ = 0;
  std::vector<int> order_;         // a permutation of the sets
  std::vector<int> output_order_;  // of the outputs; empty where they are the sets'
  /// Around each output that is no set's: the guard in front, then what lies behind it up to the next.
  std::vector<std::vector<std::byte>> guards_;
  std::vector<verify::Scene> scenes_;
  std::vector<std::vector<std::byte>> spare_;
  worker::ChannelFactors product_;  // what K in the worker is multiplied by, all in all
};

}  // namespace heed::measure
