// Dropout by position: the generator's known answers, which number is whose, and that shares and neighbours are as they
// should be.
#include "kernels/attention/dropout.hpp"

#include <cmath>

#include "testing.hpp"

namespace heed {
namespace {

// Of Random123 (kat_vectors, philox4x32 with 7 and 10 rounds), https://github.com/DEShawResearch/random123
static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0, 10) == Philox4{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0, 7) == Philox4{{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}});
static_assert(philox4x32({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U, 7) ==
              Philox4{{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}});
static_assert(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0, 7) ==
              Philox4{{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}});

unsigned number(const HeadDropout& of_head, int row, int key) {
  return dropout_byte(dropout_numbers(of_head, row, key), row, key);
}

// FlashAttention-2's order: a warp's lane has the accumulators of mma.m16n8k16, four a tile of 8 keys, and takes 16
// bytes for the tiles of 32 keys one after another.
TEST(Dropout, NumbersAreThoseOfTheLanesOfAWarp) {
  constexpr unsigned long long kSeed = 0x123456789abcdefULL, kOffset = 0xfffffff0ULL;
  constexpr int kHeads = 5, kEntry = 3, kHead = 2;
  const HeadDropout of_head = dropout_of_head(kSeed, kOffset, kEntry, kHead, kHeads);
  for (int block_row = 0; block_row < 3; ++block_row)
    for (int block_key = 0; block_key < 3; ++block_key)
      for (int lane = 0; lane < 32; ++lane) {
        const unsigned long long offset = kOffset + (kEntry * kHeads + kHead) * 32 + static_cast<unsigned>(lane);
        const Philox4 numbers = philox4x32({{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32),
                                             static_cast<unsigned>(block_row), static_cast<unsigned>(block_key)}},
                                           static_cast<unsigned>(kSeed), static_cast<unsigned>(kSeed >> 32), 7);
        for (int tile = 0; tile < 4; ++tile)
          for (int i = 0; i < 4; ++i) {
            const int row = 16 * block_row + lane / 4 + 8 * (i / 2),
                      key = 32 * block_key + 8 * tile + 2 * (lane % 4) + i % 2;
            EXPECT_EQ(number(of_head, row, key), numbers.word[tile] >> 8 * i & 0xff) << row << ' ' << key;
          }
      }
}

TEST(Dropout, FourNumbersAreThoseOfTwoRowsAndTwoKeys) {
  const HeadDropout of_head = dropout_of_head(3, 5, 1, 2, 4);
  for (int row = 0; row < 70; ++row)
    if (row % 16 < 8)
      for (int key = 0; key < 80; ++key) {
        const unsigned four = dropout_of_four(of_head, row, key);
        for (int i = 0; i < 4; ++i)
          EXPECT_EQ(four >> 8 * i & 0xff, number(of_head, row + 8 * (i / 2), key + i % 2))
              << row << ' ' << key << ' ' << i;
      }
}

TEST(Dropout, EveryArgumentChangesWhatIsDropped) {
  const HeadDropout one = dropout_of_head(3, 5, 1, 2, 4);
  for (const HeadDropout& other :
       {dropout_of_head(4, 5, 1, 2, 4), dropout_of_head(3ULL + (1ULL << 32), 5, 1, 2, 4),
        dropout_of_head(3, 6, 1, 2, 4), dropout_of_head(3, 5ULL + (1ULL << 32), 1, 2, 4),
        dropout_of_head(3, 5, 2, 2, 4), dropout_of_head(3, 5, 1, 3, 4), dropout_of_head(3, 5, 1, 2, 5)}) {
    int equal = 0;
    for (int row = 0; row < 64; ++row)
      for (int key = 0; key < 64; ++key) equal += number(one, row, key) == number(other, row, key) ? 1 : 0;
    EXPECT_NEAR(equal, 64 * 64 / 256, 5 * 4);  // bytes: one in 256 is equal by chance
  }
}

TEST(Dropout, SharesAreTheProbabilityAndNeighboursAreIndependent) {
  constexpr int kRows = 512, kKeys = 512;
  const HeadDropout of_head = dropout_of_head(11, 0, 0, 0, 1);
  for (const double wanted : {0.01, 0.1, 0.5, 0.9}) {
    const unsigned threshold = dropout_threshold(wanted);
    const double p = 1 - threshold / 256.0;
    EXPECT_NEAR(p, wanted, 1 / 256.0);
    const auto dropped = [&](int row, int key) { return number(of_head, row, key) >= threshold; };
    double count = 0, with_next_key = 0, with_next_row = 0, with_eighth_row = 0;
    for (int row = 0; row < kRows; ++row)
      for (int key = 0; key < kKeys; ++key) {
        if (!dropped(row, key)) continue;
        ++count;
        with_next_key += dropped(row, key + 1) ? 1 : 0;
        with_next_row += dropped(row + 1, key) ? 1 : 0;
        with_eighth_row += dropped(row + 8, key) ? 1 : 0;
      }
    const double n = kRows * kKeys;
    EXPECT_NEAR(count / n, p, 5 * std::sqrt(p * (1 - p) / n)) << p;
    for (const double pairs : {with_next_key, with_next_row, with_eighth_row})
      EXPECT_NEAR(pairs / n, p * p, 6 * std::sqrt(p * p * (1 - p * p) / n)) << p;
  }
}

TEST(Dropout, ThresholdsAndScalesReachBothEnds) {
  EXPECT_EQ(dropout_threshold(0), 0U);
  EXPECT_EQ(dropout_scale(0), 1.0F);
  EXPECT_EQ(dropout_threshold(0.1), 230U);  // as uint8_t(floor((1 - 0.1F) * 255.0)) and those above it
  EXPECT_EQ(dropout_threshold(0.5), 128U);
  EXPECT_EQ(dropout_scale(0.5), 2.0F);
  EXPECT_EQ(dropout_threshold(1e-12), 256U);
  EXPECT_EQ(dropout_threshold(1), 1U);
  EXPECT_EQ(dropout_scale(1), 0.0F);
}

}  // namespace
}  // namespace heed
