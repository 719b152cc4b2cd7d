#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/parallel.hpp"
#include "worker/cpu_pool.hpp"
#include "worker/executor.hpp"
#include "worker/sandbox.hpp"

namespace heed::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLeadLaunches = 10;  // one for each of the most sets there are

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class CpuExecutor final : public Executor {
 public:
  void load(int slot, const std::string& path, const LaunchPlan& plan) override {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("cannot load {}: {}", path, ::dlerror()));
    auto* entry = reinterpret_cast<CpuEntry>(::dlsym(library, plan.entry.c_str()));
    if (entry == nullptr)
      throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("{} has no function {}", path, plan.entry));
    slots_.at(static_cast<std::size_t>(slot)) = {entry, plan, {}};
    most_threads_ = std::max(most_threads_, static_cast<int>(plan.threads));
    most_scratch_ = std::max(most_scratch_, plan.shared_bytes);
  }

  void seal() override {
    pool_ = std::make_unique<CpuPool>(most_threads_, most_scratch_);
    pool_->poison_scratch();  // touches every page before anything is timed
    enter_sandbox();
  }

  void run(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result, const Launch& launch) override {
    std::memcpy(result, image, bytes);
    pool().poison_scratch();
    const CpuLaunch one = resolved(launch, result);
    start(slot, {&one, 1});
  }

  void run_chain(int slot, const std::byte* image, std::uint64_t bytes, std::byte* result,
                 const std::vector<Launch>& launches, Follow follow) override {
    std::memcpy(result, image, bytes);
    std::vector<CpuLaunch> chain;
    for (const Launch& launch : launches) chain.push_back(resolved(launch, result));
    pool().poison_scratch();
    if (follow != Follow::waited) return start(slot, chain);
    for (const CpuLaunch& launch : chain) {
      start(slot, {&launch, 1});
      pool().poison_scratch();
    }
  }

  // Launches of a CPU follow one another in one way only.
  void prepare(std::byte* image, std::uint64_t bytes, const std::vector<std::pair<int, std::vector<Launch>>>& launches,
               const std::vector<Range>& poisoned, const std::vector<ChannelRange>& keys, Follow) override {
    timed_ = image;
    timed_bytes_ = bytes;
    poisoned_ = poisoned;
    keys_ = keys;
    for (const auto& [slot, list] : launches) {
      std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
      timed.clear();
      for (const Launch& launch : list) timed.push_back(resolved(launch, image));
    }
  }

  std::vector<double> time(int slot, int replays, const std::vector<ChannelFactors>& factors) override {
    begin_block(slot, factors.at(0));
    const std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
    std::vector<double> times;
    for (int i = 0; i < replays; ++i) {
      between_replays(factors.at(static_cast<std::size_t>(i) + 1));
      const auto begin = Clock::now();
      start(slot, timed);
      times.push_back(microseconds_since(begin) / static_cast<double>(timed.size()));
    }
    return times;
  }

  Stopped spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors) override {
    begin_block(slot, factors.at(0));
    const std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
    for (int i = 0; i < replays; ++i) {
      between_replays(factors.at(static_cast<std::size_t>(i) + 1));
      start(slot, timed);
    }
    between_replays(factors.at(static_cast<std::size_t>(replays) + 1));
    start(slot, std::span(timed).first(static_cast<std::size_t>(launches)));
    return {.complete = launches, .begun = launches};
  }

  void warm_up(int slot, double ms) override {
    const auto begin = Clock::now();
    do {
      start(slot, slots_.at(static_cast<std::size_t>(slot)).timed);
    } while (microseconds_since(begin) < ms * 1000);
  }

  std::pair<double, double> time_eager(int slot, int calls) override {
    // A CPU launch always runs to its end: both ways of calling are the same.
    const std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
    for (const Range& range : poisoned_) std::memset(timed_ + range.offset, 0xff, range.bytes);
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) start(slot, {&timed[static_cast<std::size_t>(i) % timed.size()], 1});
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
    CpuEntry entry = nullptr;
    LaunchPlan plan;
    std::vector<CpuLaunch> timed;
  };

  void begin_block(int slot, const ChannelFactors& factors) {
    for (const Range& range : poisoned_) std::memset(timed_ + range.offset, 0xff, range.bytes);
    between_replays(factors);
    // What the other side left in the caches is paid for by a few launches that are not timed.
    const std::vector<CpuLaunch>& timed = slots_.at(static_cast<std::size_t>(slot)).timed;
    start(slot, std::span(timed).first(std::min<std::size_t>(timed.size(), kLeadLaunches)));
  }

  // What a replay left must not serve the next, whose launches are the same.
  void between_replays(const ChannelFactors& factors) {
    pool().poison_scratch();
    for (const ChannelRange& keys : keys_) multiply_channels(timed_, keys, factors);
  }

  static CpuLaunch resolved(const Launch& launch, std::byte* image) {
    return {resolve(launch, reinterpret_cast<std::uintptr_t>(image)), launch.grid[0]};
  }

  CpuPool& pool() {
    if (!pool_) throw DeviceFailure(DeviceFailure::Kind::launch, "the worker was asked to run before it was sealed");
    return *pool_;
  }

  void start(int slot, std::span<const CpuLaunch> launches) {
    const Slot& s = slots_.at(static_cast<std::size_t>(slot));
    if (s.entry == nullptr) throw DeviceFailure(DeviceFailure::Kind::launch, fmt::format("slot {} is empty", slot));
    pool().launch(s.entry, launches, static_cast<int>(s.plan.threads));
    if (pool().control_was_changed())
      throw DeviceFailure(
          DeviceFailure::Kind::left_state,
          "it left the processor's rounding and exception control changed, which skews whoever runs next");
  }

  std::array<Slot, kSlots> slots_;
  int most_threads_ = 1;
  std::int64_t most_scratch_ = 0;
  std::unique_ptr<CpuPool> pool_;
  std::byte* timed_ = nullptr;
  std::uint64_t timed_bytes_ = 0;
  std::vector<Range> poisoned_;
  std::vector<ChannelRange> keys_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor() {
  return std::make_unique<CpuExecutor>();
}

}  // namespace heed::worker
