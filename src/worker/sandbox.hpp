/// What a CPU worker gives up before any candidate runs.
#pragma once

namespace heed::worker {

/// Limits the calling thread, for good, to memory, waiting and its socket: no files, no network, no new processes or
/// threads, no executable memory. Any other system call kills the process (seccomp, through libseccomp). For the thread
/// that serves the parent; threads that run candidates have the narrower one.
/// @throws Error(worker) when the kernel refuses the filter
void enter_sandbox();

/// Limits the calling thread, for good, to what waiting for work takes. A candidate under it cannot ask for the time,
/// for memory, or write to the socket.
/// @throws Error(worker) when the kernel refuses the filter
void enter_pool_sandbox();

/// Whether this kernel and build can do it; `heed doctor` says so.
bool sandbox_available();

}  // namespace heed::worker
