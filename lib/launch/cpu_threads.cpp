#include "launch/cpu_threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <chrono>

namespace heed {
namespace {

constexpr int kSpins = 2000;  // about 50 us: longer than a thread waits for others of its launch
constexpr long long kPage = 4096;

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

struct alignas(64) CpuThreads::Progress {
  std::atomic<long long> next_block{0};
  std::atomic<int> arrived{0};
};

CpuThreads::CpuThreads(int threads) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) processors.push_back(cpu);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { work(i); });
    if (processors.empty()) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[static_cast<std::size_t>(i) % processors.size()], &one);
    ::pthread_setaffinity_np(threads_.back().native_handle(), sizeof one, &one);
  }
}

CpuThreads::~CpuThreads() {
  stopping_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (scratch_ != nullptr) ::munmap(scratch_, static_cast<std::size_t>(scratch_bytes_) * threads_.size());
}

bool CpuThreads::reserve(long long scratch_bytes) {
  const std::lock_guard lock(turn_);
  const long long bytes = (scratch_bytes + kPage - 1) / kPage * kPage;
  if (bytes <= scratch_bytes_) return true;
  void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes) * threads_.size(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (scratch_ != nullptr) ::munmap(scratch_, static_cast<std::size_t>(scratch_bytes_) * threads_.size());
  scratch_ = static_cast<std::byte*>(memory);
  scratch_bytes_ = bytes;
  return true;
}

double CpuThreads::run(CpuEntry entry, const ForwardParams* params, long long launches, long long blocks) {
  const std::lock_guard lock(turn_);
  entry_ = entry;
  params_ = params;
  launches_ = launches;
  blocks_ = blocks;
  progress_ = std::make_unique<Progress[]>(static_cast<std::size_t>(launches));
  finished_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  generation_.fetch_add(1);
  generation_.notify_all();
  const int all = static_cast<int>(threads_.size());
  for (int done = finished_.load(); done < all; done = finished_.load()) finished_.wait(done);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void CpuThreads::work(int index) {
  for (unsigned seen = 0;;) {
    generation_.wait(seen);
    ++seen;
    if (stopping_) return;
    std::byte* const scratch = scratch_ + index * scratch_bytes_;
    for (long long i = 0; i < launches_; ++i) {
      Progress& progress = progress_[static_cast<std::size_t>(i)];
      for (long long block = progress.next_block++; block < blocks_; block = progress.next_block++)
        entry_(&params_[i], block, scratch);
      const int all = static_cast<int>(threads_.size());
      progress.arrived.fetch_add(1);
      spin_until([&] { return progress.arrived.load() == all; });
    }
    finished_.fetch_add(1);
    finished_.notify_all();
  }
}

}  // namespace heed
