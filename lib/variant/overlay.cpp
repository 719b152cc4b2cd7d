#include "variant/overlay.hpp"

#include "base/digest.hpp"

namespace heed {

const std::string* Overlay::find(std::string_view path) const {
  const auto file = files.find(path);
  return file == files.end() ? nullptr : &file->second;
}

std::string Overlay::digest() const {
  Digester digester;
  for (const auto& [path, text] : files) digester.add(path).add(text);
  return digester.hex();
}

}  // namespace heed
