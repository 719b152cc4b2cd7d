/// Rules for defaults as data: rows of a condition, what is chosen where it holds, and what that rests on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_facts.hpp"

namespace heed {

/// One row. `Facts` is what the rule decides by: of a workload, a device, and what was chosen before.
template <class Facts, class Choice>
struct RuleRow {
  bool (*holds)(const Facts&);
  Choice choice;
  std::string_view provenance;  ///< the measurements behind it: microseconds on an H200 unless another device is named
};

/// The row of a rule that decided for a workload.
struct DecidedRow {
  std::string_view rule;
  std::size_t row = 0;
};

/// What decided a default; and which row of one rule is to decide in place of the one that holds.
struct RuleTrace {
  std::optional<DecidedRow> forced;
  std::vector<DecidedRow> decided;

  [[nodiscard]] bool forces(std::string_view rule) const { return forced && forced->rule == rule; }
};

/// The row that decides: the first whose condition holds. The last one's must always hold.
template <class Facts, class Choice, std::size_t kRows>
constexpr const RuleRow<Facts, Choice>& deciding_row(const RuleRow<Facts, Choice> (&rows)[kRows], const Facts& facts) {
  for (std::size_t i = 0; i + 1 < kRows; ++i)
    if (rows[i].holds(facts)) return rows[i];
  return rows[kRows - 1];
}

/// Its choice. @param trace null, or who is told of the row and may force another
template <class Facts, class Choice, std::size_t kRows>
const Choice& choose(std::string_view rule, const RuleRow<Facts, Choice> (&rows)[kRows], const Facts& facts,
                     RuleTrace* trace) {
  const RuleRow<Facts, Choice>& row =
      trace != nullptr && trace->forces(rule) ? rows[trace->forced->row] : deciding_row(rows, facts);
  if (trace != nullptr) trace->decided.push_back({rule, static_cast<std::size_t>(&row - rows)});
  return row.choice;
}

/// A rule of a family as `heed rules` prints and measures it.
struct DefaultRule {
  struct Row {
    std::string knobs;  ///< what it chooses, as parse_variant reads it: "scheduler=static_persistent,grid=full"
    std::string_view provenance;  ///< workloads in it are measured again
  };
  std::string_view name;
  std::vector<Row> rows;
};

/// A table as a rule. @param knobs of a choice, their text
template <class Facts, class Choice, std::size_t kRows, class Knobs>
DefaultRule rule_of(std::string_view name, const RuleRow<Facts, Choice> (&rows)[kRows], const Knobs& knobs) {
  DefaultRule rule{name, {}};
  for (const RuleRow<Facts, Choice>& row : rows) rule.rows.push_back({knobs(row.choice), row.provenance});
  return rule;
}

/// Multiprocessors that a rule counts on. Of limits alone, without a device, those of the chip that rules were measured
/// on: 132 for Hopper (H100 SXM, H200), 108 for Ampere (A100).
inline constexpr std::int64_t kHopperSms = 132;
inline constexpr std::int64_t kAmpereSms = 108;
inline std::int64_t num_sms_of(const DeviceFacts& device, std::int64_t of_limits_alone = kHopperSms) {
  return device.processors > 0 ? device.processors : of_limits_alone;
}

}  // namespace heed
