/// A key for an endpoint: read when it is needed, sent, and never stored or printed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace heed::models {

class Secret {
 public:
  Secret() = default;
  /// @throws Error(usage) where the variable is not set or empty
  static Secret from_environment(const std::string& variable);
  /// The first line of a file. @throws Error(usage) where there is none
  static Secret from_file(const std::filesystem::path& path);

  [[nodiscard]] bool is_given() const { return !value_.empty(); }
  /// "Authorization: Bearer ..."
  [[nodiscard]] std::string as_header() const;
  /// Where it came from, for messages: "environment variable OPENAI_API_KEY".
  [[nodiscard]] const std::string& source() const { return source_; }
  /// The text with every occurrence of the key replaced: servers quote keys that they refuse.
  [[nodiscard]] std::string removed_from(std::string text) const;
  /// The same for every text of a JSON value, names of members included.
  [[nodiscard]] nlohmann::json removed_from_all_of(const nlohmann::json& json) const;

 private:
  Secret(std::string value, std::string source);
  std::string value_;
  std::string source_;
};

}  // namespace heed::models
