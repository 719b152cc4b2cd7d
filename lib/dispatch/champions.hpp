/// The champions of a file for one device: of a book, or those among the programs that libheed comes with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_facts.hpp"
#include "dispatch/program_file.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

/// What a program is wanted for.
struct Wanted {
  Workload workload;
  std::optional<TensorStrides> o_strides;  ///< of the output, where programs for dense outputs alone may not fit
};

/// Why a variant cannot be launched for it on a device; empty where it can.
std::optional<std::string> cannot_run(const Variant& variant, const Wanted& wanted, const DeviceFacts& device);

/// The variant that a stored binary was built of, from its text by today's or earlier names. Every knob must be there:
/// the rule that fills in those left out is today's, and a binary launched by another variant's plan writes past its
/// workspace. @throws Error(programs, config)
Variant built_variant(std::string_view text, const Workload& workload, const DeviceFacts& device);

class Champions {
 public:
  /// Reads no more than each record's workload: a book of another version may hold variants that this one does not
  /// know, and they are nobody's business until one is wanted.
  Champions(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device);

  struct Found {
    const ProgramRecord* record = nullptr;
    Variant variant;
    const ProgramFile* file = nullptr;
  };
  /// Of the very workload, whatever its scale and softcap: that of a device of this name, else of another device of its
  /// architecture, unless a search on a device of this name ended with the default unbeaten.
  /// @param refused gets a sentence for each that may not be run: of another kernel contract, unknown, illegal
  [[nodiscard]] std::optional<Found> of(const Wanted& wanted, std::vector<std::string>& refused) const;

  struct Neighbour {
    Found found;
    double distance = 0;
    bool is_of_device = false;  ///< found on a device of this name
  };
  /// By the rule of dispatch/neighbour.hpp. @param base id of the default for the wanted workload
  [[nodiscard]] std::optional<Neighbour> nearest(const Wanted& wanted, const std::string& base) const;
  /// Whether a workload as near as `distance`, or nearer, was searched and its default not beaten.
  [[nodiscard]] bool is_unbeaten_within(const Workload& workload, double distance) const;

  [[nodiscard]] const ProgramFile& file() const { return *file_; }

 private:
  struct Entry {
    const ProgramRecord* record;
    Workload workload;
  };
  struct Unbeaten {
    Workload workload;
    std::string device;
  };
  [[nodiscard]] std::optional<Found> admitted(const Entry& entry, const Wanted& wanted, std::string& why) const;

  std::shared_ptr<const ProgramFile> file_;
  DeviceFacts device_;
  std::vector<Entry> entries_;
  std::vector<Unbeaten> unbeaten_;
};

/// The one that the rule prefers; either may be absent.
std::optional<Champions::Neighbour> nearer(std::optional<Champions::Neighbour> a,
                                           std::optional<Champions::Neighbour> b);

}  // namespace heed::dispatch
