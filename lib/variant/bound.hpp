/// What can hold a kernel back, as a profile names it and as knobs say which of it they act on.
#pragma once

#include <array>
#include <string_view>

namespace heed {

enum class Bound {
  launch,         ///< the time to start a kernel at all
  tensor,         ///< matrix products on the tensor cores
  exponentials,   ///< the special-function unit
  fma,            ///< fp32 arithmetic; on a CPU the matrix products too
  issue,          ///< instructions issued
  latency,        ///< no unit is busy: too few warps, or warps that wait for each other and for memory
  shared_memory,  ///< shared-memory bandwidth or bank conflicts
  l2,             ///< bandwidth of the L2; on a CPU of the caches
  dram,           ///< bandwidth of the memory
  tail,           ///< too few blocks for the processors, or a last round that fills only some of them
  unknown,        ///< nothing is known that decides it
};

inline constexpr std::array kBounds = {Bound::launch, Bound::tensor,  Bound::exponentials,  Bound::fma,
                                       Bound::issue,  Bound::latency, Bound::shared_memory, Bound::l2,
                                       Bound::dram,   Bound::tail,    Bound::unknown};

constexpr std::string_view to_string(Bound bound) {
  switch (bound) {
    case Bound::launch:
      return "launch";
    case Bound::tensor:
      return "tensor";
    case Bound::exponentials:
      return "exponentials";
    case Bound::fma:
      return "fma";
    case Bound::issue:
      return "issue";
    case Bound::latency:
      return "latency";
    case Bound::shared_memory:
      return "shared_memory";
    case Bound::l2:
      return "l2";
    case Bound::dram:
      return "dram";
    case Bound::tail:
      return "tail";
    case Bound::unknown:
      return "unknown";
  }
  return "unknown";
}

/// `unknown` for any text that to_string did not write.
constexpr Bound parse_bound(std::string_view text) {
  for (const Bound bound : kBounds)
    if (to_string(bound) == text) return bound;
  return Bound::unknown;
}

}  // namespace heed
