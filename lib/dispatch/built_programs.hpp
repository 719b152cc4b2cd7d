/// Programs of variants built on the user's machine, by NVRTC in the process: for problems whose very program no file
/// has.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "device/device_facts.hpp"
#include "dispatch/program_file.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

/// A folder of files of programs, one program each. A file names its variant, its architecture and the device sources
/// that it was built from; it is written whole or not at all, and one that is not whole counts for none. The folder may
/// be deleted at any time.
class BuiltPrograms {
 public:
  /// @param folder empty: HEED_BUILT_PROGRAMS, else `heed/programs` in $XDG_CACHE_HOME or ~/.cache. It is made by the
  /// first build.
  explicit BuiltPrograms(const std::filesystem::path& folder = {});

  /// The folder; empty where the environment names none.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  /// The program of a variant for an architecture; null where it was not built, or its file is not whole.
  [[nodiscard]] std::shared_ptr<const ProgramFile> find(const Variant& variant, const std::string& arch) const;
  /// Builds and keeps it. Takes seconds of a processor. A program that another thread builds is waited for, one that
  /// this process built is returned; neither is built twice. Where the folder cannot be written to, the program is kept
  /// by this process alone.
  /// @throws Error(no_compiler), Error(build_failed)
  std::shared_ptr<const ProgramFile> build(const Variant& variant, const Workload& workload, const DeviceFacts& device);

  /// Starts a build in the background unless one of the same program waits, runs or failed already. One thread builds,
  /// at the lowest priority; a process that ends waits for the build that runs, and drops those that wait.
  void start(const Variant& variant, const Workload& workload, const DeviceFacts& device);
  struct Progress {
    bool is_building = false;  ///< it waits or runs
    std::string failure;       ///< why it failed
  };
  /// Of a build that was started; nothing of one that was not, or is done.
  [[nodiscard]] Progress progress(const Variant& variant, const std::string& arch) const;
  /// Waits until no build waits or runs, for so long at most. @return how many still do
  static std::size_t wait(double seconds);

 private:
  [[nodiscard]] std::filesystem::path path_of(const Variant& variant, const std::string& arch) const;
  [[nodiscard]] std::shared_ptr<const ProgramFile> build_alone(const Variant& variant, const Workload& workload,
                                                               const DeviceFacts& device) const;
  std::filesystem::path folder_;
};

}  // namespace heed::dispatch
