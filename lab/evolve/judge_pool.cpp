#include "evolve/judge_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);  // between two looks at Ctrl-C

struct Event {
  std::size_t device = 0;
  std::optional<PreparedDevice> prepared = {};
  std::optional<Job> job = {};
  std::optional<store::TrialRecord> trial = {};
  std::string failure = {};       ///< why the device is lost; empty where it is not
  std::exception_ptr error = {};  ///< the failure, or an interrupt
  bool is_interrupt = false;
};

// What threads of devices and the one that decides share.
class Board {
 public:
  explicit Board(std::size_t devices) : jobs_(devices) {}

  void assign(std::size_t device, Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_[device].push_back(std::move(job));
    }
    changed_.notify_all();
  }

  // For a thread of the device: waits for a job; none where there are no more.
  std::optional<Job> wait_for_job(std::size_t device) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !jobs_[device].empty(); });
    if (closed_) return std::nullopt;
    Job job = std::move(jobs_[device].front());
    jobs_[device].pop_front();
    return job;
  }

  void report(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  // Events since the last call; waits a moment where there are none.
  std::deque<Event> wait_for_events() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kTick, [&] { return !events_.empty(); });
    return std::exchange(events_, {});
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Job>> jobs_;
  std::deque<Event> events_;
  bool closed_ = false;
};

// Fills in what was thrown. To be called while it is handled.
void note_failure(Event& event) {
  event.error = std::current_exception();
  try {
    throw;
  } catch (const Error& error) {
    event.is_interrupt = error.code() == ErrorCode::interrupted;
    event.failure = error.what();
  } catch (const std::exception& error) {
    event.failure = error.what();
  }
  if (event.failure.empty()) event.failure = "it failed without a word";
}

void work(DeviceJudge& judge, std::size_t device, bool prepares, Board& board) {
  std::shared_ptr<void> bound;
  try {
    bound = judge.bind_thread();
    if (prepares) {
      PreparedDevice about = judge.prepare();
      board.report({.device = device, .prepared = std::move(about)});
    }
  } catch (...) {
    Event event{.device = device};
    note_failure(event);
    board.report(std::move(event));
    return;
  }
  while (std::optional<Job> job = board.wait_for_job(device)) {
    Event event{.device = device};
    try {
      event.trial = judge.judge(*job);
    } catch (...) {
      note_failure(event);
    }
    event.job = std::move(job);
    board.report(std::move(event));
  }
}

class Pool {
 public:
  Pool(const std::vector<std::unique_ptr<DeviceJudge>>& devices, PoolOwner& owner)
      : devices_(devices), owner_(owner), board_(devices.size()), states_(devices.size()) {
    for (std::size_t device = 0; device < devices.size(); ++device)
      for (int lane = 0; lane < devices[device]->lanes(); ++lane)
        threads_.emplace_back(work, std::ref(*devices[device]), device, lane == 0, std::ref(board_));
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run() {
    try {
      for (;;) {
        check_interrupt();
        if (all_known_ && !hand_out() && under_way() == 0 && !owner_.is_awaiting()) break;
        for (Event& event : board_.wait_for_events()) take(std::move(event));
        owner_.tick();
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::interrupted) throw;
      stop();
      for (Event& event : board_.wait_for_events())
        if (event.trial) owner_.finished(event.device, *event.job, std::move(*event.trial));
      throw;
    }
  }

 private:
  struct State {
    bool is_prepared = false;
    bool is_lost = false;
    int under_way = 0;
  };

  void stop() {
    board_.close();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  [[nodiscard]] int under_way() const {
    int all = 0;
    for (const State& state : states_) all += state.under_way;
    return all;
  }

  // The device with the fewest places under way first, so that each has one before any has two.
  [[nodiscard]] std::optional<std::size_t> free_device() const {
    std::optional<std::size_t> free;
    for (std::size_t device = 0; device < states_.size(); ++device) {
      const State& state = states_[device];
      if (state.is_lost || !state.is_prepared || state.under_way >= devices_[device]->lanes()) continue;
      if (!free || state.under_way < states_[*free].under_way) free = device;
    }
    return free;
  }

  // Whether anything was handed out.
  bool hand_out() {
    bool any = false;
    while (const std::optional<std::size_t> device = free_device()) {
      std::optional<Job> job = owner_.next(*device);
      if (!job) break;
      ++states_[*device].under_way;
      board_.assign(*device, std::move(*job));
      any = true;
    }
    return any;
  }

  void take(Event event) {
    State& state = states_[event.device];
    if (event.is_interrupt) std::rethrow_exception(event.error);
    if (event.job) --state.under_way;
    if (event.prepared) {
      state.is_prepared = true;
      owner_.prepared(event.device, *event.prepared);
    } else if (!event.failure.empty()) {
      lose(event);
    } else if (state.is_lost && !event.trial->ok()) {
      owner_.put_back(event.device, std::move(*event.job));
    } else {
      owner_.finished(event.device, *event.job, std::move(*event.trial));
    }
    if (!all_known_ &&
        std::all_of(states_.begin(), states_.end(), [](const State& one) { return one.is_prepared || one.is_lost; })) {
      all_known_ = true;
      owner_.all_prepared();
    }
  }

  void lose(Event& event) {
    State& state = states_[event.device];
    if (state.is_lost) {
      if (event.job) owner_.put_back(event.device, std::move(*event.job));
      return;
    }
    state.is_lost = true;
    if (event.job) ++event.job->devices_lost;
    owner_.lost(event.device, std::move(event.job), event.failure);
    if (std::all_of(states_.begin(), states_.end(), [](const State& one) { return one.is_lost; }))
      throw Error(ErrorCode::no_device, fmt::format("no device of the run is left; the last, {}: {}",
                                                    devices_[event.device]->name(), event.failure));
  }

  const std::vector<std::unique_ptr<DeviceJudge>>& devices_;
  PoolOwner& owner_;
  Board board_;
  std::vector<State> states_;
  bool all_known_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void judge_on(const std::vector<std::unique_ptr<DeviceJudge>>& devices, PoolOwner& owner) {
  Pool(devices, owner).run();
}

}  // namespace heed::evolve
