/// The file that says which precision mode each layer of a model gets (python/heed/precision.py reads it).
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file_lock.hpp"
#include "base/files.hpp"
#include "heed/heed.hpp"
#include "json/text.hpp"

namespace heed::cli {

inline constexpr const char* kEveryLayer = "*";

/// @throws Error(usage) for a layer without a file, Error(store) for a file that cannot be written
inline void expect_choices(const std::string& path, const std::string& layer) {
  if (path.empty() && !layer.empty())
    throw Error(ErrorCode::usage, "--layer names what --choices writes of; give --choices too", layer);
  if (!path.empty()) expect_writable(path, ErrorCode::store);
}

/// Puts what is said of a layer into the file, which keeps what it says of others. @param layer empty: all calls
/// @throws Error(usage) for a file that is none of choices
inline void write_choice(const std::string& path, const std::string& layer, nlohmann::json choice) {
  const FileLock lock(path, ErrorCode::store);
  nlohmann::json file = {{"layers", nlohmann::json::object()}};
  if (std::filesystem::exists(path)) {
    file = parse_json(read_file(path, ErrorCode::usage));
    if (!file.is_object() || !file.contains("layers") || !file["layers"].is_object())
      throw Error(ErrorCode::usage,
                  fmt::format("{} is there and no file of choices; give --choices another name", path), path);
  }
  file["layers"][layer.empty() ? kEveryLayer : layer] = std::move(choice);
  write_file_atomically(path, json_text(file, 1) + "\n", ErrorCode::store);
}

}  // namespace heed::cli
