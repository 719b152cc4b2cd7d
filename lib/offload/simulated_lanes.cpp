// A GPU of threads: one for each lane, which does in order what it is given.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "merge/merge.hpp"
#include "offload/host_memory.hpp"
#include "offload/lanes.hpp"
#include "padding/padding.hpp"
#include "quantise/quantise.hpp"

namespace heed::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kDeviceAlignment = 256;

struct SimulatedMark final : Mark {
  bool is_done = false;  // guarded by the mutex of the lanes, as the time is
  Clock::time_point passed;
};

class SimulatedLanes final : public Lanes {
 public:
  explicit SimulatedLanes(const Simulation& simulation) : simulation_(simulation), copies_left_(simulation.fail_after) {
    for (int i = 0; i < kLanes; ++i) queues_[i].thread = std::thread([this, i] { work(queues_[i]); });
  }
  ~SimulatedLanes() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (Queue& queue : queues_) queue.thread.join();
  }

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::cpu; }
  [[nodiscard]] std::string name() const override { return "a simulated GPU"; }
  [[nodiscard]] int node() const override { return -1; }
  [[nodiscard]] Traffic traffic() const override {
    const std::lock_guard lock(mutex_);
    Traffic all = traffic_;
    all.seconds_in = queues_[static_cast<int>(Lane::in)].seconds;
    all.seconds_compute = queues_[static_cast<int>(Lane::compute)].seconds;
    all.seconds_host = queues_[static_cast<int>(Lane::host)].seconds;
    return all;
  }
  [[nodiscard]] RecordingPointer use(void*) override { return nullptr; }
  void stop_recording() noexcept override {}

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    const std::size_t whole =
        (std::max<std::size_t>(bytes, 1) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    void* const memory = std::aligned_alloc(kDeviceAlignment, whole);
    if (memory == nullptr)
      throw OutOfRoom(ErrorCode::unsupported,
                      fmt::format("a simulated GPU has no {} of memory left; give the pool fewer device_pages or "
                                  "shorter chunks",
                                  readable(static_cast<double>(bytes))),
                      std::to_string(bytes));
    std::memset(memory, 0xff, whole);  // NaN: memory of a GPU holds anything, and rows that no key has may be read
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void pin(void*, std::size_t) override {}
  void unpin(void*) noexcept override {}

  void copy_in(Lane lane, void* to, const void* from, std::size_t bytes) override {
    // Numbers of pages go with a launch, the link is for pages.
    const bool is_slow = lane == Lane::in;
    add(lane, [this, to, from, bytes, is_slow] { copy(to, from, bytes, is_slow); });
  }
  void copy_rows(Lane lane, std::span<const padding::RowCopy> copies) override {
    std::vector<padding::RowCopy> all(copies.begin(), copies.end());
    add(lane, [this, lane, all = std::move(all)] {
      double bytes = 0;
      const auto begin = Clock::now();
      for (const padding::RowCopy& copy : all)
        bytes += static_cast<double>(copy.batch) * copy.heads * copy.rows * copy.to_dim * copy.element_bytes;
      if (lane == Lane::out) {
        count_copy();
        sleep_from(begin, bytes);
      }
      for (const padding::RowCopy& copy : all) padding::copy_on_host(copy);
      if (lane != Lane::out) return;
      const std::lock_guard lock(mutex_);
      traffic_.bytes_out += bytes;
    });
  }
  void quantise(const quantise::Pass& pass) override {
    add(Lane::compute, [pass] { quantise::quantise_by_given_factors(pass); });
  }
  void merge(const merge::Merge& merge) override {
    add(Lane::compute, [merge] { merge::merge_on_host(merge); });
  }
  void prepare(const std::shared_ptr<const api::Plan>& plan, void* workspace) override {
    add(Lane::compute, [plan, workspace] { plan->prepare(workspace, nullptr); });
  }
  void run(const std::shared_ptr<const api::Plan>& plan, const heed_tensors& tensors, void* workspace) override {
    add(Lane::compute, [plan, tensors, workspace] { plan->run(&tensors, 1, workspace, nullptr, 0); });
  }
  void call(std::function<void()> function) override { add(Lane::host, std::move(function)); }

  [[nodiscard]] MarkPointer record(Lane lane) override {
    auto mark = std::make_shared<SimulatedMark>();
    const std::lock_guard lock(mutex_);
    // Of a lane without work it is done, too, but nobody need know: the thread does it.
    queue(lane).work.push_back({{}, mark, nullptr});
    changed_.notify_all();
    return mark;
  }
  void wait(Lane lane, const MarkPointer& mark) override {
    if (mark == nullptr) return;
    const std::lock_guard lock(mutex_);
    queue(lane).work.push_back({{}, nullptr, mark});
    changed_.notify_all();
  }

  [[nodiscard]] MarkPointer record_time(Lane lane) override { return record(lane); }

  [[nodiscard]] std::optional<double> seconds_between(const MarkPointer& begin, const MarkPointer& end) const override {
    const std::lock_guard lock(mutex_);
    if (!is_set(begin) || !is_set(end)) return std::nullopt;
    const auto passed = [](const MarkPointer& mark) { return static_cast<const SimulatedMark&>(*mark).passed; };
    return std::chrono::duration<double>(passed(end) - passed(begin)).count();
  }
  [[nodiscard]] bool is_done(const MarkPointer& mark) const override {
    const std::lock_guard lock(mutex_);
    return mark == nullptr || is_set(mark);
  }
  void finish(const MarkPointer& mark) override {
    std::unique_lock lock(mutex_);
    if (mark != nullptr) changed_.wait(lock, [&] { return is_set(mark); });
    throw_failure();
  }
  void finish_all() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::all_of(std::begin(queues_), std::end(queues_),
                         [](const Queue& q) { return q.work.empty() && !q.is_busy; });
    });
    throw_failure();
  }

 private:
  struct Work {
    std::function<void()> function;  // or one of these
    std::shared_ptr<SimulatedMark> sets;
    MarkPointer waits_for;
  };
  struct Queue {
    std::deque<Work> work;
    bool is_busy = false;
    double seconds = 0;
    std::thread thread;
  };

  Queue& queue(Lane lane) { return queues_[static_cast<int>(lane)]; }
  static bool is_set(const MarkPointer& mark) { return static_cast<const SimulatedMark&>(*mark).is_done; }

  void add(Lane lane, std::function<void()> function) {
    const std::lock_guard lock(mutex_);
    throw_failure();
    queue(lane).work.push_back({std::move(function), nullptr, nullptr});
    changed_.notify_all();
  }
  void throw_failure() const {
    if (!failure_.empty()) throw Error(ErrorCode::driver, failure_);
  }

  // Of a device that was lost nothing runs any more, and nobody waits for ever.
  void work(Queue& queue) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_stopping_ || !queue.work.empty(); });
      if (queue.work.empty()) return;
      Work next = std::move(queue.work.front());
      queue.work.pop_front();
      queue.is_busy = true;
      if (next.waits_for != nullptr) {
        changed_.wait(lock, [&] { return is_set(next.waits_for); });
      } else if (next.sets != nullptr) {
        next.sets->is_done = true;
        next.sets->passed = Clock::now();
      } else if (failure_.empty()) {
        lock.unlock();
        const auto begin = Clock::now();
        std::string failure;
        try {
          next.function();
        } catch (const std::exception& error) {
          failure = error.what();
        }
        next.function = {};  // what it holds ends without the lock
        const std::chrono::duration<double> took = Clock::now() - begin;
        lock.lock();
        queue.seconds += took.count();
        if (failure_.empty()) failure_ = failure;
      }
      queue.is_busy = false;
      changed_.notify_all();
    }
  }

  // All bytes arrive at the end of the time, so that a reader that does not wait finds none of them.
  void copy(void* to, const void* from, std::size_t bytes, bool is_slow) {
    if (is_slow) {
      count_copy();
      sleep_from(Clock::now(), static_cast<double>(bytes));
    }
    if (bytes > 0) std::memcpy(to, from, bytes);
    if (!is_slow) return;
    const std::lock_guard lock(mutex_);
    traffic_.bytes_in += static_cast<double>(bytes);
  }
  void sleep_from(Clock::time_point begin, double bytes) const {
    const double seconds = simulation_.latency + (simulation_.bandwidth > 0 ? bytes / simulation_.bandwidth : 0);
    if (seconds > 0)
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  void count_copy() {
    const std::lock_guard lock(mutex_);
    if (copies_left_ == 0) throw Error(ErrorCode::driver, "the simulated GPU was lost in the middle of a copy");
    if (copies_left_ > 0) --copies_left_;
  }

  Simulation simulation_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t copies_left_;
  bool is_stopping_ = false;
  std::string failure_;
  Traffic traffic_;
  Queue queues_[kLanes];
};

}  // namespace

std::unique_ptr<Lanes> make_simulated_lanes(const Simulation& simulation) {
  return std::make_unique<SimulatedLanes>(simulation);
}

}  // namespace heed::offload
