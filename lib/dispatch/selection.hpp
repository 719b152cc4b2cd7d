/// Which program of a file runs a workload.
///
/// The rule: of the programs that run it on the device, the one that default_config of the workload's own family names;
/// where the file lacks it, the one of that family that differs from it in the fewest knobs; where the file has none of
/// that family, the same of the other families that run the workload, in the order of searched_families.
/// Programs of the better ArchFit come first, so that of CPU levels the highest that has one serves. The knob `threads`
/// of a CPU's programs counts for nothing: a plan has its own number of threads.
#pragma once

#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "dispatch/architecture.hpp"
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
  /// Those that the device can run.
  Programs(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device);

  /// @throws Error(unsupported) with every family's reason where no family runs the workload, or with the nearest that
  /// the file holds where it has no program for it
  [[nodiscard]] Selection select(const Workload& workload) const;
  /// The program of one variant. @throws Error(unsupported) where the file lacks it
  [[nodiscard]] Selection find(const Variant& variant) const;
  /// The program that copies rows (lib/padding), the one of the best fit; null where the file has none for the device.
  [[nodiscard]] const ProgramRecord* find_copies() const { return copies_; }
  [[nodiscard]] const ProgramFile& file() const { return *file_; }

 private:
  struct Entry {
    const ProgramRecord* record;
    Variant variant;
    ArchFit fit;
    DeviceFacts device;  ///< as the program sees it
  };
  /// Of a family's programs the nearest to its rule's choice, with how many knobs differ; null where none runs it.
  [[nodiscard]] std::pair<const Entry*, int> nearest(const Family& family, const Workload& workload) const;

  std::shared_ptr<const ProgramFile> file_;
  DeviceFacts device_;
  std::vector<Entry> entries_;
  const ProgramRecord* copies_ = nullptr;
};

}  // namespace heed::dispatch
