/// What a CPU worker gives up before any candidate runs.
#pragma once

namespace heed::worker {

/// Limits this process, all its threads and for good, to its memory, waiting and its socket: no files, no network, no
/// new processes or threads, no executable memory, not much more memory than it has. Any other system call kills the
/// process (seccomp, through libseccomp).
/// @throws Error(worker) when the kernel refuses the filter
void enter_sandbox();

/// Whether this kernel and build can do it; `heed doctor` says so.
bool sandbox_available();

}  // namespace heed::worker
