// A CPU program's launches for callers outside a worker (python/heed/launch.py loads this as a shared library): pinned
// threads that share the blocks of a launch through one counter and go from launch to launch without the caller, as in
// a worker, so that a kernel takes as long here as there.
#include "launch/cpu_launcher.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/matrix_unit.hpp"
#include "kernels/attention/mask.hpp"

namespace heed::launch {
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

class Launcher {
 public:
  Launcher(int threads, long long scratch_bytes) : scratch_bytes_((scratch_bytes + 4095) / 4096 * 4096) {
    if (scratch_bytes_ > 0) {
      void* memory = ::mmap(nullptr, static_cast<std::size_t>(scratch_bytes_ * threads), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      if (memory == MAP_FAILED) return;
      scratch_ = static_cast<std::byte*>(memory);
    }
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

  ~Launcher() {
    stopping_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    if (scratch_ != nullptr) ::munmap(scratch_, static_cast<std::size_t>(scratch_bytes_) * threads_.size());
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  [[nodiscard]] bool ready() const { return scratch_bytes_ == 0 || scratch_ != nullptr; }

  double run(heed_cpu_entry entry, const ForwardParams* params, long long launches, long long blocks) {
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

 private:
  struct alignas(64) Progress {
    std::atomic<long long> next_block{0};
    std::atomic<int> arrived{0};
  };

  void work(int index) {
    std::byte* const scratch = scratch_ + index * scratch_bytes_;
    for (unsigned seen = 0;;) {
      generation_.wait(seen);
      ++seen;
      if (stopping_) return;
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

  long long scratch_bytes_;
  std::byte* scratch_ = nullptr;
  heed_cpu_entry entry_ = nullptr;
  const ForwardParams* params_ = nullptr;
  long long launches_ = 0;
  long long blocks_ = 0;
  std::unique_ptr<Progress[]> progress_;
  alignas(64) std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> finished_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace heed::launch

extern "C" {

void* heed_cpu_open(int threads, long long scratch_bytes) {
  (void)heed::allow_matrix_unit();
  auto launcher = std::make_unique<heed::launch::Launcher>(threads, scratch_bytes);
  return launcher->ready() ? launcher.release() : nullptr;
}

void heed_trim_window(heed::ForwardParams* params, int element_bytes) {
  *params = heed::trimmed(*params, heed::MaskKind::window, element_bytes);
}

double heed_cpu_run(void* launcher, heed_cpu_entry entry, const heed::ForwardParams* params, long long launches,
                    long long blocks) {
  return static_cast<heed::launch::Launcher*>(launcher)->run(entry, params, launches, blocks);
}

void heed_cpu_close(void* launcher) {
  delete static_cast<heed::launch::Launcher*>(launcher);
}
}
