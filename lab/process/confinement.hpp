/// Keeping a program that reads other people's input to the files it needs:
/// https://docs.kernel.org/userspace-api/landlock.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed {

/// What a program may use. An empty one confines nothing.
struct Confinement {
  std::vector<std::string> readable;     ///< files and folders to read and execute; what does not exist is left out
  std::vector<std::string> writable;     ///< folders in which it may do anything
  std::string folder;                    ///< it starts in; empty: the caller's
  std::vector<std::string> environment;  ///< "NAME=value", all that it sees
  std::int64_t memory_bytes = 0;         ///< of address space a process
  std::int64_t file_bytes = 0;           ///< of any file it writes
  std::int64_t processor_s = 0;          ///< of processor time a process
  [[nodiscard]] bool confines() const { return !environment.empty(); }
};

/// A confinement made ready before a fork, so that the child has only system calls left to do.
class PreparedConfinement {
 public:
  explicit PreparedConfinement(const Confinement& confinement);
  ~PreparedConfinement();
  PreparedConfinement(const PreparedConfinement&) = delete;
  PreparedConfinement& operator=(const PreparedConfinement&) = delete;

  /// In the child, before it executes the program: limits, no new privileges, and files and the network where the
  /// kernel has Landlock. False when a step fails that the kernel offers.
  [[nodiscard]] bool enter() const;
  /// For execve; null-terminated. The caller's own where nothing is confined.
  [[nodiscard]] char* const* environment() const;

 private:
  const Confinement& confinement_;
  std::vector<char*> environment_;
  int rules_ = -1;
};

/// Whether this kernel can keep files from a compiler.
bool can_hide_files();

/// How confined a program is on this machine, e.g. "files and network (Landlock ABI 7), limits".
std::string describe_confinement();

}  // namespace heed
