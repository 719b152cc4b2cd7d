/// A timeline of what a GPU did, read from the exports of Nsight Systems, and what it says in a few numbers.
/// https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html, "Statistical Reports Shipped With Nsight Systems"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/intervals.hpp"

namespace heed::profile {

/// Whatever a GPU does: a launch of a kernel, a copy, or memory set to a value.
struct GpuActivity {
  enum class Kind { kernel, copy, set };
  Kind kind = Kind::kernel;
  Interval ns;         ///< since the recording began
  std::string name;    ///< of the kernel, or "[CUDA memcpy Host-to-Device]"
  std::string device;  ///< as the export names it
};

/// A range that a program named (lab/process/timeline.hpp).
struct NamedRange {
  Interval ns;
  std::string name;  ///< "gate fwd_sm80:...", without its domain
};

struct GpuTimeline {
  std::vector<GpuActivity> activities;
  std::vector<NamedRange> ranges;
};

/// Rows of the report cuda_gpu_trace as CSV. Columns are found by their names: versions have different ones.
/// @throws Error(invalid_input) for what is no such report, is truncated, or holds a number that is none; the offending
/// value is the line
std::vector<GpuActivity> read_gpu_trace(std::string_view csv);
/// The same for nvtx_pushpop_trace.
std::vector<NamedRange> read_range_trace(std::string_view csv);

/// Where one kernel has ended and the next of its GPU has not begun. A kernel that begins before the one before it ends
/// has a gap of 0.
struct Gaps {
  std::size_t count = 0;
  double median_us = 0, lower_quartile_us = 0, upper_quartile_us = 0, largest_us = 0;
};

/// What happened within all ranges whose names have the same first word.
struct RangeSummary {
  std::string name;
  std::size_t count = 0;
  double seconds = 0;       ///< of the ranges, each counted
  double busy_seconds = 0;  ///< of the GPU within them, whoever kept it busy
};

struct TimelineSummary {
  std::size_t kernels = 0, copies = 0, sets = 0;
  double seconds = 0;                ///< from the beginning of the first activity to the end of the last
  double busy_share = 0;             ///< of these seconds, those with at least one activity on some GPU
  double kernel_share = 0;           ///< with a kernel
  double copy_seconds = 0;           ///< with a copy
  double overlap_share = 0;          ///< of copy_seconds, those with a kernel beside; 0 where nothing was copied
  Gaps gaps;                         ///< between any two kernels that follow one another
  Gaps own_gaps;                     ///< between two launches of a variant's kernel with no other kernel between them
  std::vector<RangeSummary> ranges;  ///< longest first
};

/// @param entry the name of a variant's kernel, e.g. "heed_forward"
/// @throws Error(invalid_input) for a timeline without kernels
TimelineSummary summarise(const GpuTimeline& timeline, std::string_view entry);

}  // namespace heed::profile
