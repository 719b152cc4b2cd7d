#include "verdict/verdict.hpp"

#include <utility>

namespace heed {
namespace {

constexpr std::pair<Verdict, std::string_view> kVerdicts[] = {
    {Verdict::ok, "ok"},
    {Verdict::illegal, "illegal"},
    {Verdict::duplicate, "duplicate"},
    {Verdict::build_failed, "build_failed"},
    {Verdict::launch_failed, "launch_failed"},
    {Verdict::timed_out, "timed_out"},
    {Verdict::crashed, "crashed"},
    {Verdict::wrong, "wrong"},
    {Verdict::nondeterministic, "nondeterministic"},
    {Verdict::cheating, "cheating"},
    {Verdict::faster_than_floor, "faster_than_floor"},
};

constexpr std::pair<Finding, std::string_view> kFindings[] = {
    {Finding::none, "none"},
    {Finding::unwritten_output, "unwritten_output"},
    {Finding::not_finite, "not_finite"},
    {Finding::swallowed_nan, "swallowed_nan"},
    {Finding::inexact, "inexact"},
    {Finding::hard_limit, "hard_limit"},
    {Finding::wrong_lse, "wrong_lse"},
    {Finding::input_modified, "input_modified"},
    {Finding::wrote_outside, "wrote_outside"},
    {Finding::stale_output, "stale_output"},
    {Finding::masked_leak, "masked_leak"},
    {Finding::neighbour, "neighbour"},
    {Finding::timed_output, "timed_output"},
    {Finding::breaks_contract, "breaks_contract"},
    {Finding::forged_time, "forged_time"},
    {Finding::left_counters, "left_counters"},
    {Finding::broken_chain, "broken_chain"},
    {Finding::left_state, "left_state"},
};

template <typename Enum, std::size_t N>
std::string_view name_of(Enum value, const std::pair<Enum, std::string_view> (&table)[N]) {
  for (const auto& [candidate, name] : table)
    if (candidate == value) return name;
  return "?";
}

template <typename Enum, std::size_t N>
std::optional<Enum> value_of(std::string_view text, const std::pair<Enum, std::string_view> (&table)[N]) {
  for (const auto& [value, name] : table)
    if (name == text) return value;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  return name_of(verdict, kVerdicts);
}
std::string_view to_string(Finding finding) {
  return name_of(finding, kFindings);
}
bool is_forbidden_write(Finding finding) {
  return finding == Finding::input_modified || finding == Finding::wrote_outside || finding == Finding::left_counters;
}
std::optional<Verdict> parse_verdict(std::string_view text) {
  return value_of(text, kVerdicts);
}
std::optional<Finding> parse_finding(std::string_view text) {
  return value_of(text, kFindings);
}

}  // namespace heed
