/// Many threads that run plans at once, each on streams of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/checked_plan.hpp"

namespace heed::conformance {

struct StressOptions {
  int threads = 8;
  int streams = 2;            ///< of each thread
  double seconds = 60;        ///< a thread ends its round after so many
  int runs_of_a_round = 100;  ///< of each stream, before the thread waits and looks at the results
};

/// What became of one plan.
struct StressResult {
  std::string workload;
  std::string variant;
  int threads = 0;  ///< that ran it
  std::int64_t runs = 0;
  std::int64_t looks = 0;     ///< results that were compared with those of a run by itself, byte for byte
  std::int64_t differed = 0;  ///< those that were not the same
  std::string failure;        ///< the first thing that was wrong; empty where nothing was
};

/// Thread i runs plan i % plans. Every result is the very bytes of a run by itself, which the oracle has passed.
/// @param stop asked between rounds; true ends them all
/// @return one of each plan; a plan whose run by itself is wrong, or is refused, is not run by threads
std::vector<StressResult> stress(const std::vector<std::unique_ptr<CheckedPlan>>& plans, const StressOptions& options,
                                 const std::function<bool()>& stop);

}  // namespace heed::conformance
