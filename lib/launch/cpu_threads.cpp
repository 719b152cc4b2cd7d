#include "launch/cpu_threads.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.hpp"

namespace heed {
namespace {

constexpr int kSpins = 2000;  // about 50 us: longer than a thread waits for others of its launch

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Condition>
void spin_until(const Condition& condition) {
  for (int i = 0; !condition(); ++i) {
    if (i < kSpins)
      pause_briefly();
    else
      ::sched_yield();
  }
}

}  // namespace

CpuScratch::~CpuScratch() {
  if (room_ != nullptr) ::munmap(room_, bytes_);
}

bool CpuScratch::reserve(long long bytes_each, std::size_t threads) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t each = (static_cast<std::size_t>(bytes_each) + page - 1) / page * page;
  if (each <= bytes_each_) return true;
  const std::size_t bytes = (each + page) * threads;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Where the system divides memory no further, rooms are there all the same.
  for (std::size_t thread = 0; thread < threads; ++thread)
    ::mprotect(static_cast<std::byte*>(memory) + thread * (each + page) + each, page, PROT_NONE);
  std::byte* const before = std::exchange(room_, static_cast<std::byte*>(memory));
  const std::size_t bytes_before = std::exchange(bytes_, bytes);
  bytes_each_ = each;
  guard_bytes_ = page;
  // The last: a fork in between leaves its child room.
  if (before != nullptr) ::munmap(before, bytes_before);
  return true;
}

struct alignas(64) CpuThreads::Progress {
  std::atomic<long long> next_block{0};
  std::atomic<int> arrived{0};
};

CpuThreads::CpuThreads(int threads) : count_(threads) {
  start();
}

void CpuThreads::start() {
  process_ = ::getpid();
  generation_ = 0;
  stopping_ = false;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) processors.push_back(cpu);
  threads_.reserve(static_cast<std::size_t>(count_));
  for (int i = 0; i < count_; ++i) {
    try {
      threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& error) {
      stop();
      throw Error(ErrorCode::internal,
                  fmt::format("the system gives {} threads where {} were asked for: {}; ask for fewer", i, count_,
                              error.what()),
                  std::to_string(count_));
    }
    if (processors.empty()) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[static_cast<std::size_t>(i) % processors.size()], &one);
    ::pthread_setaffinity_np(threads_.back().native_handle(), sizeof one, &one);
  }
}

CpuThreads::~CpuThreads() {
  if (are_of_another_process())
    leave();
  else
    stop();
}

bool CpuThreads::are_of_another_process() const {
  return process_ != ::getpid();
}

// Handles of threads that this process does not have can neither be joined nor be destroyed.
void CpuThreads::leave() {
  (void)new std::vector<std::thread>(std::move(threads_));
  threads_.clear();
}

void CpuThreads::stop() {
  stopping_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// A child of fork has its parent's lock, which a thread may have held that the child does not have. One thread of the
// child takes the place of it; what it protects is set anew by the next run.
void CpuThreads::renew_after_fork() {
  const pid_t own = ::getpid();
  for (pid_t before = process_; before != own; before = process_) {
    if (before == -own || !process_.compare_exchange_strong(before, -own)) {
      ::sched_yield();
      continue;
    }
    new (&turn_) std::mutex;
    leave();
    process_ = own;
  }
}

bool CpuThreads::reserve(long long scratch_bytes) {
  renew_after_fork();
  const std::lock_guard lock(turn_);
  return scratch_.reserve(scratch_bytes, static_cast<std::size_t>(count_));
}

double CpuThreads::run(CpuEntry entry, const FeatureParams* params, long long launches, long long blocks) {
  renew_after_fork();
  const std::lock_guard lock(turn_);
  if (threads_.empty()) start();
  entry_ = entry;
  params_ = params;
  launches_ = launches;
  blocks_ = blocks;
  progress_ = std::make_unique<Progress[]>(static_cast<std::size_t>(launches));
  finished_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  generation_.fetch_add(1);
  generation_.notify_all();
  const int all = count_;
  for (int done = finished_.load(); done < all; done = finished_.load()) finished_.wait(done);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void CpuThreads::work(int index) {
  for (unsigned seen = 0;;) {
    generation_.wait(seen);
    ++seen;
    if (stopping_) return;
    void* const scratch = scratch_.of(static_cast<std::size_t>(index));
    for (long long i = 0; i < launches_; ++i) {
      Progress& progress = progress_[static_cast<std::size_t>(i)];
      for (long long block = progress.next_block++; block < blocks_; block = progress.next_block++)
        entry_(&params_[i], block, scratch);
      const int all = count_;
      progress.arrived.fetch_add(1);
      spin_until([&] { return progress.arrived.load() == all; });
    }
    finished_.fetch_add(1);
    finished_.notify_all();
  }
}

}  // namespace heed
