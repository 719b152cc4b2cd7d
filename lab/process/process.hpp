/// Running another program to its end, with a time limit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "process/confinement.hpp"

namespace heed {

struct ProcessResult {
  bool started = false;  ///< false: the program could not be executed; `output` says why
  bool timed_out = false;
  bool interrupted = false;  ///< the user asked to stop while it ran; it was killed
  int exit_code = -1;        ///< of a program that ended by itself
  int signal = 0;            ///< that ended it
  double processor_s = 0;    ///< user and system time of the program and of those that it waited for
  std::string output;        ///< stdout, with stderr where they are not apart; at most 1 MiB, or kMostApart, of it
  std::string errors;        ///< stderr where it is apart, at most 64 KiB of it
  [[nodiscard]] bool ok() const { return started && !timed_out && !interrupted && signal == 0 && exit_code == 0; }
};

/// Where a program's stderr goes.
enum class Errors { with_output, apart };
/// Bytes kept of the stdout of a program whose stderr is apart.
inline constexpr std::size_t kMostApart = 16 << 20;

/// Runs argv[0] (looked up in PATH) in a process group of its own, feeds it `input`, collects what it prints. On a time
/// limit or an interrupt the whole group is killed, also where the program has closed its stdout and stderr. The child
/// dies with this process.
/// @param limit_s wall clock, but what the program waits for processors (PatientDeadline)
ProcessResult run_process(const std::vector<std::string>& argv, std::string_view input, double limit_s,
                          const Confinement& confinement = {}, Errors errors = Errors::with_output);

/// Absolute path of a program in PATH, empty when there is none.
std::string find_program(std::string_view name);

/// This program's own executable.
std::string self_executable();

}  // namespace heed
