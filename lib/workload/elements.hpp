/// Many elements of an array at once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "heed/heed.hpp"
#include "workload/half.hpp"

namespace heed {

/// `count` elements from `index` on, as T.
template <typename T>
void load_elements(Dtype dtype, const void* data, std::size_t index, std::size_t count, T* to) {
  switch (dtype) {
    case Dtype::fp16: {
      const auto* from = static_cast<const std::uint16_t*>(data) + index;
      for (std::size_t i = 0; i < count; ++i) {
        // Without a branch, so that compilers vectorise it: 2^112 corrects the exponent, exactly for subnormals too.
        const std::uint32_t h = from[i];
        const float magnitude = std::bit_cast<float>((h & 0x7fffU) << 13) * 0x1.0p112F;
        const std::uint32_t special = (h & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
        to[i] = static_cast<T>(
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | special | ((h & 0x8000U) << 16)));
      }
      break;
    }
    case Dtype::bf16: {
      const auto* from = static_cast<const std::uint16_t*>(data) + index;
      for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(bf16_to_float(from[i]));
      break;
    }
    case Dtype::fp32: {
      const auto* from = static_cast<const float*>(data) + index;
      for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
      break;
    }
    case Dtype::e4m3:
    case Dtype::e5m2:
    case Dtype::int8:
      for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(load_element(dtype, data, index + i));
      break;
  }
}

/// `count` values as elements from `index` on, each the nearest to value / divisor. The dtype is asked for once, not
/// with each element.
inline void store_elements(Dtype dtype, void* data, std::size_t index, const float* values, std::size_t count,
                           float divisor = 1) {
  const auto store = [&](auto* to, const auto& convert) {
    if (divisor == 1)
      for (std::size_t i = 0; i < count; ++i) to[index + i] = convert(values[i]);
    else
      for (std::size_t i = 0; i < count; ++i) to[index + i] = convert(values[i] / divisor);
  };
  switch (dtype) {
    case Dtype::fp16:
      return store(static_cast<std::uint16_t*>(data), float_to_fp16);
    case Dtype::bf16:
      return store(static_cast<std::uint16_t*>(data), float_to_bf16);
    case Dtype::fp32:
      return store(static_cast<float*>(data), [](float x) { return x; });
    case Dtype::e4m3:
      return store(static_cast<unsigned char*>(data), float_to_e4m3);
    case Dtype::e5m2:
      return store(static_cast<unsigned char*>(data), float_to_e5m2);
    case Dtype::int8:
      return store(static_cast<unsigned char*>(data), float_to_int8);
  }
}

}  // namespace heed
