/// Small text helpers for messages and tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed {

/// "it is one of a, b, c", with "did you mean b?" in front when `given` is close to one of them.
std::string one_of(std::string_view given, const std::vector<std::string_view>& known);

/// The nearest of `known` by edit distance, empty when none is within a third of its length.
std::string_view nearest(std::string_view given, const std::vector<std::string_view>& known);

std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string trim(std::string_view text);

/// The line of a reason to show where there is room for one: of compilers' words the first that tells an error, without
/// the "In file included from" before it; else the first that is not empty. Trimmed.
std::string telling_line(std::string_view text);

/// 1536 -> "1.5 KiB".
std::string human_bytes(double bytes);
/// Seconds as "41 s", "2 min 05 s", "1 h 10 min".
std::string human_duration(double seconds);

}  // namespace heed
