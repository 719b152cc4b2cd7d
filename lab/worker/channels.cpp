#include "worker/channels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "workload/half.hpp"

namespace heed::worker {
namespace {

// Signs alone, as in every timed replay: the sign bits are flipped, at the speed of memory.
template <typename Word>
void flip(Word* at, std::uint64_t elements, const std::vector<Word>& masks) {
  const std::size_t dim = masks.size();
  const Word* const mask = masks.data();
  std::uint64_t i = 0;
  for (; i + dim <= elements; i += dim)
    for (std::size_t d = 0; d < dim; ++d) at[i + d] ^= mask[d];
  for (std::size_t d = 0; i < elements; ++i, ++d) at[i] ^= mask[d];
}

template <typename Word>
std::vector<Word> sign_masks(const ChannelFactors& factors) {
  std::vector<Word> masks;
  for (const float factor : factors)
    masks.push_back(std::signbit(factor) ? static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1)) : Word{0});
  return masks;
}

// Of whole numbers too: the sign of -128, which no quantised tensor has but as poison, stays.
void negate(std::uint8_t* at, std::uint64_t elements, const ChannelFactors& factors) {
  for (std::uint64_t i = 0; i < elements; ++i)
    if (std::signbit(factors[i % factors.size()])) at[i] = static_cast<std::uint8_t>(-at[i]);
}

// Row by row and with a dtype that is known: a division and a switch for each element took twice the time.
template <Dtype dtype>
void multiply(std::byte* at, std::uint64_t elements, const ChannelFactors& factors) {
  const std::uint64_t dim = factors.size();
  for (std::uint64_t row = 0; row < elements; row += dim)
    for (std::uint64_t d = 0; d < dim && row + d < elements; ++d) {
      const float value = load_element(dtype, at, row + d);
      if (!std::isnan(value))
        store_element(dtype, at, row + d, value * factors[d]);
      else if (std::signbit(factors[d]))  // as by factors that are signs: after several of both kinds the same NaN
        at[(row + d + 1) * size_of(dtype) - 1] ^= std::byte{0x80};
    }
}

}  // namespace

void multiply_channels(std::byte* image, const ChannelRange& range, const ChannelFactors& factors) {
  HEED_CHECK(range.dim > 0 && factors.size() == static_cast<std::size_t>(range.dim));
  std::byte* const at = image + range.offset;
  const bool signs_only = std::all_of(factors.begin(), factors.end(), [](float f) { return std::abs(f) == 1.0F; });
  if (signs_only && size_of(range.dtype) == sizeof(std::uint16_t))
    return flip(reinterpret_cast<std::uint16_t*>(at), range.elements, sign_masks<std::uint16_t>(factors));
  if (signs_only && range.dtype == Dtype::int8)
    return negate(reinterpret_cast<std::uint8_t*>(at), range.elements, factors);
  if (signs_only && size_of(range.dtype) == 1)
    return flip(reinterpret_cast<std::uint8_t*>(at), range.elements, sign_masks<std::uint8_t>(factors));
  if (signs_only) return flip(reinterpret_cast<std::uint32_t*>(at), range.elements, sign_masks<std::uint32_t>(factors));
  switch (range.dtype) {
    case Dtype::fp32:
      return multiply<Dtype::fp32>(at, range.elements, factors);
    case Dtype::fp16:
      return multiply<Dtype::fp16>(at, range.elements, factors);
    case Dtype::bf16:
      return multiply<Dtype::bf16>(at, range.elements, factors);
    case Dtype::e4m3:
      return multiply<Dtype::e4m3>(at, range.elements, factors);
    case Dtype::e5m2:
      return multiply<Dtype::e5m2>(at, range.elements, factors);
    case Dtype::int8:
      return multiply<Dtype::int8>(at, range.elements, factors);
  }
}

}  // namespace heed::worker
