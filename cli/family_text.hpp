/// What a kernel family supports, and its knobs, for people and programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "device/device.hpp"
#include "variant/family.hpp"

namespace heed::cli {

/// @param device this machine's: "available" says whether the family runs on it
nlohmann::json family_json(const Family& family, const DeviceFacts& device);
std::string family_text(const Family& family);

}  // namespace heed::cli
