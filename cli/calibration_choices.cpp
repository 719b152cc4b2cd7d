#include "cli/calibration_choices.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/file_lock.hpp"
#include "base/files.hpp"
#include "heed/heed.hpp"
#include "json/text.hpp"

namespace heed::cli {
namespace {

constexpr const char* kEveryLayer = "*";

}  // namespace

void expect_choices(const std::string& path, const std::string& layer) {
  if (path.empty() && !layer.empty())
    throw Error(ErrorCode::usage, "--layer names what --choices writes of; give --choices too", layer);
  if (!path.empty()) expect_writable(path, ErrorCode::store);
}

void write_choice(const std::string& path, const std::string& layer, nlohmann::json choice) {
  const FileLock lock(path, ErrorCode::store);
  nlohmann::json file = {{"layers", nlohmann::json::object()}};
  if (std::filesystem::exists(path)) {
    file = nlohmann::json::parse(read_file(path, ErrorCode::usage), nullptr, false);
    if (!file.is_object() || !file.contains("layers") || !file["layers"].is_object())
      throw Error(ErrorCode::usage,
                  fmt::format("{} is there and no file of choices; give --choices another name", path), path);
  }
  file["layers"][layer.empty() ? kEveryLayer : layer] = std::move(choice);
  write_file_atomically(path, json_text(file, 1) + "\n", ErrorCode::store);
}

}  // namespace heed::cli
