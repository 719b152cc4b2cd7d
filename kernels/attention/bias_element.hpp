/// Element types of biases. One without a row here does not compile.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

/// Element types of a bias.
enum class BiasElement { boolean, fp16, bf16, fp32 };

template <BiasElement kElement>
struct BiasTraits;

template <>
struct BiasTraits<BiasElement::boolean> {
  static constexpr int bytes = 1;
};

/// Of numbers: the element type that has them, and bits of minus infinity; those of the most negative finite number are
/// one less.
template <>
struct BiasTraits<BiasElement::fp16> {
  static constexpr Element element = Element::fp16;
  static constexpr int bytes = 2;
  static constexpr unsigned minus_infinity = 0xFC00;
  static constexpr float lowest = -65504;
};

template <>
struct BiasTraits<BiasElement::bf16> {
  static constexpr Element element = Element::bf16;
  static constexpr int bytes = 2;
  static constexpr unsigned minus_infinity = 0xFF80;
  static constexpr float lowest = -0x1.fep127F;
};

template <>
struct BiasTraits<BiasElement::fp32> {
  static constexpr Element element = Element::fp32;
  static constexpr int bytes = 4;
  static constexpr unsigned minus_infinity = 0xFF800000U;
  static constexpr float lowest = -0x1.fffffep127F;
};

/// Bytes of an element. Launches ask at run time: two selections are fewer instructions there than a switch or a table.
HEED_HOST_DEVICE constexpr int bytes_of(BiasElement element) {
  static_assert(BiasTraits<BiasElement::fp16>::bytes == BiasTraits<BiasElement::bf16>::bytes);
  return element == BiasElement::boolean ? BiasTraits<BiasElement::boolean>::bytes
         : element == BiasElement::fp32  ? BiasTraits<BiasElement::fp32>::bytes
                                         : BiasTraits<BiasElement::fp16>::bytes;
}

}  // namespace heed
