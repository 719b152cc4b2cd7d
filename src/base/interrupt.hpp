/// Ctrl-C as a flag: long work looks at it between steps, so that a run stops with everything stored.
#pragma once

namespace heed {

/// Installs handlers for SIGINT and SIGTERM that set the flag. A second signal ends the process at once.
void install_interrupt_handler();
bool interrupted();
/// Throws Error(interrupted) when the flag is set.
void check_interrupt();

}  // namespace heed
