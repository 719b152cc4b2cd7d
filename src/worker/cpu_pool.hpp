/// The CPU as a device: a grid of calls shared by pinned threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "kernels/contract.hpp"

namespace heed::worker {

/// Entry of a CPU candidate; see ForwardParams. `scratch` is 64-byte aligned.
using CpuEntry = void (*)(const ForwardParams* params, long long block, void* scratch);

/// One launch: entry(params, block, scratch) for every block in [0, blocks).
struct CpuLaunch {
  ForwardParams params;
  long long blocks = 0;
};

/// Pinned threads that share the blocks of a launch through one atomic counter.
///
/// The calling thread only waits: candidates run on pool threads alone, which may not read the time-stamp counter
/// (prctl PR_SET_TSC) and may make no system call but those that waiting takes, so a candidate cannot tell the time or
/// get memory. A sequence of launches runs on the pool from end to end,
/// with a spinning barrier after each launch, because waking threads for every launch would cost as much as a small
/// launch itself.
class CpuPool {
 public:
  CpuPool(int threads, std::int64_t scratch_bytes);
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  /// Runs the launches one after another on `threads` of the pool's threads; returns when all are done.
  void launch(CpuEntry entry, std::span<const CpuLaunch> launches, int threads);

  /// Fills every thread's scratch with NaN, so that a read of something never written shows.
  void poison_scratch();

  /// Whether a launch left the control bits of the floating-point unit (rounding, flushing, traps) other than it found
  /// them. They are put right again.
  [[nodiscard]] bool control_was_changed() const { return control_was_changed_.load(); }

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()); }

 private:
  /// Progress of one launch of a sequence.
  struct alignas(64) Progress {
    std::atomic<long long> next_block{0};
    std::atomic<int> arrived{0};
  };

  void work(int index);

  std::int64_t scratch_bytes_;
  std::byte* scratch_ = nullptr;
  CpuEntry entry_ = nullptr;
  std::span<const CpuLaunch> launches_;
  int active_ = 0;
  std::unique_ptr<Progress[]> progress_;
  alignas(64) std::atomic<std::uint64_t> generation_{0};  // low bit set: stop
  alignas(64) std::atomic<int> finished_{0};
  std::atomic<bool> control_was_changed_{false};
  std::vector<std::thread> threads_;
};

}  // namespace heed::worker
