/// Edited device sources of a variant, in place of those that the binary carries.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace heed {

struct Overlay {
  /// Stands for a path where the text is the entry, the second half of the unit (Family::entry).
  static constexpr std::string_view kEntry = "entry";

  std::map<std::string, std::string, std::less<>> files;  ///< whole texts by path, as an #include names it

  /// The text that a path has here; null where it is as the binary carries it.
  [[nodiscard]] const std::string* find(std::string_view path) const;
  /// 32 hexadecimal digits over paths and texts.
  [[nodiscard]] std::string digest() const;
  bool operator==(const Overlay&) const = default;
};

}  // namespace heed
