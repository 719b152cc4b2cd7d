#include "process/sanitizer.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "process/interrupt.hpp"
#include "process/process.hpp"

namespace heed {
namespace {

constexpr int kFound = 99;  // what compute-sanitizer ends with where it found something

std::string sanitizer() {
  if (std::string found = find_program("compute-sanitizer"); !found.empty()) return found;
  const std::string toolkit = "/usr/local/cuda/bin/compute-sanitizer";
  std::error_code error;
  if (std::filesystem::exists(toolkit, error)) return toolkit;
  throw Error(ErrorCode::unsupported,
              "compute-sanitizer is neither on the PATH nor below /usr/local/cuda; it comes with the CUDA toolkit (apt "
              "install cuda-sanitizer)");
}

}  // namespace

Sanitized read_sanitizer(std::string_view tool, std::string_view output, int exit_code) {
  Sanitized result{std::string(tool), exit_code == 0, {}};
  if (result.passed) return result;
  constexpr std::string_view kMark = "=========";
  std::string last;
  for (const std::string& line : split(output, '\n')) {
    if (!trim(line).empty()) last = trim(line);
    if (!line.starts_with(kMark) || !result.reason.empty()) continue;
    const std::string said = trim(std::string_view(line).substr(kMark.size()));
    // Its own name and what it counts at the end are no findings.
    if (!said.empty() && !said.starts_with("COMPUTE-SANITIZER") && said.find("SUMMARY") == std::string::npos)
      result.reason = said;
  }
  if (result.reason.empty())
    result.reason = exit_code == kFound ? "it found something and does not say what"
                                        : fmt::format("it ended with exit code {}: {}", exit_code, last);
  return result;
}

Sanitized sanitize_with(std::string_view tool, const std::vector<std::string>& command, double limit_s) {
  std::vector<std::string> argv = {sanitizer(), "--tool",           std::string(tool),      "--target-processes",
                                   "all",       "--error-exitcode", std::to_string(kFound), "--print-limit",
                                   "20"};
  argv.insert(argv.end(), command.begin(), command.end());
  const ProcessResult run = run_process(argv, {}, limit_s);
  if (run.timed_out)
    return {std::string(tool), false,
            fmt::format("it did not end within {}; take a smaller workload", human_duration(limit_s))};
  if (!run.started || run.signal != 0)
    return {std::string(tool), false, run.started ? fmt::format("it was ended by signal {}", run.signal) : run.output};
  return read_sanitizer(tool, run.output, run.exit_code);
}

std::vector<Sanitized> sanitize(const std::vector<std::string>& command, double limit_s) {
  std::vector<Sanitized> results;
  for (const std::string_view tool : kSanitizers) {
    check_interrupt();
    results.push_back(sanitize_with(tool, command, limit_s));
    check_interrupt();
  }
  return results;
}

}  // namespace heed
