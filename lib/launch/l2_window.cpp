#include "launch/l2_window.hpp"

#include <algorithm>

namespace heed {

L2Window l2_window(const void* k, std::uint64_t k_bytes, const void* v, std::uint64_t v_bytes, const L2Limits& limits) {
  const auto k_begin = reinterpret_cast<std::uintptr_t>(k);
  const auto v_begin = reinterpret_cast<std::uintptr_t>(v);
  const std::uintptr_t begin = std::min(k_begin, v_begin);
  const std::uint64_t span = std::max(k_begin + k_bytes, v_begin + v_bytes) - begin;
  L2Window window{k, std::min(k_bytes, limits.most_bytes)};
  std::uint64_t read = window.bytes;
  if (span <= limits.most_bytes) {
    window = {k_begin <= v_begin ? k : v, span};
    read = k_bytes + v_bytes;
  }
  if (limits.set_aside > 0 && read > limits.set_aside)
    window.hit_ratio = static_cast<float>(limits.set_aside) / static_cast<float>(read);
  return window;
}

}  // namespace heed
