#include "emulator/device/program.hpp"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace heed::emulator {
namespace {

constexpr std::uint64_t kMostImage = std::uint64_t{16} << 20;  // what is read of a program's stdout

bool read_all(void* to, std::size_t bytes) {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t count = ::read(STDIN_FILENO, at, bytes);
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

bool write_all(const void* from, std::size_t bytes) {
  for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t count = ::write(STDOUT_FILENO, at, bytes);
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

int refuse(int code, const char* why) {
  std::fprintf(stderr, "%s\n", why);
  return code;
}

// What allocation, exceptions and the answer need; anything else kills the process. Where the kernel has no seccomp,
// what started this process has confined it too.
void give_up_the_system() {
#if defined(__x86_64__)
  constexpr unsigned kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
  constexpr unsigned kArchitecture = AUDIT_ARCH_AARCH64;
#else
  return;
#endif
  constexpr unsigned kAllowed[] = {
      SYS_read,         SYS_write,          SYS_exit,          SYS_exit_group, SYS_brk,       SYS_mmap,
      SYS_munmap,       SYS_mremap,         SYS_mprotect,      SYS_madvise,    SYS_futex,     SYS_fstat,
      SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_clock_gettime, SYS_getrandom,  SYS_newfstatat};
  constexpr unsigned kCount = sizeof kAllowed / sizeof kAllowed[0];
  sock_filter program[4 + kCount + 2] = {};
  unsigned at = 0;
  program[at++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
  program[at++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
  program[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  program[at++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  for (unsigned i = 0; i < kCount; ++i)
    program[at++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kAllowed[i], static_cast<unsigned char>(kCount - i), 0);
  program[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  program[at++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(at), program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

}  // namespace

int serve(const std::function<void(const Request&)>& thread) {
  static Request request;
  if (!read_all(&request, sizeof request) || request.magic != kRequest || request.image_bytes > kMostImage ||
      request.readable_parts > kMostReadable)
    return refuse(kNoLaunch, "stdin holds no request of this version");
  void* const image = ::mmap(reinterpret_cast<void*>(kImageAddress), request.image_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (image != reinterpret_cast<void*>(kImageAddress)) return refuse(kNoLaunch, "there is no memory for the image");
  if (!read_all(image, request.image_bytes)) return refuse(kNoLaunch, "stdin ends within the image");
  give_up_the_system();
  Launch launch;
  launch.grid = {request.grid[0], request.grid[1], request.grid[2]};
  launch.threads = request.threads;
  launch.cluster = request.cluster;
  launch.shared_bytes = request.shared_bytes;
  launch.seed = request.seed;
  launch.early = request.early != 0;
  launch.resident = request.resident;
  for (std::uint32_t i = 0; i < request.readable_parts; ++i)
    launch.readable.push_back(
        {static_cast<const std::byte*>(image) + request.readable[i].offset, request.readable[i].bytes});
  try {
    run(launch, [&](char*) { thread(request); });
  } catch (const std::bad_alloc&) {
    return refuse(kNoLaunch, "the emulated launch takes more memory than there is for it");
  } catch (const std::exception& objection) {
    return refuse(kObjection, objection.what());
  }
  return write_all(image, request.image_bytes) ? kDone : refuse(kNoLaunch, "nobody reads the image");
}

}  // namespace heed::emulator
