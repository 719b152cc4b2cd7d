// Traits of element types: bits are those of the formats, and a type without traits is no other type by default.
#include "kernels/element.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/attention/bias_element.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

template <Element kElement>
concept HasTraits = requires { ElementTraits<kElement>::bytes; };
template <BiasElement kElement>
concept HasBiasTraits = requires { BiasTraits<kElement>::bytes; };

static_assert(HasTraits<Element::fp16> && !HasTraits<static_cast<Element>(99)>);
static_assert(HasBiasTraits<BiasElement::fp16> && !HasBiasTraits<static_cast<BiasElement>(99)>);
static_assert(is_half<Element::fp16> && is_half<Element::bf16> && !is_half<Element::fp32> && !is_half<Element::int8>);

float number(Dtype dtype, std::uint16_t bits) {
  return load_element(dtype, reinterpret_cast<const std::byte*>(&bits), 0);
}

template <Element kElement, BiasElement kBias>
void expect_bits_of_16(Dtype dtype) {
  using Bias = BiasTraits<kBias>;
  static_assert(Bias::element == kElement && Bias::bytes == ElementTraits<kElement>::bytes);
  EXPECT_EQ(number(dtype, static_cast<std::uint16_t>(ElementTraits<kElement>::two_ones)), 1);
  EXPECT_EQ(number(dtype, static_cast<std::uint16_t>(ElementTraits<kElement>::two_ones >> 16)), 1);
  EXPECT_EQ(number(dtype, static_cast<std::uint16_t>(Bias::minus_infinity)), -INFINITY);
  EXPECT_EQ(number(dtype, static_cast<std::uint16_t>(Bias::minus_infinity - 1)), Bias::lowest);
  EXPECT_EQ(Bias::lowest, -ElementTraits<kElement>::largest);
}

TEST(Elements, BitsOfTraitsAreThoseOfTheFormats) {
  expect_bits_of_16<Element::fp16, BiasElement::fp16>(Dtype::fp16);
  expect_bits_of_16<Element::bf16, BiasElement::bf16>(Dtype::bf16);
  using Bias = BiasTraits<BiasElement::fp32>;
  EXPECT_EQ(std::bit_cast<float>(Bias::minus_infinity), -INFINITY);
  EXPECT_EQ(std::bit_cast<float>(Bias::minus_infinity - 1), Bias::lowest);
  EXPECT_EQ(Bias::lowest, std::numeric_limits<float>::lowest());
}

TEST(Elements, BytesOfBiasesAreThoseOfTheirTraits) {
  EXPECT_EQ(bytes_of(BiasElement::boolean), 1);
  EXPECT_EQ(bytes_of(BiasElement::fp16), 2);
  EXPECT_EQ(bytes_of(BiasElement::bf16), 2);
  EXPECT_EQ(bytes_of(BiasElement::fp32), 4);
}

}  // namespace
}  // namespace heed
