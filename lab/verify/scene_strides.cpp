#include "verify/scene_strides.hpp"

#include <algorithm>
#include <utility>

#include "base/random.hpp"
#include "verify/other_features.hpp"

namespace heed::verify {
namespace {

constexpr std::int64_t kGapUnit = 16;                       // bytes
constexpr double kOtherLayout = 0.25;                       // of the tensors
constexpr std::int64_t kMostUnits = SceneStrides::tensors;  // so that each tensor has another number of them

}  // namespace

SceneStrides::SceneStrides(Layout layout, std::uint64_t seed) {
  for (Own& own : own_) own.layout = layout;
  if (seed == 0) return;
  Random random(seed);
  for (std::size_t level = 0; level < own_[0].gaps.size(); ++level) {
    for (std::size_t i = 0; i < own_.size(); ++i) own_[i].gaps[level] = static_cast<std::int64_t>(i + 1);
    for (std::size_t i = own_.size(); i > 1; --i) std::swap(own_[i - 1].gaps[level], own_[random.below(i)].gaps[level]);
  }
  for (Own& own : own_)
    if (random.chance(kOtherLayout)) own.layout = other_layout(layout);
}

Spread SceneStrides::of(Tensor tensor, const Extent& extent, std::int64_t padding_rows,
                        std::size_t element_bytes) const {
  const Own& own = own_[tensor];
  const std::int64_t unit = kGapUnit / static_cast<std::int64_t>(element_bytes);
  const std::int64_t rows = extent.rows + padding_rows;
  const bool heads_outside = own.layout == Layout::bhld;
  const std::int64_t inner = extent.dim + own.gaps[0] * unit;
  const std::int64_t outer = (heads_outside ? rows : extent.heads) * inner + own.gaps[1] * unit;
  const std::int64_t block = (heads_outside ? extent.heads : rows) * outer + own.gaps[2] * unit;
  const Strides strides = heads_outside ? Strides{block, outer, inner} : Strides{block, inner, outer};
  return {strides, extent.blocks * block};
}

std::uint64_t most_gap_bytes(const Extent& extent) {
  const std::int64_t of_block = extent.heads * extent.rows + std::max(extent.heads, extent.rows) + 1;
  return static_cast<std::uint64_t>(kMostUnits * kGapUnit * extent.blocks * of_block);
}

}  // namespace heed::verify
