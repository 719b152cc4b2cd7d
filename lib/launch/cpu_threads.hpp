/// CPU programs launched on threads of their own: pinned, and going from launch to launch without the caller, as in a
/// worker, so that a kernel takes as long here as there.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/attention/features.hpp"

namespace heed {

/// The entry of a CPU program: block `block` of a launch. `scratch` is 4096-byte aligned.
using CpuEntry = void (*)(const ForwardParams* params, long long block, void* scratch);

/// Room of a number of threads, so much for each, at multiples of a page. Its pages are there from the beginning.
/// Behind each room lies one that nobody may touch: a program that takes more than it asked for ends there, and writes
/// into nobody else's memory.
class CpuScratch {
 public:
  CpuScratch() = default;
  ~CpuScratch();
  CpuScratch(const CpuScratch&) = delete;
  CpuScratch& operator=(const CpuScratch&) = delete;

  /// Room of at least so many bytes each, in place of less. @return false where the memory cannot be had
  [[nodiscard]] bool reserve(long long bytes_each, std::size_t threads);
  [[nodiscard]] void* of(std::size_t thread) const { return room_ + thread * (bytes_each_ + guard_bytes_); }

 private:
  std::byte* room_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t bytes_each_ = 0;
  std::size_t guard_bytes_ = 0;
};

/// What runs the blocks of launches.
class CpuLauncher {
 public:
  virtual ~CpuLauncher() = default;
  CpuLauncher(const CpuLauncher&) = delete;
  CpuLauncher& operator=(const CpuLauncher&) = delete;

  /// `launches` launches of `blocks` blocks one after another, each with its parameters; returns when all are done,
  /// with the microseconds they took together.
  virtual double run(CpuEntry entry, const FeatureParams* params, long long launches, long long blocks) = 0;

 protected:
  CpuLauncher() = default;
};

/// Threads pinned to processors of this process, each with scratch. They share the blocks of a launch through one
/// counter.
class CpuThreads final : public CpuLauncher {
 public:
  /// @throws Error(internal) where the system gives no more threads
  explicit CpuThreads(int threads);
  ~CpuThreads() override;

  /// Sees to it that every thread has this much scratch. @return false where the memory cannot be had
  [[nodiscard]] bool reserve(long long scratch_bytes);

  /// Callers take turns. A child of fork, which has none of the threads, starts its own at its first run.
  double run(CpuEntry entry, const FeatureParams* params, long long launches, long long blocks) override;

 private:
  struct Progress;

  void start();
  void work(int index);
  void stop();
  [[nodiscard]] bool are_of_another_process() const;
  void leave();
  void renew_after_fork();

  std::mutex turn_;
  const int count_;
  std::atomic<pid_t> process_{0};  ///< that has the threads; less than 0 while it takes them over
  CpuScratch scratch_;
  CpuEntry entry_ = nullptr;
  const FeatureParams* params_ = nullptr;
  long long launches_ = 0;
  long long blocks_ = 0;
  std::unique_ptr<Progress[]> progress_;
  alignas(64) std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> finished_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace heed
