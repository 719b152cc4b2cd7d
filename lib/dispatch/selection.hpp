/// Which program of a file runs a workload.
///
/// The rule: of the programs that run it on the device, the one that default_config of the workload's own family names;
/// where the file lacks it, the one of that family that differs from it in the fewest knobs; where the file has none of
/// that family, the same of the other families that run the workload, in the order of searched_families.
#pragma once

#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "dispatch/program_file.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

struct Selection {
  const ProgramRecord* record = nullptr;
  Variant variant;
  std::string reason;  ///< a sentence
};

/// The programs of a file as variants for one device, parsed once.
class Programs {
 public:
  /// Those of the device's architecture, and for a CPU of all that the device can run.
  Programs(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device);

  /// @throws Error(unsupported) with every family's reason where no family runs the workload, or with the nearest that
  /// the file holds where it has no program for it
  [[nodiscard]] Selection select(const Workload& workload) const;
  /// The program of one variant. @throws Error(unsupported) where the file lacks it
  [[nodiscard]] Selection find(const Variant& variant) const;
  [[nodiscard]] const ProgramFile& file() const { return *file_; }

 private:
  struct Entry {
    const ProgramRecord* record;
    Variant variant;
  };
  std::shared_ptr<const ProgramFile> file_;
  DeviceFacts device_;
  std::vector<Entry> entries_;
};

}  // namespace heed::dispatch
