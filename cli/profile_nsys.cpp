#include "cli/profile_nsys.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.hpp"
#include "cli/command.hpp"
#include "json/text.hpp"
#include "process/process.hpp"
#include "process/shell_word.hpp"
#include "profile/nsys.hpp"
#include "record/gpu_timeline.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kRecordingLimit_s =
    600;  // `heed bench` of one variant takes half a minute, under nsys several times that
constexpr const char* kEntry = "heed_forward";

// A folder that is gone at the end of the scope.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    fs::path parent = fs::temp_directory_path(error);
    if (error) parent = "/tmp";
    std::string pattern = (parent / "heed-timeline-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw Error(ErrorCode::unsupported, fmt::format("cannot create a folder for a timeline: {}", last_system_error()),
                  pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string as_typed(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

std::string summary_text(const profile::TimelineSummary& s) {
  std::string text = fmt::format(
      "{} kernels, {} copies and {} sets of memory in {:.2f} s; the GPU was busy {:.1f}% of that time, with kernels "
      "{:.1f}%\n",
      s.kernels, s.copies, s.sets, s.seconds, 100 * s.busy_share, 100 * s.kernel_share);
  text += s.copies == 0 ? "nothing was copied\n"
                        : fmt::format("copies took {:.3f} s; beside {:.1f}% of that time a kernel ran\n",
                                      s.copy_seconds, 100 * s.overlap_share);
  report::Table gaps({"from the end of a kernel to the next", "gaps", "lower quartile us", "median us",
                      "upper quartile us", "largest us"});
  const auto add = [&](const std::string& name, const profile::Gaps& g) {
    const auto us = [&](double value) { return g.count == 0 ? std::string("-") : fmt::format("{:.2f}", value); };
    gaps.add({name, std::to_string(g.count), us(g.lower_quartile_us), us(g.median_us), us(g.upper_quartile_us),
              us(g.largest_us)});
  };
  add("any two kernels", s.gaps);
  add(fmt::format("{} after {}", kEntry, kEntry), s.own_gaps);
  text += "\n" + gaps.str();
  if (s.ranges.empty()) return text + "\nno range of NVTX was recorded\n";
  report::Table ranges({"range", "times", "seconds", "GPU busy s", "of it"});
  for (const profile::RangeSummary& r : s.ranges)
    ranges.add({r.name, std::to_string(r.count), fmt::format("{:.3f}", r.seconds),
                fmt::format("{:.3f}", r.busy_seconds),
                r.seconds > 0 ? fmt::format("{:.1f}%", 100 * r.busy_seconds / r.seconds) : "-"});
  return text + "\n" + ranges.str();
}

}  // namespace

int profile_with_nsys(const Variant& variant, const Workload& workload, std::string report, bool json) {
  constexpr std::string_view kEnding = ".nsys-rep";
  if (report.ends_with(kEnding)) report.resize(report.size() - kEnding.size());
  const std::string nsys = find_program("nsys");
  if (nsys.empty()) {
    const std::vector<std::string> command =
        profile::nsys_command(self_executable(), variant, workload, report.empty() ? "heed_timeline" : report);
    const std::string reason =
        "nsys is not on the PATH, so the command was not run; Nsight Systems comes with the CUDA toolkit";
    if (json) {
      print(json_text(nlohmann::json{{"nsys", as_typed(command)}, {"ran", false}, {"reason", reason}}, 1) + "\n");
    } else {
      print(as_typed(command) + "\n");
      remark(true, reason);  // to stderr: what is printed can be pasted, or read by a shell
    }
    return 0;
  }
  const ScratchFolder scratch;
  if (report.empty())
    report = (scratch.path() / "recording").string();
  else
    expect_writable(report + std::string(kEnding), ErrorCode::unsupported);
  const std::vector<std::string> command = profile::nsys_command(self_executable(), variant, workload, report);
  remark(json, as_typed(command));
  const profile::TimelineSummary summary =
      profile::summarise(profile::record_timeline(nsys, command, report, scratch.path(), kRecordingLimit_s), kEntry);
  if (json)
    print(json_text(nlohmann::json{{"nsys", as_typed(command)},
                                   {"ran", true},
                                   {"variant", variant.id()},
                                   {"config", describe(variant)},
                                   {"workload", to_string(workload)},
                                   {"timeline", record::to_json(summary)}},
                    1) +
          "\n");
  else
    print("\n" + summary_text(summary));
  return 0;
}

}  // namespace heed::cli
