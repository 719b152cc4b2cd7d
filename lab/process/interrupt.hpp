/// Ctrl-C, and a terminal that goes away, as a flag: long work looks at it between steps, so that a run stops with
/// everything stored.
#pragma once

namespace heed {

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that set the flag; SIGHUP stays ignored where nohup says so. A
/// second signal ends the process at once, but for a second SIGHUP.
void install_interrupt_handler();
bool interrupted();
/// Sets the flag.
void interrupt();
/// Throws Error(interrupted) when the flag is set.
void check_interrupt();

}  // namespace heed
