/// Plans of the calls that a process makes: each is made when its problem is first seen, and found by 256 bytes of key
/// later.
#pragma once

#include <heed/heed.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call.hpp"

namespace heed::torch {

/// The plan of one problem, or why there is none, and how often it was asked for.
class PlanEntry {
 public:
  PlanEntry(const heed_problem& problem, const heed_options& options);
  ~PlanEntry();
  PlanEntry(const PlanEntry&) = delete;
  PlanEntry& operator=(const PlanEntry&) = delete;

  /// Null where libheed supports no such problem: `refused` says why.
  [[nodiscard]] const heed_plan* plan() const { return plan_; }
  [[nodiscard]] const heed_plan_info& info() const { return info_; }
  [[nodiscard]] const heed_problem& problem() const { return problem_; }
  [[nodiscard]] const std::string& refused() const { return refused_; }

  /// Of runs.
  std::atomic<std::uint64_t> calls{0};
  /// That a CPU took for them.
  std::atomic<std::uint64_t> nanoseconds{0};

 private:
  heed_problem problem_;
  heed_plan_info info_{};
  heed_plan* plan_ = nullptr;
  std::string refused_;
};

/// Finds the entry of a call, or makes it: milliseconds where its program is not loaded yet. Safe from many threads; an
/// entry that was found lives as long as the thread asks for no other of the same place: use it before the next call.
PlanEntry& entry_of(const Call& call);

/// Calls of a problem whose plan was forgotten since, or of one that is there.
struct PlanCount {
  std::string workload;
  std::string variant;
  std::string origin;
  std::string reason;
  std::string precision;
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
};
/// Of every problem that was run, by the text of its workload.
std::vector<PlanCount> plan_counts();
/// Sets the counts of every entry to zero.
void reset_plan_counts();
/// Forgets every plan: problems are planned again, by the book and the environment as they are then.
void forget_plans();

}  // namespace heed::torch
