/// 128-bit content digests (XXH3, https://xxhash.com): cache keys, variant ids, machine-code identity.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace heed {

/// 32 lower-case hexadecimal digits.
std::string digest(const void* data, std::size_t bytes);
inline std::string digest(std::string_view text) {
  return digest(text.data(), text.size());
}

/// A digest over several parts; the length of each part is hashed too, so ("ab","c") and ("a","bc") differ.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;

  Digester& add(std::string_view part);
  [[nodiscard]] std::string hex() const;

 private:
  void* state_;
};

}  // namespace heed
