#include "launch/caller_threads.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <mutex>
#include <new>
#include <vector>

#include "base/check.hpp"

namespace heed {

struct CallerThreads::Launch {
  CallerThreads& threads;
  CpuEntry entry;
  const FeatureParams& params;
  long long blocks;
  std::atomic<long long> next_block{0};
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  std::atomic<bool> is_closed{false};  ///< tasks that begin now are late, and touch nothing but this
};

CallerThreads::CallerThreads(ParallelFor parallel_for, int tasks, long long scratch_bytes)
    : parallel_for_(parallel_for), tasks_(tasks), slots_(std::make_unique<Slot[]>(static_cast<std::size_t>(tasks))) {
  if (!scratch_.reserve(scratch_bytes, static_cast<std::size_t>(tasks))) throw std::bad_alloc();
}

void CallerThreads::task(void* argument, int index) {
  Launch& launch = *static_cast<Launch*>(argument);
  ++launch.begun;
  if (!launch.is_closed) (void)launch.threads.work(launch, static_cast<std::size_t>(index));
  ++launch.ended;
}

bool CallerThreads::work(Launch& launch, std::size_t first_slot) noexcept {
  const auto slots = static_cast<std::size_t>(tasks_);
  for (std::size_t i = 0; i < slots; ++i) {
    const std::size_t slot = (first_slot % slots + i) % slots;
    if (slots_[slot].is_taken.exchange(true)) continue;
    for (long long block = launch.next_block++; block < launch.blocks; block = launch.next_block++)
      launch.entry(&launch.params, block, scratch_.of(slot));
    slots_[slot].is_taken = false;
    return true;
  }
  return false;
}

// Of a pool that broke its word tasks may begin at any time.
void CallerThreads::keep(std::unique_ptr<Launch> launch) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Launch>>;  // outlives static objects
  const std::lock_guard lock(mutex);
  all->push_back(std::move(launch));
}

void CallerThreads::run_one(CpuEntry entry, const FeatureParams& params, long long blocks) {
  std::unique_ptr<Launch> launch(new Launch{.threads = *this, .entry = entry, .params = params, .blocks = blocks});
  std::string thrown;
  try {
    parallel_for_.call(parallel_for_.context, tasks_, &task, launch.get());
  } catch (const std::exception& error) {
    thrown = fmt::format(": {}", error.what());
  } catch (...) {
    thrown = ", which is no std::exception";
  }
  const int ended = launch->ended;
  launch->is_closed = true;
  while (launch->begun != launch->ended) ::sched_yield();
  if (!thrown.empty() || ended != tasks_) {
    keep(std::move(launch));
    if (!thrown.empty())
      throw Error(ErrorCode::usage, "parallel_for let an exception out" + thrown + "; it must keep its own");
    throw Error(ErrorCode::usage,
                fmt::format("parallel_for had run {} of {} tasks when it returned; it must run each once and wait for "
                            "all of them",
                            ended, tasks_),
                std::to_string(ended));
  }
  // Blocks are left only where launches side by side had taken all scratch. Tasks that hold some wait for nothing.
  while (launch->next_block < blocks)
    if (!work(*launch, 0)) ::sched_yield();
}

double CallerThreads::run(CpuEntry entry, const FeatureParams* params, long long launches, long long blocks) {
  const auto begin = std::chrono::steady_clock::now();
  for (long long i = 0; i < launches; ++i) run_one(entry, params[i], blocks);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace heed
