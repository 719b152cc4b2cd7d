#include "jit/embedded.hpp"

#include "base/check.hpp"
#include "base/digest.hpp"

namespace heed::jit {

bool is_device_source(std::string_view path) {
  const bool device = path.substr(0, 8) == "kernels/" || path.substr(0, 4) == "cpu/";
  return device && path.find("/zoo/") == std::string_view::npos;
}

std::string_view embedded_file(std::string_view path) {
  for (const EmbeddedFile& file : embedded_files())
    if (file.path == path) return file.content;
  throw Error(ErrorCode::internal, fmt::format("no embedded file {}", path), std::string(path));
}

const std::string& source_digest() {
  static const std::string value = [] {
    Digester digester;
    for (const EmbeddedFile& file : embedded_files())
      if (is_device_source(file.path)) digester.add(file.path).add(file.content);
    return digester.hex().substr(0, 16);
  }();
  return value;
}

}  // namespace heed::jit
