/// Ctrl-C, and a terminal that goes away, as a flag: long work looks at it between steps, so that a run stops with
/// everything stored.
#pragma once

#include <atomic>

namespace heed {

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that set the flag; SIGHUP stays ignored where nohup says so. A
/// second signal ends the process at once, but for a second SIGHUP.
void install_interrupt_handler();
/// Of the calling thread: by a signal, or by the flag that its Stoppable looks at.
bool interrupted();
/// Sets the flag.
void interrupt();
/// Throws Error(interrupted) when the flag is set.
void check_interrupt();

/// From here to the end of the scope the calling thread is interrupted by a flag, too: whoever waits for a reply that
/// nobody needs any more ends as on Ctrl-C, and the rest of the process goes on. Does not nest.
class Stoppable {
 public:
  /// @param stop must outlive it
  explicit Stoppable(const std::atomic<bool>& stop);
  ~Stoppable();
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;
};

}  // namespace heed
