/// Conversions between fp32 and the 16-bit types, round to nearest even (IEEE 754-2019 binary16; bfloat16 as the upper
/// half of binary32), and elements of any type by their dtype. Those of 8 bits are kernels/eight_bits.hpp's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "heed/heed.hpp"
#include "kernels/eight_bits.hpp"

namespace heed {

constexpr float fp16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fU;
  const std::uint32_t mantissa = h & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;  // zero or subnormal: exact in fp32
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

constexpr std::uint16_t float_to_fp16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;             // NaN
  if (magnitude >= 0x477ff000U) return sign | 0x7c00U;            // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000U) {                                  // below 2^-14: subnormal
    const float scaled = std::bit_cast<float>(magnitude) + 0.5F;  // adding 0.5 rounds to a multiple of 2^-24
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(scaled) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

constexpr float bf16_to_float(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

constexpr std::uint16_t float_to_bf16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // keep NaN a NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// One element at `index` of an array of `dtype`.
inline float load_element(Dtype dtype, const void* data, std::size_t index) {
  switch (dtype) {
    case Dtype::fp16:
      return fp16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case Dtype::bf16:
      return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case Dtype::fp32:
      return static_cast<const float*>(data)[index];
    case Dtype::e4m3:
      return e4m3_to_float(static_cast<const unsigned char*>(data)[index]);
    case Dtype::e5m2:
      return e5m2_to_float(static_cast<const unsigned char*>(data)[index]);
    case Dtype::int8:
      return int8_to_float(static_cast<const unsigned char*>(data)[index]);
  }
  return 0;
}

inline void store_element(Dtype dtype, void* data, std::size_t index, float value) {
  switch (dtype) {
    case Dtype::fp16:
      static_cast<std::uint16_t*>(data)[index] = float_to_fp16(value);
      break;
    case Dtype::bf16:
      static_cast<std::uint16_t*>(data)[index] = float_to_bf16(value);
      break;
    case Dtype::fp32:
      static_cast<float*>(data)[index] = value;
      break;
    case Dtype::e4m3:
      static_cast<unsigned char*>(data)[index] = float_to_e4m3(value);
      break;
    case Dtype::e5m2:
      static_cast<unsigned char*>(data)[index] = float_to_e5m2(value);
      break;
    case Dtype::int8:
      static_cast<unsigned char*>(data)[index] = float_to_int8(value);
      break;
  }
}

/// The nearest value that `dtype` can hold.
inline float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::fp16:
      return fp16_to_float(float_to_fp16(value));
    case Dtype::bf16:
      return bf16_to_float(float_to_bf16(value));
    case Dtype::fp32:
      return value;
    case Dtype::e4m3:
      return e4m3_to_float(float_to_e4m3(value));
    case Dtype::e5m2:
      return e5m2_to_float(float_to_e5m2(value));
    case Dtype::int8:
      return int8_to_float(float_to_int8(value));
  }
  return value;
}

}  // namespace heed
