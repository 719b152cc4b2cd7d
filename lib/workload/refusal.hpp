/// How the text of a workload is refused.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "base/check.hpp"

namespace heed {

/// @param text all of it, which the error carries  @throws Error(invalid_workload), always
[[noreturn]] inline void refuse_workload(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::invalid_workload, fmt::format("workload \"{}\": {}", text, why), std::string(text));
}

/// A number that is all of `text`; false where it is not.
template <typename Number>
bool is_whole_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// The number that is all of `text`. @param name what it is, for the message  @throws Error(invalid_workload)
template <typename Number>
Number number_of(std::string_view whole, std::string_view name, std::string_view text) {
  Number value{};
  if (!is_whole_number(text, value)) refuse_workload(whole, fmt::format("{} \"{}\" is not a number", name, text));
  return value;
}

}  // namespace heed
