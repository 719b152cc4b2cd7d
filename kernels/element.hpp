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
  static constexpr unsigned two_ones = 0x3C003C00;  ///< a register of 1, 1
  static constexpr int digits = 11;                 ///< of the significand; the unit roundoff is 2^-digits
  static constexpr double largest = 65504;
};

template <>
struct ElementTraits<Element::bf16> {
  static constexpr const char* name = "bf16";
  static constexpr int bytes = 2;
  static constexpr unsigned two_ones = 0x3F803F80;
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

template <>
struct ElementTraits<Element::e4m3> {
  static constexpr const char* name = "e4m3";
  static constexpr int bytes = 1;
  static constexpr int digits = 4;
  static constexpr double largest = 448;
};

template <>
struct ElementTraits<Element::e5m2> {
  static constexpr const char* name = "e5m2";
  static constexpr int bytes = 1;
  static constexpr int digits = 3;
  static constexpr double largest = 57344;
};

template <>
struct ElementTraits<Element::int8> {
  static constexpr const char* name = "int8";
  static constexpr int bytes = 1;
  static constexpr int digits = 7;  ///< beside the sign: of whole numbers
  static constexpr double largest = 127;
};

/// Whether an element is a float of 16 bits, which is what tensor cores multiply and registers hold two of.
template <Element kElement>
inline constexpr bool is_half = kElement == Element::fp16 || kElement == Element::bf16;

/// Bytes of an element.
HEED_HOST_DEVICE constexpr int bytes_of(Element element) {
  switch (element) {
    case Element::fp16:
      return ElementTraits<Element::fp16>::bytes;
    case Element::bf16:
      return ElementTraits<Element::bf16>::bytes;
    case Element::fp32:
      return ElementTraits<Element::fp32>::bytes;
    case Element::e4m3:
      return ElementTraits<Element::e4m3>::bytes;
    case Element::e5m2:
      return ElementTraits<Element::e5m2>::bytes;
    case Element::int8:
      return ElementTraits<Element::int8>::bytes;
  }
  return 0;
}

}  // namespace heed
