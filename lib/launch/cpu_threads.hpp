/// CPU programs launched on threads of their own: pinned, and going from launch to launch without the caller, as in a
/// worker, so that a kernel takes as long here as there.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/contract.hpp"

namespace heed {

/// The entry of a CPU program: block `block` of a launch. `scratch` is 4096-byte aligned.
using CpuEntry = void (*)(const ForwardParams* params, long long block, void* scratch);

/// Threads pinned to processors of this process, each with scratch. They share the blocks of a launch through one
/// counter.
class CpuThreads {
 public:
  explicit CpuThreads(int threads);
  ~CpuThreads();
  CpuThreads(const CpuThreads&) = delete;
  CpuThreads& operator=(const CpuThreads&) = delete;

  /// Sees to it that every thread has this much scratch. @return false where the memory cannot be had
  [[nodiscard]] bool reserve(long long scratch_bytes);

  /// `launches` launches of `blocks` blocks one after another, each with its parameters; returns when all are done,
  /// with the microseconds they took together. Callers take turns.
  double run(CpuEntry entry, const ForwardParams* params, long long launches, long long blocks);

 private:
  struct Progress;

  void work(int index);

  std::mutex turn_;
  long long scratch_bytes_ = 0;
  std::byte* scratch_ = nullptr;
  CpuEntry entry_ = nullptr;
  const ForwardParams* params_ = nullptr;
  long long launches_ = 0;
  long long blocks_ = 0;
  std::unique_ptr<Progress[]> progress_;
  alignas(64) std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> finished_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace heed
