// Trial runs of a few machine instructions: how well this machine can confine a CPU candidate.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/files.hpp"
#include "worker/executor.hpp"
#include "worker/runner.hpp"

namespace heed::worker {
namespace {

#if defined(__x86_64__)
constexpr std::array<unsigned char, 1> kReturn = {0xc3};
constexpr std::array<unsigned char, 8> kAsk = {0xb8, 0x27, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3};  // getpid
constexpr std::array<unsigned char, 3> kReadClock = {0x0f, 0x31, 0xc3};                          // rdtsc
#else
constexpr std::array<std::uint32_t, 1> kReturn = {0xd65f03c0};
constexpr std::array<std::uint32_t, 3> kAsk = {0xd2801588, 0xd4000001, 0xd65f03c0};  // getpid
constexpr std::array<std::uint32_t, 2> kReadClock = {0xd53be040, 0xd65f03c0};        // mrs x0, cntvct_el0
#endif

// Why a runner of these instructions ended; nothing where it ran to their end. Other errors are thrown on.
std::optional<std::string> end_of(std::span<const std::byte> instructions) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const code = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) throw Error(ErrorCode::worker, "there is no memory for a trial run: " + last_system_error());
  const std::unique_ptr<void, void (*)(void*)> unmaps(
      code, [](void* memory) { ::munmap(memory, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))); });
  std::memcpy(code, instructions.data(), instructions.size());
  __builtin___clear_cache(static_cast<char*>(code), static_cast<char*>(code) + page);
  if (::mprotect(code, page, PROT_READ | PROT_EXEC) != 0)
    throw Error(ErrorCode::worker, "memory cannot be made executable: " + last_system_error());
  const CpuLaunch launch{.params = {}, .blocks = 1};
  RunnerTask task;
  task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
  task.code_bytes = page;
  task.launches = {&launch, 1};
  task.threads = 2;
  try {
    Runner runner(task);
    runner.begin(1);
    runner.wait();
  } catch (const DeviceFailure& failure) {
    return failure.what();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_no_runner() {
  try {
    if (const auto why = end_of(std::as_bytes(std::span(kReturn)))) return why;
    const std::optional<std::string> stopped = end_of(std::as_bytes(std::span(kAsk)));
    if (!stopped) return "a forbidden system call was not stopped";
    if (stopped->find("sandbox forbids") == std::string::npos) return stopped;
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool runner_has_a_clock() {
  return !end_of(std::as_bytes(std::span(kReadClock)));
}

}  // namespace heed::worker
