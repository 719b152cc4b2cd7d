/// Named ranges of a timeline for Nsight Systems and other tools that read NVTX: https://nvidia.github.io/NVTX/
///
/// A tool is loaded by the variable that NVTX names, NVTX_INJECTION64_PATH, which `nsys profile` sets. Without one a
/// range costs a few nanoseconds; where NVTX's header was not there when Heed was built, nothing.
#pragma once

#include <string>

namespace heed {

/// A range of the calling thread, from here to the end of the scope, in the domain "heed". Ranges of a thread nest.
class TimelineRange {
 public:
  /// @param name what is done: "build", "gate", "screen", "measure", "model"  @param of to what, as the tool shows it
  explicit TimelineRange(const char* name, const std::string& of = {});
  ~TimelineRange();
  TimelineRange(const TimelineRange&) = delete;
  TimelineRange& operator=(const TimelineRange&) = delete;
};

}  // namespace heed
