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

}  // namespace
}  // namespace heed::worker
