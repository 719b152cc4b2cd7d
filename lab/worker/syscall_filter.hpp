/// What a candidate may ask of the kernel: to wait for another thread without a time limit, to wake it, and to give its
/// processor to others.
#pragma once

#include <linux/filter.h>

#include <span>

namespace heed::worker {

/// A seccomp program. Everything else kills the process, calls by another architecture's door (int 0x80, x32) too. A
/// wait with a time limit would be a clock, so the limit must be null; nothing resumes a call by restart_syscall, for
/// waits without a limit are simply made again.
/// https://docs.kernel.org/userspace-api/seccomp_filter.html
std::span<const sock_filter> candidate_filter();

}  // namespace heed::worker
