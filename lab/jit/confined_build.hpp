/// Compilers read what a candidate wrote: they run with a folder of their own, with limits, and without sight of files
/// that no build needs.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "process/process.hpp"

namespace heed::jit {

/// What a compiler printed, without the messages and lines that are about files outside the tree it was given:
/// a candidate may include any file that the compiler can read.
/// @param tree folder of the embedded files; relative names, "<stdin>" and "{standard input}" are the candidate's own
std::string without_foreign_files(std::string_view log, std::string_view tree);

/// A folder that is removed with all that is in it.
class BuildFolder {
 public:
  /// Beside `output`, on the same file system. @throws Error(cache)
  explicit BuildFolder(const std::filesystem::path& output);
  ~BuildFolder();
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;
  [[nodiscard]] std::string path() const { return path_; }
  [[nodiscard]] std::string file() const { return path_ + "/binary"; }
  /// A compiler's words with its temporary files by their names alone, which are the candidate's own.
  [[nodiscard]] std::string unnamed_in(std::string log) const;
  /// Moves the file to its place. @throws Error(cache)
  void keep(const std::filesystem::path& output) const;

 private:
  std::string path_;
};

/// What a compiler may use, with the folder that it writes to.
Confinement confinement_of_build(const std::string& program, const std::vector<std::string>& readable,
                                 const std::string& folder, double limit_s);

/// Which limit ended a build, in words; empty when none did.
std::string limit_met(const ProcessResult& run);

/// Whether a signal ended the build that neither its limits nor its own faults bring about: memory ran out, or somebody
/// sent it. A compiler whose own part was killed says so and exits.
bool was_killed_from_outside(const ProcessResult& run);

}  // namespace heed::jit
