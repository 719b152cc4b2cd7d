#include "process/processor_wait.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string>

#include "base/files.hpp"

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr double kPatience = 10;
constexpr double kStep = 0.1;         // of a limit, after which is read how long threads have waited
constexpr double kLeastStep_s = 0.5;  // Linux counts a wait when it ends, which beside dozens of programs takes 0.2 s

std::optional<pid_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  pid_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? std::optional(number) : std::nullopt;
}

// "PID (NAME) STATE PARENT ...", where the name may hold anything.
std::optional<pid_t> parent_of(const fs::path& process) {
  const std::string text = read_kernel_file(process / "stat");
  const std::size_t after_name = text.rfind(") ");
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(after_name + 2));
  std::string state;
  pid_t parent = 0;
  fields >> state >> parent;
  return fields ? std::optional(parent) : std::nullopt;
}

}  // namespace

std::optional<double> parse_processor_wait(std::string_view schedstat) {
  std::istringstream words{std::string(schedstat)};
  double ran_ns = 0;
  double waited_ns = 0;
  double slices = 0;
  words >> ran_ns >> waited_ns >> slices;
  if (!words || waited_ns < 0) return std::nullopt;
  return waited_ns * 1e-9;
}

ProcessorWaits processor_waits(pid_t process) {
  ProcessorWaits waits;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<pid_t> number = number_of(entry->path());
    if (!number || (*number != process && parent_of(entry->path()) != process)) continue;
    std::error_code gone;  // processes end while they are looked at
    for (fs::directory_iterator thread(entry->path() / "task", gone); !gone && thread != end; thread.increment(gone))
      if (const auto waited_s = parse_processor_wait(read_kernel_file(thread->path() / "schedstat")))
        waits[number_of(thread->path()).value_or(0)] = *waited_s;
  }
  return waits;
}

double longest_wait(const ProcessorWaits& before, const ProcessorWaits& after) {
  double longest_s = 0;
  for (const auto& [thread, waited_s] : after) {
    const auto known = before.find(thread);
    longest_s = std::max(longest_s, waited_s - (known == before.end() ? 0.0 : known->second));
  }
  return longest_s;
}

bool is_over(double limit_s, double watched_s, double waited_s) {
  const double passed_s = limit_s + watched_s;
  const double ran = watched_s > 0 ? 1 - std::clamp(waited_s / watched_s, 0.0, 1.0) : 1;
  return ran * passed_s >= limit_s || passed_s >= kPatience * limit_s;
}

PatientDeadline::PatientDeadline(double limit_s)
    : limit_s_(limit_s),
      next_look_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s))) {}

double PatientDeadline::left_s() const {
  return std::chrono::duration<double>(next_look_ - Clock::now()).count();
}

bool PatientDeadline::is_over(pid_t process) {
  const auto now = Clock::now();
  const auto step = std::chrono::duration<double>(std::max(kStep * limit_s_, kLeastStep_s));
  next_look_ = now + std::chrono::duration_cast<Clock::duration>(step);
  if (!watches_) {
    watches_ = true;
    watched_since_ = now;
    before_ = processor_waits(process);
    return false;
  }
  const double watched_s = std::chrono::duration<double>(now - watched_since_).count();
  return heed::is_over(limit_s_, watched_s, longest_wait(before_, processor_waits(process)));
}

}  // namespace heed
