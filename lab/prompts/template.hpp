/// Prompts as plain files with places for what is known: {{name}}.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace heed::prompts {

/// Text for every name. Sections that a preset leaves out are empty.
using Values = std::map<std::string, std::string, std::less<>>;

/// The text with every {{name}} replaced. A line that holds nothing but places whose values are empty goes with the
/// empty line behind it, so that a section that is not there leaves no gap.
/// @throws Error(usage) for a name without a value, or braces that do not close; what() names the template and the line
std::string filled(std::string_view text, const Values& values, std::string_view name);

/// The templates that Heed carries, or those of a folder, which may hold some of them alone.
class Templates {
 public:
  Templates() = default;
  /// @throws Error(usage) where there is no such folder
  explicit Templates(std::filesystem::path folder);

  /// The text of NAME.md. @throws Error(usage) for a file of the folder that cannot be read
  [[nodiscard]] std::string text(std::string_view name) const;

 private:
  std::filesystem::path folder_;  ///< empty: carried ones alone
};

}  // namespace heed::prompts
