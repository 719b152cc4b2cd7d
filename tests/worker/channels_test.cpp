// Factors of channels on elements of 8 bits: signs, exactly, and back.
#include "worker/channels.hpp"

#include <cmath>
#include <cstring>

#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::worker {
namespace {

TEST(Channels, SignsOfEightBitElementsFlipAndFlipBack) {
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8}) {
    std::vector<std::byte> image(3 + 256);
    for (std::size_t i = 0; i < 256; ++i) image[3 + i] = static_cast<std::byte>(i);
    const std::vector<std::byte> before = image;
    const ChannelRange range{3, 256, 4, dtype};
    const ChannelFactors factors = {1, -1, -1, 1};
    multiply_channels(image.data(), range, factors);
    for (std::size_t i = 0; i < 256; ++i) {
      const float was = load_element(dtype, before.data() + 3, i);
      const float is = load_element(dtype, image.data() + 3, i);
      if (std::isnan(was) || (dtype == Dtype::int8 && was == -128))
        ASSERT_TRUE(std::isnan(is) || is == -128) << i;
      else
        ASSERT_EQ(is, was * factors[i % 4]) << i;
    }
    EXPECT_EQ(std::memcmp(image.data(), before.data(), 3), 0);
    multiply_channels(image.data(), range, factors);
    EXPECT_EQ(image, before);
  }
}

// By factors that are more than signs, and an end within a row.
TEST(Channels, EveryElementHasTheFactorOfItsChannel) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32}) {
    const ChannelFactors factors = {1, -32, 16, -1, 1};
    std::vector<std::byte> image(23 * size_of(dtype));
    for (std::size_t i = 0; i < 23; ++i) store_element(dtype, image.data(), i, 0.25F * static_cast<float>(i) - 2);
    const std::vector<std::byte> before = image;
    multiply_channels(image.data(), {0, 23, 5, dtype}, factors);
    for (std::size_t i = 0; i < 23; ++i)
      EXPECT_EQ(load_element(dtype, image.data(), i), load_element(dtype, before.data(), i) * factors[i % 5]) << i;
    multiply_channels(image.data(), {0, 23, 5, dtype}, {1, -0x1p-5F, 0x1p-4F, -1, 1});
    EXPECT_EQ(image, before) << to_string(dtype);
  }
}

// Pages that no entry reads hold NaN. What several factors make of them is what their product makes of them at once.
TEST(Channels, NansFollowTheSignsOfFactorsOfBothKinds) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32}) {
    const std::uint64_t bytes = 4 * size_of(dtype);
    std::vector<std::byte> poison(bytes, std::byte{0xff});
    std::vector<std::byte> in_turn = poison;
    const ChannelRange range{0, 4, 4, dtype};
    multiply_channels(in_turn.data(), range, {-1, 1, -1, 1});
    multiply_channels(in_turn.data(), range, {16, -16, 1, -0.5F});
    multiply_channels(in_turn.data(), range, {-1, -1, -1, 1});
    multiply_channels(poison.data(), range, {16, 16, 1, -0.5F});
    EXPECT_EQ(in_turn, poison) << to_string(dtype);
    EXPECT_EQ(poison.back(), std::byte{0x7f}) << "of a factor below 0";
    EXPECT_EQ(poison.front(), std::byte{0xff});
  }
}

}  // namespace
}  // namespace heed::worker
