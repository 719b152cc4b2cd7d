// A trial run of a few machine instructions: whether this machine can confine a CPU candidate.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/files.hpp"
#include "worker/executor.hpp"
#include "worker/runner.hpp"

namespace heed::worker {

std::optional<std::string> why_no_runner() {
#if defined(__x86_64__)
  constexpr std::array<unsigned char, 1> kReturn = {0xc3};
  constexpr std::array<unsigned char, 8> kAsk = {0xb8, 0x27, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3};  // getpid
#else
  constexpr std::array<std::uint32_t, 1> kReturn = {0xd65f03c0};
  constexpr std::array<std::uint32_t, 3> kAsk = {0xd2801588, 0xd4000001, 0xd65f03c0};  // getpid
#endif
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* code = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) return "no memory for a trial run: " + last_system_error();
  const auto run = [&](const auto& instructions) {
    ::mprotect(code, bytes, PROT_READ | PROT_WRITE);
    std::memcpy(code, instructions.data(), sizeof instructions);
    __builtin___clear_cache(static_cast<char*>(code), static_cast<char*>(code) + bytes);
    if (::mprotect(code, bytes, PROT_READ | PROT_EXEC) != 0)
      throw Error(ErrorCode::worker, "memory cannot be made executable: " + last_system_error());
    const CpuLaunch launch{.params = {}, .blocks = 1};
    RunnerTask task;
    task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
    task.code_bytes = bytes;
    task.launches = {&launch, 1};
    task.threads = 2;
    Runner runner(task);
    runner.begin(1);
    runner.wait();
  };
  std::optional<std::string> why;
  try {
    run(kReturn);
    try {
      run(kAsk);
      why = "a forbidden system call was not stopped";
    } catch (const DeviceFailure& failure) {
      if (std::string_view(failure.what()).find("sandbox forbids") == std::string_view::npos) why = failure.what();
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  ::munmap(code, bytes);
  return why;
}

}  // namespace heed::worker
