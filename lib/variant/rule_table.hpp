/// Rules for defaults as data: rows of a condition, what is chosen where it holds, and what that rests on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "device/device_facts.hpp"

namespace heed {

/// One row. `Facts` is what the rule decides by: of a workload, a device, and what was chosen before.
template <class Facts, class Choice>
struct RuleRow {
  bool (*holds)(const Facts&);
  Choice choice;
  std::string_view provenance;  ///< the measurements behind it: microseconds on an H200 unless another device is named
};

/// The row that decides: the first whose condition holds. The last one's must always hold.
template <class Facts, class Choice, std::size_t kRows>
constexpr const RuleRow<Facts, Choice>& deciding_row(const RuleRow<Facts, Choice> (&rows)[kRows], const Facts& facts) {
  for (std::size_t i = 0; i + 1 < kRows; ++i)
    if (rows[i].holds(facts)) return rows[i];
  return rows[kRows - 1];
}

/// Multiprocessors that a rule counts on. Of limits alone, without a device, those of the chip that rules were measured
/// on: 132 for Hopper (H100 SXM, H200), 108 for Ampere (A100).
inline constexpr std::int64_t kHopperSms = 132;
inline constexpr std::int64_t kAmpereSms = 108;
inline std::int64_t num_sms_of(const DeviceFacts& device, std::int64_t of_limits_alone = kHopperSms) {
  return device.processors > 0 ? device.processors : of_limits_alone;
}

}  // namespace heed
