/// The calls of attention that a model made: the file that heed.record of the Python package writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::record {

/// Calls of one workload.
struct Calls {
  Workload workload;
  std::int64_t calls = 0;
  double seconds = 0;  ///< of all of them together; 0 where they were not timed
};

/// Calls that no kernel can be evolved for.
struct OtherCalls {
  std::string workload;  ///< empty where no kernel has the form of the calls
  std::int64_t calls = 0;
  double seconds = 0;
  std::string reason;
};

struct RecordedCalls {
  std::string device;        ///< "cpu", or a GPU by its name; empty where nothing was recorded
  std::vector<Calls> calls;  ///< rows of the same workload are one
  std::vector<OtherCalls> others;
};

/// @param name of the file, for messages
/// @throws Error(usage) where the text is no such file, a row has no workload or number of calls, or a number is
/// negative; Error(invalid_workload) for a workload that cannot be
RecordedCalls parse_calls(std::string_view text, std::string_view name);

}  // namespace heed::record
