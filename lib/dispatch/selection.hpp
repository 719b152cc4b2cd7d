/// Which program of a file runs a workload.
///
/// In this order:
/// 1. the book's champion of the very workload;
/// 2. the champion of the very workload among the programs;
/// 3. the champion of a workload nearby, of either, by the rule of dispatch/neighbour.hpp;
/// 4. of the programs that run it on the device, the one that default_config of the workload's own family names; where
///    the file lacks it, the one of that family that differs from it in the fewest knobs, of those the one whose values
///    lie the fewest steps away in the knobs' order; a program as accurate as the rule's (Knob::of_accuracy) comes
///    first; where the file has none of that family, the same of the other families that run the workload, in the order
///    of searched_families. Programs of the better ArchFit come first, so that of CPU levels the highest that has one
///    serves. The knob `threads` of a CPU's programs counts for nothing: a plan has its own number of threads. Programs
///    with features that the workload has no need of run it too, and come after those that have just its own: the fewer
///    features to spare, the better.
#pragma once

#include <string>
#include <vector>

#include "device/device_facts.hpp"
#include "dispatch/architecture.hpp"
#include "dispatch/champions.hpp"
#include "dispatch/program_file.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

/// Which step of the order a program was chosen by.
enum class Step { given, book, champion, neighbour, rule };
std::string_view to_string(Step step);

struct Selection {
  const ProgramRecord* record = nullptr;
  Variant variant;
  std::string reason;  ///< a sentence
  Step step = Step::rule;
  const ProgramFile* file = nullptr;  ///< that holds the record
};

/// Step 1. Nothing where the book has no such champion. @param refused as of Champions::of
std::optional<Selection> select_from_book(const Champions& book, const Wanted& wanted,
                                          std::vector<std::string>& refused);

/// The programs of a file as variants for one device, parsed once.
class Programs {
 public:
  /// Those that the device can run.
  Programs(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device);

  /// @throws Error(unsupported) with every family's reason where no family runs the workload, or with the nearest that
  /// the file holds where it has no program for it
  [[nodiscard]] Selection select(const Workload& workload) const { return by_rule({workload, std::nullopt}); }
  /// Steps 2 to 4. @param book may be null
  [[nodiscard]] Selection select(const Wanted& wanted, const Champions* book, std::vector<std::string>& refused) const;
  /// The program of one variant. @throws Error(unsupported) where the file lacks it
  [[nodiscard]] Selection find(const Variant& variant) const;
  /// The program that copies rows (lib/padding), the one of the best fit; null where the file has none for the device.
  [[nodiscard]] const ProgramRecord* find_copies() const { return copies_; }
  /// The same of the program that merges partial results (lib/merge).
  [[nodiscard]] const ProgramRecord* find_merge() const { return merge_; }
  [[nodiscard]] const ProgramRecord* find_quantiser() const { return quantiser_; }
  /// Likewise, that lists the blocks of keys that a bias leaves (lib/listing).
  [[nodiscard]] const ProgramRecord* find_lister() const { return lister_; }
  /// That counts what quantising loses.
  [[nodiscard]] const ProgramRecord* find_lost() const { return lost_; }
  /// That writes new keys and values into a cache (lib/append).
  [[nodiscard]] const ProgramRecord* find_append() const { return append_; }
  [[nodiscard]] const ProgramFile& file() const { return *file_; }

 private:
  struct Entry {
    const ProgramRecord* record;
    Variant variant;
    ArchFit fit;
    DeviceFacts device;  ///< as the program sees it
  };
  /// Of a family's programs the nearest to its rule's choice, with how many knobs differ; null where none runs it.
  [[nodiscard]] std::pair<const Entry*, int> nearest(const Family& family, const Wanted& wanted) const;
  [[nodiscard]] Selection by_rule(const Wanted& wanted) const;
  [[nodiscard]] std::optional<Selection> by_neighbour(const Wanted& wanted, const Champions* book) const;

  std::shared_ptr<const ProgramFile> file_;
  DeviceFacts device_;
  std::vector<Entry> entries_;
  const ProgramRecord* copies_ = nullptr;
  const ProgramRecord* merge_ = nullptr;
  const ProgramRecord* quantiser_ = nullptr;
  const ProgramRecord* lister_ = nullptr;
  const ProgramRecord* lost_ = nullptr;
  const ProgramRecord* append_ = nullptr;
  Champions champions_;
};

}  // namespace heed::dispatch
