#include "worker/syscall_filter.hpp"

#include <linux/audit.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heed::worker {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

constexpr sock_filter load(std::size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

// Goes on with the next instruction when the value is the one given, else skips `otherwise` instructions.
constexpr sock_filter expect(std::uint32_t value, std::uint8_t otherwise) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise);
}

// Skips `then` instructions when the value is the one given.
constexpr sock_filter skip_if(std::uint32_t value, std::uint8_t then) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, 0);
}

constexpr sock_filter end(std::uint32_t action) {
  return BPF_STMT(BPF_RET | BPF_K, action);
}

// The low half of an argument; both architectures are little-endian.
constexpr std::size_t argument(int index) {
  return offsetof(seccomp_data, args) + static_cast<std::size_t>(index) * sizeof(std::uint64_t);
}

// x32 calls carry x86-64's architecture and bit 30 in their number, so that they are no number named here.
constexpr std::array kProgram = {
    load(offsetof(seccomp_data, arch)),
    expect(kArchitecture, 10),
    load(offsetof(seccomp_data, nr)),
    skip_if(SYS_sched_yield, 9),
    expect(SYS_futex, 7),
    load(argument(1)),
    skip_if(FUTEX_WAIT, 1),
    expect(FUTEX_WAKE, 4),
    load(argument(3)),
    expect(0, 2),
    load(argument(3) + 4),
    skip_if(0, 1),
    end(SECCOMP_RET_KILL_PROCESS),
    end(SECCOMP_RET_ALLOW),
};

}  // namespace

std::span<const sock_filter> candidate_filter() {
  return kProgram;
}

}  // namespace heed::worker
