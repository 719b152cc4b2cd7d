#include "source/whole.hpp"

#include <fmt/format.h>

#include <set>

#include "compile/embedded.hpp"
#include "source/apply.hpp"

namespace heed::source {
namespace {

constexpr std::string_view kInclude = "#include \"";

class Flattener {
 public:
  explicit Flattener(const Overlay* overlay) : overlay_(overlay) {}

  void add(std::string_view text) {
    for (const std::string& line : lines_of(text)) {
      if (line == "#pragma once") continue;
      const std::string path = line.starts_with(kInclude)
                                   ? line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size())
                                   : "";
      if (path.empty() || compile::device_files().count(path) == 0) {
        result_ += line + "\n";
      } else if (seen_.insert(path).second) {
        result_ += fmt::format("// ---- {}\n", path);
        add(compile::device_file(path, overlay_));
      }
    }
  }

  std::string take() { return std::move(result_); }

 private:
  const Overlay* overlay_;
  std::set<std::string> seen_;
  std::string result_;
};

}  // namespace

std::string whole_unit(const Variant& variant) {
  Flattener flattener(variant.overlay.get());
  if (variant.family->device() == DeviceKind::cpu) flattener.add("#include \"cpu/freestanding.hpp\"\n");
  flattener.add(variant.unit());
  return flattener.take();
}

}  // namespace heed::source
