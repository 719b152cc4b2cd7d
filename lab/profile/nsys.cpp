#include "profile/nsys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "base/text.hpp"
#include "process/interrupt.hpp"
#include "process/process.hpp"

namespace heed::profile {
namespace {

namespace fs = std::filesystem;

// The last line that says something: tools print what went wrong at the end.
std::string last_line(const std::string& output) {
  std::string last = "it printed nothing";
  for (const std::string& line : split(output, '\n'))
    if (!trim(line).empty()) last = trim(line);
  return last;
}

std::string run_nsys(const std::vector<std::string>& argv, const std::string& doing, double limit_s) {
  const ProcessResult run = run_process(argv, {}, limit_s);
  check_interrupt();
  if (run.ok()) return run.output;
  throw Error(ErrorCode::unsupported,
              !run.started      ? fmt::format("Nsight Systems could not be started: {}", run.output)
              : run.timed_out   ? fmt::format("Nsight Systems did not end {} within {}; take a smaller workload", doing,
                                              human_duration(limit_s))
              : run.signal != 0 ? fmt::format("Nsight Systems was ended by signal {} while {}", run.signal, doing)
                                : fmt::format("Nsight Systems failed {} (exit code {}): {}", doing, run.exit_code,
                                              last_line(run.output)),
              argv.front());
}

}  // namespace

std::vector<std::string> nsys_command(const std::string& program, const Variant& variant, const Workload& workload,
                                      const std::string& report) {
  const std::string name = describe(variant);
  // Launches are replays of graphs: without the nodes of a graph one by one, 100 launches are one entry. Samples of the
  // processor and its context switches are much of a recording, and tell nothing of the GPU.
  return {"nsys",
          "profile",
          "-t",
          "cuda,nvtx",
          "--sample=none",
          "--cpuctxsw=none",
          "--cuda-graph-trace=node",
          "--force-overwrite=true",
          "-o",
          report,
          program,
          "bench",
          name,
          "--against",
          name,
          "--shape",
          to_string(workload),
          "--device",
          "cuda"};
}

GpuTimeline record_timeline(const std::string& nsys, std::vector<std::string> command, const std::string& report,
                            const fs::path& folder, double limit_s) {
  command.front() = nsys;
  (void)run_nsys(command, "recording", limit_s);
  const std::string recorded = report + ".nsys-rep";
  std::error_code error;
  if (!fs::exists(recorded, error))
    throw Error(ErrorCode::invalid_input, fmt::format("Nsight Systems has left no recording at {}", recorded),
                recorded);
  const std::string exports = (folder / "timeline").string();
  (void)run_nsys({nsys, "stats", "--report", "cuda_gpu_trace", "--report", "nvtx_pushpop_trace", "--format", "csv",
                  "--force-export=true", "--force-overwrite=true", "--output", exports, recorded},
                 "exporting", limit_s);
  GpuTimeline timeline;
  // A report that has nothing to tell is skipped, with a sentence and without a file.
  const std::string activities = exports + "_cuda_gpu_trace.csv";
  const std::string ranges = exports + "_nvtx_pushpop_trace.csv";
  if (fs::exists(activities, error))
    timeline.activities = read_gpu_trace(read_file(activities, ErrorCode::invalid_input));
  if (fs::exists(ranges, error)) timeline.ranges = read_range_trace(read_file(ranges, ErrorCode::invalid_input));
  return timeline;
}

}  // namespace heed::profile
