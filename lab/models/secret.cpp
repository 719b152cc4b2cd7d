#include "models/secret.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/files.hpp"
#include "base/text.hpp"

namespace heed::models {

Secret::Secret(std::string value, std::string source) : value_(std::move(value)), source_(std::move(source)) {
  // A line end within would let a key write headers of its own.
  if (std::any_of(value_.begin(), value_.end(), [](unsigned char c) { return c < 0x21 || c > 0x7e; }))
    throw Error(ErrorCode::usage, fmt::format("the key in {} holds spaces or bytes that no key has", source_), source_);
}

Secret Secret::from_environment(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  const std::string key = value == nullptr ? std::string() : trim(value);
  if (key.empty())
    throw Error(
        ErrorCode::usage,
        fmt::format("there is no key in environment variable {}; set it, or name a file with --key-file", variable),
        variable);
  return {key, fmt::format("environment variable {}", variable)};
}

Secret Secret::from_file(const std::filesystem::path& path) {
  const std::string text = read_file(path, ErrorCode::usage);
  const std::string key = trim(text.substr(0, text.find('\n')));
  if (key.empty())
    throw Error(ErrorCode::usage, fmt::format("the first line of {} is empty; it holds the key", path.string()),
                path.string());
  return {key, fmt::format("file {}", path.string())};
}

std::string Secret::as_header() const {
  return "Authorization: Bearer " + value_;
}

std::string Secret::removed_from(std::string text) const {
  if (value_.empty()) return text;
  for (std::size_t at = text.find(value_); at != std::string::npos; at = text.find(value_, at + 1))
    text.replace(at, value_.size(), "[key]");
  return text;
}

nlohmann::json Secret::removed_from_all_of(const nlohmann::json& json) const {
  if (value_.empty()) return json;
  if (json.is_string()) return removed_from(json.get<std::string>());
  if (!json.is_structured()) return json;
  nlohmann::json without(json.type());
  for (const auto& [name, value] : json.items())
    if (json.is_object())
      without[removed_from(name)] = removed_from_all_of(value);
    else
      without.push_back(removed_from_all_of(value));
  return without;
}

}  // namespace heed::models
