/// Specialization: which programs for one shape there are, and the one name of each. Host and device, constexpr.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

/// The specializations that a family has code for, or those of them that one of its configs has for one workload.
struct SpecializationSupport {
  bool shape = false;         ///< Specialize::shape, without which there is none of the others
  bool whole_tiles = false;   ///< Specialize::whole_tiles
  bool prune = false;         ///< Prune::on
  bool dense_output = false;  ///< OutputLayout::dense
  constexpr bool operator==(const SpecializationSupport&) const = default;
};

/// The specialization that makes the same program as `s` where a part of it has no effect, and the nearest that there
/// is where there is no such one. Dense outputs ask for the shape, whose strides they are; all else gives way to it.
HEED_HOST_DEVICE constexpr Specialization canonical(Specialization s, const SpecializationSupport& has) {
  if (!has.shape) return {};
  if (!has.dense_output) s.o_layout = OutputLayout::strided;
  if (s.o_layout == OutputLayout::dense && s.specialize == Specialize::none) s.specialize = Specialize::shape;
  if (s.specialize == Specialize::whole_tiles && !has.whole_tiles) s.specialize = Specialize::shape;
  if (s.specialize == Specialize::none || !has.prune) s.prune = Prune::off;
  return s;
}

/// Whether programs know that all Q tiles have all their rows, and that under a mask every row sees a key and none a
/// key past the last.
HEED_HOST_DEVICE constexpr bool has_whole_q_tiles(const Problem& problem) {
  return problem.specialization.specialize == Specialize::whole_tiles;
}

}  // namespace heed
