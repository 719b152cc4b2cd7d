// What a runner says of its launches, and what they left in the memory where it says so.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "worker/runner.hpp"

namespace heed::worker {
namespace {

// At the progress of a replay that shall be stopped, each time with a processor that the replay has until then (a look
// every 20 us took a fifth of one). Of what its launches took so far: one that is slow at first, so that the stop may
// come late, is slow where it is timed, too.
constexpr std::int64_t kLooksALaunch = 8;
constexpr std::int64_t kLeastPause_ns = 20'000;
constexpr std::int64_t kMostPause_ns = 500'000;

// Honest threads look for the next sequence for about 50 us, then they sleep.
constexpr double kLongestLook_us = 150'000;
constexpr double kSurelyAwake_us = 12'000;  // the kernel's account of a thread that runs is up to 10 ms old

// Of a thread, as /proc has it.
struct ThreadAccount {
  bool is_running = false;  // or would be, had it a processor
  double ran_us = 0;
  double waited_us = 0;  // for a processor
};

ThreadAccount account_of(const std::filesystem::path& thread) {
  ThreadAccount account;
  std::string stat;
  std::getline(std::ifstream(thread / "stat"), stat);
  const std::size_t name_end = stat.rfind(") ");  // "PID (NAME) STATE ..."
  account.is_running = name_end != std::string::npos && stat.substr(name_end + 2, 1) == "R";
  std::ifstream times(thread / "schedstat");  // in ns; where the kernel has none nothing is known
  if (times >> account.ran_us >> account.waited_us) {
    account.ran_us /= 1000;
    account.waited_us /= 1000;
  } else {
    account.is_running = false;
  }
  return account;
}

bool is_zero(const std::byte* from, const std::byte* to) {
  return std::all_of(from, to, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

void Runner::wait_for_launches(std::size_t launches, double most_us) {
  const std::uint32_t generation = plan_->command->generation;
  const auto begin = std::chrono::steady_clock::now();
  auto looked_for_end = begin;
  for (std::size_t done = 0; __atomic_load_n(&plan_->status->finished, __ATOMIC_ACQUIRE) != generation;) {
    while (done < launches && is_done(done)) ++done;
    if (done >= launches) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - begin > std::chrono::duration<double, std::micro>(most_us)) return;
    const std::int64_t each = (now - begin) / std::chrono::nanoseconds(1) / static_cast<std::int64_t>(done + 1);
    const timespec pause{0, std::clamp(each / kLooksALaunch, kLeastPause_ns, kMostPause_ns)};
    ::nanosleep(&pause, nullptr);
    if (now - looked_for_end < std::chrono::nanoseconds(kLookEvery_ns)) continue;
    looked_for_end = now;
    look_for_end();
  }
}

std::size_t Runner::launches_done() const {
  std::size_t done = 0;
  while (done < begun_ && is_done(done)) ++done;
  return done;
}

bool Runner::is_done(std::size_t launch) const {
  return __atomic_load_n(&plan_->progress[launch].arrived, __ATOMIC_ACQUIRE) >= plan_->thread_count;
}

double Runner::awake_us() const {
  struct Seen {
    ThreadAccount first, last;
    double running_us = 0;  // when it was seen so last
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_us = [&] {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  };
  std::map<std::filesystem::path, Seen> threads;
  const std::filesystem::path folder = fmt::format("/proc/{}/task", pid_);
  for (bool is_any_running = true; is_any_running && elapsed_us() < kLongestLook_us;) {
    is_any_running = false;
    std::error_code error;
    for (const auto& thread : std::filesystem::directory_iterator(folder, error)) {
      const ThreadAccount account = account_of(thread.path());
      Seen& seen = threads.try_emplace(thread.path(), Seen{account, account, 0}).first->second;
      seen.last = account;
      if (!account.is_running) continue;
      is_any_running = true;
      seen.running_us = elapsed_us();
    }
    const timespec pause{0, kLeastPause_ns};
    if (is_any_running) ::nanosleep(&pause, nullptr);
  }
  double most_us = 0;
  for (const auto& [path, seen] : threads) {
    const double ran_us = seen.last.ran_us - seen.first.ran_us;
    if (!seen.last.is_running)
      most_us = std::max(most_us, seen.running_us - (seen.last.waited_us - seen.first.waited_us));
    else if (ran_us > kSurelyAwake_us)
      most_us = std::max(most_us, ran_us);
  }
  return most_us;
}

bool Runner::control_was_changed() const {
  return __atomic_load_n(&plan_->status->control_changed, __ATOMIC_RELAXED) != 0;
}

bool Runner::wrote_beside_its_claims() const {
  constexpr std::size_t kStatusEnd = offsetof(inside::Status, failed_errno) + sizeof(inside::Status::failed_errno);
  constexpr std::size_t kProgressEnd = offsetof(inside::Progress, arrived) + sizeof(inside::Progress::arrived);
  const auto* const status = reinterpret_cast<const std::byte*>(plan_->status);
  if (!is_zero(status + kStatusEnd, status + sizeof(inside::Status))) return true;
  const auto* progress = reinterpret_cast<const std::byte*>(plan_->progress);
  for (std::size_t i = 0; i < launch_count_; ++i, progress += sizeof(inside::Progress))
    if (!is_zero(progress + kProgressEnd, progress + sizeof(inside::Progress))) return true;
  return !is_zero(progress, written_.data() + written_.size());
}

}  // namespace heed::worker
