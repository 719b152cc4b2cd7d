#include "worker/cpu_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>

#include "base/check.hpp"
#include "worker/sandbox.hpp"

namespace heed::worker {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The floating-point unit's control bits: rounding, flushing of small numbers, traps. Sticky exception flags are not
// among them, for honest arithmetic sets those.
std::uint64_t floating_point_control() {
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3f;
  std::uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  return static_cast<std::uint64_t>(x87) << 32 | (__builtin_ia32_stmxcsr() & ~kFlags);
#elif defined(__aarch64__)
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return 0;
#endif
}

void set_floating_point_control(std::uint64_t control) {
#if defined(__x86_64__)
  const auto x87 = static_cast<std::uint16_t>(control >> 32);
  asm volatile("fldcw %0" : : "m"(x87));
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(control));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(control));
#else
  (void)control;
#endif
}

// Candidates keep a few kilobytes on the stack; what lies below would be memory to keep outputs in from call to call.
constexpr std::size_t kStackBytes = 256 << 10;

constexpr int kSpins = 2000;  // about 50 µs; then the processor is given to others, for they may be what is waited for

// For waits between threads that run the same launch: they end within microseconds of each other.
template <typename Condition>
void spin_until(const Condition& condition) {
  for (int i = 0; !condition(); ++i) {
    if (i < kSpins)
      pause_briefly();
    else
      ::sched_yield();
  }
}

// For waits that may last: spins first, then sleeps until the value changes from `old`.
template <typename T>
T wait_for_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (const T now = value.load(std::memory_order_acquire); now != old) return now;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) processors.push_back(cpu);
  return processors;
}

}  // namespace

CpuPool::CpuPool(int threads, std::int64_t scratch_bytes) : scratch_bytes_((scratch_bytes + 4095) / 4096 * 4096) {
  if (scratch_bytes_ > 0) {
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(scratch_bytes_ * threads), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw Error(ErrorCode::worker,
                  fmt::format("cannot allocate {} bytes of scratch for {} threads", scratch_bytes_, threads));
    scratch_ = static_cast<std::byte*>(memory);
  }
  const std::vector<int> processors = allowed_processors();
  pthread_attr_t small_stack;
  ::pthread_attr_init(&small_stack);
  ::pthread_attr_setstacksize(&small_stack, kStackBytes);
  ::pthread_setattr_default_np(&small_stack);
  ::pthread_attr_destroy(&small_stack);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { work(i); });
    if (processors.empty()) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processors[static_cast<std::size_t>(i) % processors.size()], &one);
    ::pthread_setaffinity_np(threads_.back().native_handle(), sizeof one, &one);
  }
  launch(nullptr, {}, threads);  // returns when every thread has given up the clock and waits for work
}

CpuPool::~CpuPool() {
  generation_.fetch_or(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (scratch_ != nullptr) ::munmap(scratch_, static_cast<std::size_t>(scratch_bytes_) * threads_.size());
}

void CpuPool::work(int index) {
#if defined(PR_SET_TSC)
  ::prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
#endif
  enter_pool_sandbox();
  const std::uint64_t control = floating_point_control();
  std::byte* const scratch = scratch_ + index * scratch_bytes_;
  std::uint64_t seen = 0;
  for (;;) {
    seen = wait_for_change(generation_, seen);
    if ((seen & 1) != 0) return;
    if (index < active_) {
      for (std::size_t i = 0; i < launches_.size(); ++i) {
        const CpuLaunch& launch = launches_[i];
        Progress& progress = progress_[i];
        for (long long block = progress.next_block++; block < launch.blocks; block = progress.next_block++)
          entry_(&launch.params, block, scratch);
        if (floating_point_control() != control) {
          control_was_changed_ = true;
          set_floating_point_control(control);
        }
        progress.arrived.fetch_add(1, std::memory_order_acq_rel);
        spin_until([&] { return progress.arrived.load(std::memory_order_acquire) == active_; });
      }
    }
    finished_.fetch_add(1, std::memory_order_acq_rel);
    finished_.notify_all();
  }
}

void CpuPool::launch(CpuEntry entry, std::span<const CpuLaunch> launches, int threads) {
  entry_ = entry;
  launches_ = launches;
  active_ = threads;
  progress_ = std::make_unique<Progress[]>(launches.size());
  finished_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(2, std::memory_order_release);
  generation_.notify_all();
  for (int done = 0; done < size();) done = wait_for_change(finished_, done);
}

void CpuPool::poison_scratch() {
  if (scratch_ != nullptr) std::memset(scratch_, 0xff, static_cast<std::size_t>(scratch_bytes_) * threads_.size());
}

}  // namespace heed::worker
