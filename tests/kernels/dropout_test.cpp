// Dropout by position: the generator's known answers, which number is whose, and that shares and neighbours are as they
// should be.
#include "kernels/attention/dropout.hpp"

#include <cmath>
#include <set>

#include "testing.hpp"

namespace heed {
namespace {

// Of Random123 (kat_vectors, philox4x32 with 10 rounds), https://github.com/DEShawResearch/random123
static_assert(philox4x32_10({{0, 0, 0, 0}}, 0, 0) == Philox4{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(philox4x32_10({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U) ==
              Philox4{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
static_assert(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
              Philox4{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});

unsigned number(const Philox4& of_head, int row, int key) {
  return dropout_numbers(of_head, row, key).word[dropout_index(row, key)];
}

TEST(Dropout, EveryRowAndKeyHasANumberOfItsOwn) {
  const Philox4 of_head = dropout_of_head(3, 5, 1, 2);
  std::set<std::pair<std::pair<unsigned, unsigned>, int>> seen;
  for (int row = 0; row < 70; ++row)
    for (int key = 0; key < 50; ++key)
      EXPECT_TRUE(seen.insert({{static_cast<unsigned>(key / 2), dropout_rows(row)}, dropout_index(row, key)}).second);
  for (int row = 0; row < 70; ++row)
    if (row % 16 < 8)
      for (int key = 0; key < 50; ++key) {
        const Philox4 four = dropout_of_four(of_head, row, key);
        for (int i = 0; i < 4; ++i)
          EXPECT_EQ(four.word[i], number(of_head, row + 8 * (i / 2), key + i % 2)) << row << ' ' << key << ' ' << i;
      }
}

TEST(Dropout, EveryArgumentChangesWhatIsDropped) {
  const Philox4 one = dropout_of_head(3, 5, 1, 2);
  for (const Philox4& other : {dropout_of_head(4, 5, 1, 2), dropout_of_head(3ULL + (1ULL << 32), 5, 1, 2),
                               dropout_of_head(3, 6, 1, 2), dropout_of_head(3, 5ULL + (1ULL << 32), 1, 2),
                               dropout_of_head(3, 5, 2, 2), dropout_of_head(3, 5, 1, 3), dropout_of_head(3, 5, 2, 1)}) {
    int equal = 0;
    for (int row = 0; row < 64; ++row)
      for (int key = 0; key < 64; ++key) equal += number(one, row, key) == number(other, row, key) ? 1 : 0;
    EXPECT_LE(equal, 1);
  }
}

TEST(Dropout, SharesAreTheProbabilityAndNeighboursAreIndependent) {
  constexpr int kRows = 512, kKeys = 512;
  const Philox4 of_head = dropout_of_head(11, 0, 0, 0);
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const unsigned threshold = dropout_threshold(p);
    const auto dropped = [&](int row, int key) { return number(of_head, row, key) < threshold; };
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
  EXPECT_EQ(dropout_threshold(0.5), 1U << 31);
  EXPECT_EQ(dropout_scale(0.5), 2.0F);
  EXPECT_EQ(dropout_threshold(1), 0xFFFFFFFFU);
  EXPECT_EQ(dropout_scale(1), 0.0F);
}

}  // namespace
}  // namespace heed
