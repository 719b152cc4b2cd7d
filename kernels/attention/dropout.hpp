/// Dropout of probabilities by position: which ones a launch leaves out is a function of seed, offset, batch entry,
/// head, query row and key alone, so that it is the same in every family, whatever tiles it has. Host and device,
/// constexpr.
///
/// It is the dropout of FlashAttention-2 (flash_attn/src/dropout.h, philox.cuh) and of PyTorch's kernels made of it,
/// bit for bit, so that these compute the gradients of a forward pass here. Random numbers are those of Philox4x32 with
/// seven rounds (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011), which makes four
/// numbers of 32 bits of a counter of four and a key of two:
///
///     philox(counter: low and high word of offset + 32 (entry * heads + head) + lane, row / 16, key / 32;
///            key:     those of the seed)
///
/// A call has one byte for each of the 16 elements that lane `lane` of a warp has in its accumulators of 16 rows and 32
/// keys, tiles of mma.m16n8k16, in the order of its registers. With r and k for row % 16 and key % 32:
///
///     lane = r % 8 * 4 + k % 8 / 2        byte = k / 8 * 4 + r / 8 * 2 + k % 2
///
/// Rows and keys are counted from the entry's own first. A probability p is dropped where its byte is at or above the
/// threshold, floor(255 (1 - probability)) + 1: as often as a multiple of 1/256 says. The others are multiplied by
/// 1 / (1 - probability). Both after the softmax's normalisation: row sums and log-sum-exps are those without dropout.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

/// A counter of Philox, or what it makes of one.
struct Philox4 {
  unsigned word[4];
  constexpr bool operator==(const Philox4&) const = default;
};

inline constexpr int kPhiloxRounds = 7;
inline constexpr unsigned kPhiloxKeyLow = 0x9E3779B9U;  ///< what a key's words grow by from round to round
inline constexpr unsigned kPhiloxKeyHigh = 0xBB67AE85U;
inline constexpr unsigned kPhiloxFirst = 0xD2511F53U;  ///< what words of a counter are multiplied by
inline constexpr unsigned kPhiloxSecond = 0xCD9E8D57U;

/// One round, for a kernel that runs several calls at once.
HEED_HOST_DEVICE constexpr void philox_round(Philox4& c, unsigned key_low, unsigned key_high) {
  const unsigned long long first = static_cast<unsigned long long>(kPhiloxFirst) * c.word[0];
  const unsigned long long second = static_cast<unsigned long long>(kPhiloxSecond) * c.word[2];
  c = {{static_cast<unsigned>(second >> 32) ^ c.word[1] ^ key_low, static_cast<unsigned>(second),
        static_cast<unsigned>(first >> 32) ^ c.word[3] ^ key_high, static_cast<unsigned>(first)}};
}

HEED_HOST_DEVICE constexpr Philox4 philox4x32(Philox4 c, unsigned key_low, unsigned key_high, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    philox_round(c, key_low, key_high);
    key_low += kPhiloxKeyLow;
    key_high += kPhiloxKeyHigh;
  }
  return c;
}

/// What the numbers of one head of one batch entry follow from.
struct HeadDropout {
  unsigned long long seed = 0;
  unsigned long long offset = 0;  ///< that of lane 0
  constexpr bool operator==(const HeadDropout&) const = default;
};
HEED_HOST_DEVICE constexpr HeadDropout dropout_of_head(unsigned long long seed, unsigned long long offset, int entry,
                                                       int head, int heads) {
  return {seed, offset + 32 * static_cast<unsigned long long>(static_cast<long long>(entry) * heads + head)};
}

inline constexpr unsigned kDropoutRows = 16;  ///< of a warp's calls
inline constexpr unsigned kDropoutKeys = 32;

/// The counter of the call that has the byte of a row and a key.
HEED_HOST_DEVICE constexpr Philox4 dropout_counter(const HeadDropout& of_head, int row, int key) {
  const auto r = static_cast<unsigned>(row);
  const auto k = static_cast<unsigned>(key);
  const unsigned long long offset = of_head.offset + (r % 8 * 4 + k % 8 / 2);
  return {{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), r / kDropoutRows, k / kDropoutKeys}};
}
HEED_HOST_DEVICE constexpr Philox4 dropout_numbers(const HeadDropout& of_head, int row, int key) {
  return philox4x32(dropout_counter(of_head, row, key), static_cast<unsigned>(of_head.seed),
                    static_cast<unsigned>(of_head.seed >> 32), kPhiloxRounds);
}
/// Of a call's words the one for a key and its neighbour: bytes of the rows r and r + 8 of 16, r % 16 < 8, in the order
/// (r, even key), (r, odd key), (r + 8, even key), (r + 8, odd key).
HEED_HOST_DEVICE constexpr unsigned dropout_word(const Philox4& numbers, int key) {
  const unsigned index =
      static_cast<unsigned>(key) % kDropoutKeys / 8;  // by choices: an array that a number indexes is in memory
  return index < 2 ? (index == 0 ? numbers.word[0] : numbers.word[1])
                   : (index == 2 ? numbers.word[2] : numbers.word[3]);
}
HEED_HOST_DEVICE constexpr unsigned dropout_byte(const Philox4& numbers, int row, int key) {
  return dropout_word(numbers, key) >> (row / 8 % 2 * 16 + key % 2 * 8) & 0xFFU;
}

/// Bytes of the rows `row` and `row` + 8, with row % 16 < 8, and the keys `key` and `key` + 1: in the order of
/// dropout_word. From an odd key on they are of two words.
HEED_HOST_DEVICE constexpr unsigned dropout_of_four(const HeadDropout& of_head, int row, int key) {
  const unsigned word = dropout_word(dropout_numbers(of_head, row, key), key);
  if (key % 2 == 0) return word;
  const unsigned next = dropout_word(dropout_numbers(of_head, row, key + 1), key + 1);
  return (word >> 8 & 0x00FF00FFU) | (next << 8 & 0xFF00FF00U);
}

/// For a probability of 0 to 1, which is rounded to float first: from this number on an element is dropped. 0: none is.
HEED_HOST_DEVICE constexpr unsigned dropout_threshold(double probability) {
  if (probability <= 0) return 0;
  return static_cast<unsigned>((1.0F - static_cast<float>(probability)) * 255.0) + 1U;
}
HEED_HOST_DEVICE constexpr float dropout_scale(double probability) {
  return probability >= 1 ? 0.0F : static_cast<float>(1 / (1 - probability));
}

}  // namespace heed
