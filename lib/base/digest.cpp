#define XXH_INLINE_ALL
#include "base/digest.hpp"

#include <xxhash.h>

#include <cstdint>

#include "base/check.hpp"

namespace heed {
namespace {

std::string hex_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string digest(const void* data, std::size_t bytes) {
  return hex_of(XXH3_128bits(data, bytes));
}

Digester::Digester() : state_(XXH3_createState()) {
  HEED_CHECK(state_ != nullptr);
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

Digester::~Digester() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}

Digester& Digester::add(std::string_view part) {
  auto* state = static_cast<XXH3_state_t*>(state_);
  const std::uint64_t size = part.size();
  XXH3_128bits_update(state, &size, sizeof size);
  XXH3_128bits_update(state, part.data(), part.size());
  return *this;
}

std::string Digester::hex() const {
  return hex_of(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

}  // namespace heed
