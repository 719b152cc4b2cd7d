#include "base/random.hpp"

#include <random>

namespace heed {

std::uint64_t fresh_seed() {
  static thread_local std::random_device device;  // getrandom(2) in libstdc++
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace heed
