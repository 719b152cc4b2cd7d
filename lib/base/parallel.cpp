#include "base/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/limits.hpp"

namespace heed {
namespace {

// Threads are started for each loop: 15 take half a millisecond, 63 more than two. A gate has some 270 loops of 4 ms of
// one processor.
constexpr int kMostThreads = 16;

}  // namespace

int available_processors() {
  static const std::optional<ProcessorQuota> quota = processor_quota();
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  return usable_processors(known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency()), quota);
}

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  if (threads <= 0) threads = std::min(available_processors(), kMostThreads);
  threads = static_cast<int>(std::min<std::int64_t>(threads, count));
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::int64_t index = next++; index < count; index = next++) body(index);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace heed
