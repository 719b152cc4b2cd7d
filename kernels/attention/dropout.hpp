/// Dropout of probabilities by position: which ones a launch leaves out is a function of seed, offset, batch entry,
/// head, query row and key alone, so that it is the same in every family, whatever tiles it has. Host and device,
/// constexpr.
///
/// Random numbers are those of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3,
/// SC 2011), which makes four numbers of 32 bits of a counter of four and a key of two:
///
///     (a, b, c, d)       = philox(counter: low and high word of the offset, entry, head; key: those of the seed)
///     (n0, n1, n2, n3)   = philox(counter: key / 2, row / 16 * 8 + row % 8, c, d;        key: a, b)
///
/// One call of the second line serves two rows that are 8 apart and two neighbouring keys, the four elements of a tile
/// of mma.m16n8k16 that one lane has in its accumulators, in the order of its registers:
///
///                    key 2 n   key 2 n + 1
///     row r            n0          n1                r % 16 < 8
///     row r + 8        n2          n3
///
/// Rows and keys are counted from the entry's own first. A probability is dropped where its number is below the
/// threshold, the probability of dropping times 2^32; the others are multiplied by the scale. Both after the softmax's
/// normalisation, as in FlashAttention-2: row sums and log-sum-exps are those without dropout.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

/// A counter of Philox, or what it makes of one.
struct Philox4 {
  unsigned word[4];
  constexpr bool operator==(const Philox4&) const = default;
};

HEED_HOST_DEVICE constexpr Philox4 philox4x32_10(Philox4 c, unsigned key_low, unsigned key_high) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xD2511F53ULL * c.word[0];
    const unsigned long long second = 0xCD9E8D57ULL * c.word[2];
    c = {{static_cast<unsigned>(second >> 32) ^ c.word[1] ^ key_low, static_cast<unsigned>(second),
          static_cast<unsigned>(first >> 32) ^ c.word[3] ^ key_high, static_cast<unsigned>(first)}};
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return c;
}

/// One round of Philox, for a kernel that runs many calls at once; philox4x32_10 with this in its loop moved the
/// PTX of fwd_sm80.
inline constexpr int kPhiloxRounds = 10;
inline constexpr unsigned kPhiloxKeyLow = 0x9E3779B9U;  ///< what a key's words grow by from round to round
inline constexpr unsigned kPhiloxKeyHigh = 0xBB67AE85U;
HEED_HOST_DEVICE constexpr void philox_round(Philox4& c, unsigned key_low, unsigned key_high) {
  const unsigned long long first = 0xD2511F53ULL * c.word[0];
  const unsigned long long second = 0xCD9E8D57ULL * c.word[2];
  c = {{static_cast<unsigned>(second >> 32) ^ c.word[1] ^ key_low, static_cast<unsigned>(second),
        static_cast<unsigned>(first >> 32) ^ c.word[3] ^ key_high, static_cast<unsigned>(first)}};
}

/// What the numbers of one head of one batch entry follow from: (a, b, c, d).
HEED_HOST_DEVICE constexpr Philox4 dropout_of_head(unsigned long long seed, unsigned long long offset, int entry,
                                                   int head) {
  return philox4x32_10({{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32),
                         static_cast<unsigned>(entry), static_cast<unsigned>(head)}},
                       static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32));
}

/// The call that has the number of a row and a key, and which of its numbers that is.
HEED_HOST_DEVICE constexpr unsigned dropout_rows(int row) {
  return static_cast<unsigned>(row / 16 * 8 + row % 8);
}
HEED_HOST_DEVICE constexpr int dropout_index(int row, int key) {
  return row / 8 % 2 * 2 + key % 2;
}
HEED_HOST_DEVICE constexpr Philox4 dropout_numbers(const Philox4& of_head, int row, int key) {
  return philox4x32_10({{static_cast<unsigned>(key / 2), dropout_rows(row), of_head.word[2], of_head.word[3]}},
                       of_head.word[0], of_head.word[1]);
}

/// Of the rows `row` and `row` + 8, with row % 16 < 8, and the keys `key` and `key` + 1: in the order of the picture.
/// From an odd key on they are numbers of two calls.
HEED_HOST_DEVICE constexpr Philox4 dropout_of_four(const Philox4& of_head, int row, int key) {
  const Philox4 numbers = dropout_numbers(of_head, row, key);
  if (key % 2 == 0) return numbers;
  const Philox4 next = dropout_numbers(of_head, row, key + 1);
  return {{numbers.word[1], next.word[0], numbers.word[3], next.word[2]}};
}

/// For a probability of 0 to 1. Where it is 1 a number in 2^32 is not below the threshold, and is multiplied by 0.
HEED_HOST_DEVICE constexpr unsigned dropout_threshold(double probability) {
  return probability >= 1 ? 0xFFFFFFFFU : static_cast<unsigned>(probability * 0x1p32);
}
HEED_HOST_DEVICE constexpr float dropout_scale(double probability) {
  return probability >= 1 ? 0.0F : static_cast<float>(1 / (1 - probability));
}

}  // namespace heed
