#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/parallel.hpp"
#include "worker/candidate_image.hpp"
#include "worker/executor.hpp"
#include "worker/runner.hpp"
#include "worker/stopwatch.hpp"

namespace heed::worker {
namespace {

constexpr double kPatience = 1.5;  // of the fastest time read: what other programs cost honest launches, mostly

constexpr double kMostAwake_us = 400;  // behind the last launch: honest threads run for 50 to 100
constexpr int kFewestLooks = 3;
constexpr double kAwakeShare = 0.8;  // of the looks

constexpr std::uint64_t kAlone = 1 << 20;  // bytes up to which a thread costs more than it saves

// On every processor: no launch runs meanwhile.
template <typename One>
void for_each_range(const std::vector<One>& ranges, std::uint64_t (*bytes_of)(const One&),
                    const std::function<void(const One&)>& body) {
  std::uint64_t bytes = 0;
  for (const One& one : ranges) bytes += bytes_of(one);
  parallel_for(std::ssize(ranges), bytes <= kAlone ? 1 : 0,
               [&](std::int64_t i) { body(ranges[static_cast<std::size_t>(i)]); });
}

// Every operation runs in a runner of its own, which dies with it: see Runner.
class CpuExecutor final : public Executor {
 public:
  CpuExecutor() {
    // The end of a runner interrupts the wait for it; its stops do not.
    struct sigaction notice {};
    notice.sa_handler = [](int) {};
    notice.sa_flags = SA_NOCLDSTOP;
    ::sigaction(SIGCHLD, &notice, nullptr);
    ::prctl(PR_SET_TIMERSLACK, 1);  // spot checks look at a runner's progress every few microseconds
  }

  void load(int slot, const std::string& path, const LaunchPlan& plan) override {
    Slot& s = slots_.at(static_cast<std::size_t>(slot));
    s.image = std::make_unique<CandidateImage>(path, plan.entry);
    s.plan = plan;
    s.timed.clear();
  }

  void seal() override {}

  void run(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result, const Launch& launch) override {
    run_chain(slot, image, bytes, result, {launch}, Follow::in_stream);
  }

  void run_chain(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
                 const std::vector<Launch>& launches, Follow follow) override {
    std::memcpy(result, image, bytes);
    std::vector<CpuLaunch> chain;
    for (const Launch& launch : launches) chain.push_back(resolved(launch, result));
    const auto run_all = [&](std::span<const CpuLaunch> list) {
      Runner runner(task(slot, list, result, bytes));
      replay(runner, list.size());
      // Whatever is still under way ends here, before anything is compared.
      runner.freeze();
    };
    if (follow != Follow::waited) return run_all(chain);
    for (const CpuLaunch& launch : chain) run_all({&launch, 1});
  }

  // Launches of a CPU follow one another in one way only.
  void prepare(std::byte* image, std::uint64_t bytes, const std::vector<std::pair<int, std::vector<Launch>>>& launches,
               const std::vector<Range>& poisoned, const std::vector<ChannelRange>& keys, Follow) override {
    timed_ = image;
    timed_bytes_ = bytes;
    unfinished_ = {};
    poisoned_ = poisoned;
    keys_ = keys;
    fastest_us_ = std::numeric_limits<double>::infinity();
    looks_ = {};
    for (const auto& [slot, list] : launches) {
      std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
      timed.clear();
      for (const Launch& launch : list) timed.push_back(resolved(launch, image));
    }
  }

  std::vector<double> time(int slot, int replays, const std::vector<ChannelFactors>& factors) override {
    RunnerTask counted_task = timed_task(slot);
    counted_task.counts = true;
    Runner runner(counted_task);
    const std::size_t launches = begin_block(runner, slot, factors.at(0));
    std::vector<double> times;
    counted_.clear();
    for (int i = 0; i < replays; ++i) {
      between_replays(runner, factors.at(static_cast<std::size_t>(i) + 1));
      const std::optional<HardwareCounts> before = runner.counts();
      const auto begin = Clock::now();
      replay(runner, launches);
      const auto each = static_cast<double>(launches);
      times.push_back(microseconds_since(begin) / each);
      fastest_us_ = std::min(fastest_us_, times.back());
      if (const std::optional<HardwareCounts> after = runner.counts(); before && after)
        counted_.push_back(
            {(after->instructions - before->instructions) / each, (after->cycles - before->cycles) / each});
    }
    runner.freeze();
    return times;
  }

  [[nodiscard]] std::vector<HardwareCounts> counted() const override { return counted_; }

  Stopped spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors) override {
    Runner runner(timed_task(slot));
    const KeyChanges changes = std::exchange(changes_, {});
    make_loud(changes.loud, changes.loudness);
    const std::size_t all = begin_block(runner, slot, factors.at(0));
    expect_rest(runner, slot);
    for (int i = 0; i < replays; ++i) {
      between_replays(runner, factors.at(static_cast<std::size_t>(i) + 1));
      replay(runner, all);
      expect_rest(runner, slot);
    }
    between_replays(runner, factors.at(static_cast<std::size_t>(replays) + 1));
    runner.begin(all);
    const std::vector<int> turned = pause(runner, slot, changes);
    // A candidate that says of no launch that it is done before all are would never be stopped on its way.
    runner.wait_for_launches(static_cast<std::size_t>(launches), kPatience * fastest_us_ * launches);
    runner.freeze();
    for (const int launch : turned) multiply_channels(timed_, *keys_of(slot, launch), changes.turn);
    make_loud(changes.loud, 1 / changes.loudness);
    expect_control(runner);
    const std::size_t done = runner.launches_done();
    if (const Slot& s = slots_.at(static_cast<std::size_t>(slot)); done < all && s.plan.semaphores > 0)
      unfinished_ = {s.timed.at(done).params.semaphores, static_cast<std::size_t>(s.plan.semaphores)};
    return {.complete = static_cast<int>(done), .begun = static_cast<int>(std::min(all, done + 1)), .turned = turned};
  }

  void change_keys(KeyChanges changes) override { changes_ = std::move(changes); }

  void warm_up(int slot, double ms) override {
    end_stopped_launch();
    Runner runner(timed_task(slot));
    const auto begin = Clock::now();
    do {
      replay(runner, timed(slot).size());
    } while (microseconds_since(begin) < ms * 1000);
  }

  std::pair<double, double> time_eager(int slot, int calls) override {
    // A CPU launch always runs to its end: both ways of calling are the same.
    end_stopped_launch();
    for (const Range& range : poisoned_) std::memset(timed_ + range.offset, 0xff, range.bytes);
    const std::vector<CpuLaunch>& list = timed(slot);
    Runner runner(task(slot, {list.data(), 1}, timed_, timed_bytes_));
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) replay(runner, 1);
    const double each = microseconds_since(begin) / calls;
    return {each, each};
  }

  void fetch(std::byte* result, const std::vector<Range>& ranges) override {
    for (const Range& range : ranges) std::memcpy(result + range.offset, timed_ + range.offset, range.bytes);
  }

  CounterReading count(int, const std::byte*, std::uint64_t, const Launch&, const std::string&,
                       const std::vector<MetricChoice>&) override {
    throw DeviceFailure(DeviceFailure::Kind::launch, "hardware counters are read on NVIDIA GPUs only");
  }

 private:
  struct Slot {
    std::unique_ptr<CandidateImage> image;
    LaunchPlan plan;
    std::vector<CpuLaunch> timed;
  };

  static CpuLaunch resolved(const Launch& launch, std::byte* image) {
    return {resolve(launch, reinterpret_cast<std::uintptr_t>(image)), launch.grid[0]};
  }

  const std::vector<CpuLaunch>& timed(int slot) const {
    const std::vector<CpuLaunch>& list = slots_.at(static_cast<std::size_t>(slot)).timed;
    if (list.empty()) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} has no launches", slot));
    return list;
  }

  RunnerTask task(int slot, std::span<const CpuLaunch> launches, std::byte* image, std::uint64_t bytes) const {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    if (!s.image) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} is empty", slot));
    RunnerTask task;
    task.code = s.image->address();
    task.code_bytes = s.image->bytes();
    task.entry = s.image->entry();
    task.launches = launches;
    task.threads = static_cast<int>(s.plan.threads);
    task.scratch_bytes = s.plan.shared_bytes;
    task.image = image;
    task.image_bytes = bytes;
    return task;
  }

  RunnerTask timed_task(int slot) const { return task(slot, timed(slot), timed_, timed_bytes_); }

  // K that a launch reads; null where it is no set's.
  const ChannelRange* keys_of(int slot, int launch) const {
    const void* const k = timed(slot).at(static_cast<std::size_t>(launch)).params.k;
    const auto at =
        std::find_if(keys_.begin(), keys_.end(), [&](const ChannelRange& keys) { return timed_ + keys.offset == k; });
    return at == keys_.end() ? nullptr : &*at;
  }

  void make_loud(const std::vector<ChannelRange>& rows, float factor) const {
    for (const ChannelRange& row : rows)
      multiply_channels(timed_, row, ChannelFactors(static_cast<std::size_t>(row.dim), factor));
  }

  // Stops a replay on its way, where a launch may be under way and the next has not begun: what that is to read becomes
  // another, so that what was computed ahead of its turn is wrong. @return the launches before which K became another
  std::vector<int> pause(Runner& runner, int slot, const KeyChanges& changes) {
    std::vector<int> turned;
    double before = 0;
    for (const double place : changes.pauses) {
      const auto launches = static_cast<std::size_t>(place);
      runner.wait_for_launches(launches, kPatience * fastest_us_ * (place - before));
      before = place;
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::micro>((place - static_cast<double>(launches)) * fastest_us_));
      runner.freeze();
      const auto next = static_cast<int>(runner.launches_done()) + 1;
      const bool has_next = next < static_cast<int>(timed(slot).size());
      const ChannelRange* const keys = has_next ? keys_of(slot, next) : nullptr;
      if (keys != nullptr && keys != keys_of(slot, next - 1)) {
        multiply_channels(timed_, *keys, changes.turn);
        turned.push_back(next);
      }
      runner.thaw();
      if (!has_next) break;
    }
    return turned;
  }

  // Threads that stay awake between replays begin the next one earlier than others can. A look alone says little: what
  // a machine's host takes from a thread counts as running.
  void expect_rest(const Runner& runner, int slot) {
    Looks& looks = looks_.at(static_cast<std::size_t>(slot));
    ++looks.all;
    looks.awake += runner.awake_us() > kMostAwake_us ? 1 : 0;
    if (looks.all >= kFewestLooks && looks.awake >= kAwakeShare * looks.all)
      throw DeviceFailure(DeviceFailure::Kind::left_state, "its threads go on when its launches are done");
  }

  // Returns how many launches a replay has.
  std::size_t begin_block(Runner& runner, int slot, const ChannelFactors& factors) {
    end_stopped_launch();
    for_each_range<Range>(
        poisoned_, [](const Range& range) { return range.bytes; },
        [&](const Range& range) { std::memset(timed_ + range.offset, 0xff, range.bytes); });
    between_replays(runner, factors);
    const std::size_t launches = timed(slot).size();
    const std::size_t lead = std::min<std::size_t>(launches, kCpuLead);
    const auto begin = Clock::now();
    replay(runner, lead);
    fastest_us_ = std::min(fastest_us_, microseconds_since(begin) / static_cast<double>(lead));
    return launches;
  }

  // A launch that a spot check stopped left its semaphores as they were, for the check to see. Every other launch must
  // leave them at zero by itself.
  void end_stopped_launch() {
    std::fill(unfinished_.begin(), unfinished_.end(), 0U);
    unfinished_ = {};
  }

  // What a replay left must not serve the next, whose launches are the same.
  void between_replays(Runner& runner, const ChannelFactors& factors) {
    runner.poison_scratch();
    for_each_range<ChannelRange>(
        keys_, [](const ChannelRange& keys) { return keys.elements * size_of(keys.dtype); },
        [&](const ChannelRange& keys) { multiply_channels(timed_, keys, factors); });
  }

  static void replay(Runner& runner, std::size_t launches) {
    runner.begin(launches);
    runner.wait();
    expect_control(runner);
  }

  static void expect_control(const Runner& runner) {
    if (runner.control_was_changed())
      throw DeviceFailure(
          DeviceFailure::Kind::left_state,
          "it left the processor's rounding and exception control changed, which skews whoever runs next");
    if (runner.wrote_beside_its_claims())
      throw DeviceFailure(DeviceFailure::Kind::left_state,
                          "it wrote into the memory where its process says how far it is");
  }

  // At threads that have nothing left to do.
  struct Looks {
    int all = 0;
    int awake = 0;
  };

  std::array<Slot, kSlots> slots_;
  std::array<Looks, kSlots> looks_;
  std::byte* timed_ = nullptr;
  std::uint64_t timed_bytes_ = 0;
  std::vector<Range> poisoned_;
  std::vector<ChannelRange> keys_;
  std::span<unsigned> unfinished_;  // semaphores of a launch that was stopped
  std::vector<HardwareCounts> counted_;
  KeyChanges changes_;                                           // of the next spot check
  double fastest_us_ = std::numeric_limits<double>::infinity();  // of a launch of any slot
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor() {
  return std::make_unique<CpuExecutor>();
}

}  // namespace heed::worker
