#include "conformance/stress.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace heed::conformance {
namespace {

using Clock = std::chrono::steady_clock;

// One thread's part: a plan, what it must write, and tensors for each stream.
struct Part {
  CheckedPlan* plan = nullptr;
  const std::vector<std::byte>* expected = nullptr;
  StressResult* result = nullptr;
  std::vector<std::unique_ptr<CheckedRun>> runs;
};

// A run by itself; empty where it is wrong, which `result` then tells.
std::vector<std::byte> run_by_itself(CheckedPlan& plan, StressResult& result) {
  try {
    CheckedRun tensors(plan);
    tensors.reset();
    tensors.run();
    std::vector<std::byte> bytes = tensors.result();
    const verify::Comparison comparison = plan.check(bytes);
    if (comparison.finding == Finding::none) return bytes;
    result.failure = "by itself: " + comparison.text;
  } catch (const std::exception& error) {
    result.failure = fmt::format("by itself: {}", error.what());
  }
  return {};
}

class Rounds {
 public:
  Rounds(const StressOptions& options, const std::function<bool()>& stop)
      : options_(options),
        stop_(stop),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))) {}

  void of_thread(Part& part) {
    try {
      enter_device(part.plan->device());
      do round(part);
      while (Clock::now() < end_ && !ended_);
    } catch (const std::exception& error) {
      tell(*part.result, error.what());
    }
  }

 private:
  // All streams of the thread have runs queued before any of them is waited for.
  void round(Part& part) {
    for (auto& run : part.runs) run->reset();
    for (int i = 0; i < options_.runs_of_a_round; ++i)
      for (auto& run : part.runs) run->run();
    std::int64_t differed = 0;
    std::string text;
    for (auto& run : part.runs) {
      const std::vector<std::byte>& after = run->result();
      if (after == *part.expected) continue;
      ++differed;
      if (text.empty()) text = difference(part, after);
    }
    {
      const std::lock_guard lock(mutex_);
      part.result->runs += static_cast<std::int64_t>(part.runs.size()) * options_.runs_of_a_round;
      part.result->looks += static_cast<std::int64_t>(part.runs.size());
      part.result->differed += differed;
      if (stop_()) ended_ = true;
    }
    if (differed > 0) tell(*part.result, text);
  }

  std::string difference(const Part& part, const std::vector<std::byte>& after) {
    const std::lock_guard lock(mutex_);
    const verify::Comparison comparison = part.plan->check(after);
    return comparison.finding == Finding::none ? "the bits are not those of a run by itself" : comparison.text;
  }

  // The first failure ends every thread: the device may not go on, and one is enough.
  void tell(StressResult& result, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (result.failure.empty()) result.failure = text;
    ended_ = true;
  }

  const StressOptions& options_;
  const std::function<bool()>& stop_;
  Clock::time_point end_;
  std::mutex mutex_;
  std::atomic<bool> ended_{false};
};

}  // namespace

std::vector<StressResult> stress(const std::vector<std::unique_ptr<CheckedPlan>>& plans, const StressOptions& options,
                                 const std::function<bool()>& stop) {
  std::vector<StressResult> results;
  std::vector<std::vector<std::byte>> expected;
  std::vector<std::size_t> right;
  for (const auto& plan : plans) {
    StressResult& result = results.emplace_back();
    result.workload = to_string(plan->workload());
    result.variant = plan->plan().info().variant;
    expected.push_back(run_by_itself(*plan, result));
    if (result.failure.empty()) right.push_back(results.size() - 1);
  }
  if (right.empty()) return results;
  // Memory is had before the threads begin: while others launch without end, the driver may keep an allocation waiting.
  std::vector<Part> parts(static_cast<std::size_t>(options.threads));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t at = right[i % right.size()];
    parts[i].plan = plans[at].get();
    parts[i].expected = &expected[at];
    parts[i].result = &results[at];
    ++results[at].threads;
    for (int s = 0; s < options.streams; ++s) parts[i].runs.push_back(std::make_unique<CheckedRun>(*plans[at]));
  }
  Rounds rounds(options, stop);
  std::vector<std::thread> threads;
  threads.reserve(parts.size());
  for (Part& part : parts) threads.emplace_back([&rounds, &part] { rounds.of_thread(part); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace heed::conformance
