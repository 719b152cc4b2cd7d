/// Which family's default a workload gets: a table, read from its first row on.
#pragma once

#include <span>
#include <string_view>

namespace heed {

class Family;
struct DeviceFacts;
struct Workload;

/// A family that comes before those without a row that holds.
struct DispatchRow {
  const Family& (*family)();
  /// Of a workload that the family does not refuse on the device.
  bool (*holds)(const Workload&, const DeviceFacts&);
  std::string_view reason;  ///< in a few words
};

/// Rows in the order in which they are asked. Where none holds, the first family of the device that runs the workload
/// gives its default.
std::span<const DispatchRow> dispatch_table();

}  // namespace heed
