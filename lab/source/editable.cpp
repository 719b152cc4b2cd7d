#include "source/editable.hpp"

#include <fmt/format.h>

#include "compile/embedded.hpp"

namespace heed::source {

std::string refusal_of_path(std::string_view path) {
  if (path == Overlay::kEntry) return {};
  if (path == "kernels/contract.hpp" || path == "kernels/attention/mask.hpp" ||
      path == "kernels/attention/features.hpp" || path == "kernels/attention/dropout.hpp")
    return fmt::format("{} is the contract of all kernels", path);
  if (path == "cpu/freestanding.hpp" || path == "cpu/exports.map")
    return fmt::format("{} is what every program of a CPU is built with", path);
  if (path.ends_with(".cuh")) return {};
  if (path.starts_with("cpu/") && path.ends_with(".hpp") && path != "cpu/config.hpp" && path != "cpu/decode_plan.hpp")
    return {};
  return fmt::format("{} is host code too: launches are planned with it", path);
}

std::map<std::string, std::string, std::less<>> editable(const Family& family) {
  std::map<std::string, std::string, std::less<>> texts;
  for (const std::string& path : compile::sources_of(family))
    if (refusal_of_path(path).empty()) texts.emplace(path, compile::device_file(path));
  texts.emplace(Overlay::kEntry, family.entry());
  return texts;
}

}  // namespace heed::source
