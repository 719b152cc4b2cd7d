/// CPU programs launched on threads of the caller.
#pragma once

#include <atomic>
#include <memory>

#include "launch/cpu_threads.hpp"

namespace heed {

/// heed_options.parallel_for and its context.
struct ParallelFor {
  void (*call)(void* context, int tasks, void (*task)(void* argument, int index), void* argument) = nullptr;
  void* context = nullptr;
};

/// Tasks of a caller's pool, which share the blocks of a launch through one counter. Nothing is locked while the
/// caller's code runs, so that a pool whose threads run other work while they wait may run the same plan in it. Scratch
/// belongs to tasks that run, not to numbers of tasks: launches side by side share it, and a task that finds none
/// leaves its blocks to the others.
class CallerThreads final : public CpuLauncher {
 public:
  /// @param scratch_bytes of each task
  /// @throws std::bad_alloc
  CallerThreads(ParallelFor parallel_for, int tasks, long long scratch_bytes);

  /// @throws Error(usage) where the caller's function throws, or leaves tasks out
  double run(CpuEntry entry, const FeatureParams* params, long long launches, long long blocks) override;

 private:
  struct Launch;
  struct alignas(64) Slot {
    std::atomic<bool> is_taken{false};
  };

  static void task(void* argument, int index);
  /// Takes blocks until none is left. @return false where all scratch is taken
  bool work(Launch& launch, std::size_t first_slot) noexcept;
  static void keep(std::unique_ptr<Launch> launch);
  void run_one(CpuEntry entry, const FeatureParams& params, long long blocks);

  ParallelFor parallel_for_;
  int tasks_;
  std::unique_ptr<Slot[]> slots_;
  CpuScratch scratch_;
};

}  // namespace heed
