/// NVIDIA's compute-sanitizer around a program that launches kernels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed {

/// The four tools: memory out of bounds, races in shared memory, reads of what was never written, barriers that not all
/// threads reach. https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/
inline constexpr std::string_view kSanitizers[] = {"memcheck", "racecheck", "initcheck", "synccheck"};

/// What one tool said of one variant.
struct Sanitized {
  std::string tool;
  bool passed = false;
  std::string reason;  ///< its first finding, or why it did not run to its end; empty when it passed
};

/// The first finding of a tool's output, lines that begin with "=========". @param exit_code of compute-sanitizer,
/// which is 0 where it found nothing and what ran under it ended well
Sanitized read_sanitizer(std::string_view tool, std::string_view output, int exit_code);

/// Runs a command under one tool. @param limit_s wall clock
/// @throws Error(unsupported) with a sentence where compute-sanitizer is missing
Sanitized sanitize_with(std::string_view tool, const std::vector<std::string>& command, double limit_s);
/// The same under each of the four, one after the other. @param limit_s wall clock for one tool
std::vector<Sanitized> sanitize(const std::vector<std::string>& command, double limit_s);

}  // namespace heed
