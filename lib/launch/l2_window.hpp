/// Access-policy windows: which of the addresses that a launch reads stay in the L2 behind it.
/// CUDA C++ Programming Guide, "L2 Cache Control"; CUaccessPolicyWindow of the driver's manual.
#pragma once

#include <cstdint>

namespace heed {

/// What a GPU, and a context on it, allow.
struct L2Limits {
  std::uint64_t most_bytes = 0;  ///< of a window (CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE); 0: has none
  std::uint64_t set_aside = 0;   ///< of the L2, for what stays: the context's CU_LIMIT_PERSISTING_L2_CACHE_SIZE
};

/// Accesses to these addresses stay, as many as `hit_ratio` says; all others are streamed.
struct L2Window {
  const void* begin = nullptr;
  std::uint64_t bytes = 0;
  float hit_ratio = 1;
};

/// The window of K and V. A launch has one: it reaches over both, and over what lies between, if that many bytes are
/// allowed; else over K, or the first of it. Where K and V take more than is set aside, as large a share of them stays
/// as fits: lines that push each other out would be worth less than none.
L2Window l2_window(const void* k, std::uint64_t k_bytes, const void* v, std::uint64_t v_bytes, const L2Limits& limits);

}  // namespace heed
