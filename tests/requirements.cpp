#include "requirements.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/text.hpp"

namespace heed::testing_support {
namespace {

std::vector<std::string> named() {
  const char* list = std::getenv("HEED_REQUIRE");
  std::vector<std::string> names;
  for (const std::string& name : split(list == nullptr ? "" : list, ','))
    if (!trim(name).empty()) names.push_back(trim(name));
  return names;
}

}  // namespace

bool is_required(std::string_view what) {
  const std::vector<std::string> names = named();
  return std::find(names.begin(), names.end(), what) != names.end();
}

std::string unknown_requirements() {
  std::string unknown;
  for (const std::string& name : named())
    if (name != "gpu" && name != "nvrtc") unknown += (unknown.empty() ? "" : ", ") + name;
  return unknown;
}

}  // namespace heed::testing_support
