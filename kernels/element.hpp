/// What is to be known of an element type, at compile time. A type without a row here does not compile.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

template <Element kElement>
struct ElementTraits;

template <>
struct ElementTraits<Element::fp16> {
  static constexpr const char* name = "fp16";
  static constexpr int bytes = 2;
  static constexpr int digits = 11;  ///< of the significand; the unit roundoff is 2^-digits
  static constexpr double largest = 65504;
};

template <>
struct ElementTraits<Element::bf16> {
  static constexpr const char* name = "bf16";
  static constexpr int bytes = 2;
  static constexpr int digits = 8;
  static constexpr double largest = 0x1.fep127;
};

template <>
struct ElementTraits<Element::fp32> {
  static constexpr const char* name = "fp32";
  static constexpr int bytes = 4;
  static constexpr int digits = 24;
  static constexpr double largest = 0x1.fffffep127;
};

/// Bytes of an element.
HEED_HOST_DEVICE constexpr int bytes_of(Element element) {
  return element == Element::fp32 ? ElementTraits<Element::fp32>::bytes : ElementTraits<Element::fp16>::bytes;
}

}  // namespace heed
