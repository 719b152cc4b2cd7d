/// Multiplying the channels of a tensor in place by exact factors, and back.
///
/// Timed launches repeat on the same memory. K of every set is multiplied by +-2^g, channel by channel, before each
/// replay: other scores, so that no output of an earlier replay is right again, at the cost of one pass over K.
/// Products of a power of two are exact, so the parent knows K's bytes without having seen them and the oracle takes
/// the factors into Q: q_d (f_d k_d) = (q_d f_d) k_d.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "heed/heed.hpp"

namespace heed::worker {

/// A tensor without gaps inside an image; element i belongs to channel i % dim.
struct ChannelRange {
  std::uint64_t offset = 0;  ///< of the first element, in bytes
  std::uint64_t elements = 0;
  int dim = 0;
  Dtype dtype = Dtype::fp16;
};

/// A factor for each channel: +-2^g.
using ChannelFactors = std::vector<float>;

/// Multiplies the range in place. Exact as long as no product exceeds the dtype; a negative g is exact where it takes
/// back an earlier multiplication.
void multiply_channels(std::byte* image, const ChannelRange& range, const ChannelFactors& factors);

}  // namespace heed::worker
