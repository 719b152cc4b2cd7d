/// Named barriers of a kernel: which ids (bar.sync, bar.arrive) each of its uses takes. Shared by the host, nvcc and
/// NVRTC.
///
/// A family that has any declares `enum class NamedBarrier`, one enumerator a use, and beside its config a map from it
/// to ids, `named_barriers(config)`. Device code asks for ids with barrier_id alone, which does not compile where two
/// uses share one.
#pragma once

#include "kernels/contract.hpp"

namespace heed::attention {

inline constexpr int kLastNamedBarrier = 15;  ///< a CTA has 16; 0 is __syncthreads

/// Ids first to first + count - 1: one use at several places at once, say for each warpgroup. None where count is 0.
struct BarrierIds {
  int first = 0;
  int count = 0;
  constexpr bool operator==(const BarrierIds&) const = default;
};

/// The ids of all uses, by their enumerators, 0 to kUses - 1.
template <class Use, int kUses>
struct NamedBarriers {
  BarrierIds ids[kUses] = {};

  HEED_HOST_DEVICE constexpr BarrierIds& operator[](Use use) { return ids[static_cast<int>(use)]; }
  HEED_HOST_DEVICE constexpr const BarrierIds& operator[](Use use) const { return ids[static_cast<int>(use)]; }
};

/// Whether every id is one that there is, and no two uses share any.
template <class Use, int kUses>
HEED_HOST_DEVICE constexpr bool are_disjoint(const NamedBarriers<Use, kUses>& barriers) {
  bool is_taken[kLastNamedBarrier + 1] = {true};
  for (const BarrierIds& ids : barriers.ids)
    for (int id = ids.first; id < ids.first + ids.count; ++id) {
      if (id < 0 || id > kLastNamedBarrier || is_taken[id]) return false;
      is_taken[id] = true;
    }
  return true;
}

/// The id of a use of the family whose config this is, at its `index`-th place.
template <const auto& kConfig, auto kUse>
HEED_HOST_DEVICE constexpr int barrier_id(int index = 0) {
  constexpr auto kBarriers = named_barriers(kConfig);
  static_assert(are_disjoint(kBarriers), "two uses of named barriers share an id, or there are more than 15");
  static_assert(kBarriers[kUse].count > 0, "a named barrier that this config does not have");
  constexpr int kFirst = kBarriers[kUse].first;
  return kFirst + index;
}

}  // namespace heed::attention
