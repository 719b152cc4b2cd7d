/// Numbers as sums of bf16 pieces, so that a unit that multiplies bf16 computes what fp16 and fp32 inputs need
/// (Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
/// Computations", arXiv 1904.06376).
///
/// A bf16 number is one piece, an fp16 number (11 bits) exactly two, an fp32 number (24 bits) exactly three. Of the
/// products of two such sums those are left out that the last bit does not see: pieces i and j with i + j >= the number
/// of pieces, whose share is 2^-16 of a weight times an fp16 value and 2^-24 of an fp32 product.
#pragma once

#include "cpu/simd.hpp"

#if defined(__x86_64__) && defined(__AVX512F__)

namespace heed::cpu {

/// 32 bf16 numbers; number 2i comes from lane i of one vector of fp32, number 2i + 1 from lane i of another.
using Pairs = IntVec;

/// What no piece may reach: the first number that bf16 rounds to infinity, as bits.
inline constexpr int kLeastUnsplittable = 0x7f7f8000;

inline IntVec bits_of(Vec x) {
  return (IntVec)x;
}
inline IntVec magnitude_bits(Vec x) {
  return (IntVec)x & 0x7fffffff;
}
inline IntVec larger(IntVec a, IntVec b) {
  return a > b ? a : b;
}

/// The upper halves of two vectors.
inline Pairs pair(IntVec even, IntVec odd) {
  return (IntVec)((UnsignedVec)even >> 16) | (odd & static_cast<int>(0xffff0000));
}

/// Nearest bf16 (ties away from zero) as fp32; no NaN, and nothing from kLeastUnsplittable on.
inline Vec nearest_piece(Vec x) {
  return (Vec)(((IntVec)x + 0x8000) & static_cast<int>(0xffff0000));
}
/// Nearest bf16 towards zero as fp32.
inline Vec leading_piece(Vec x) {
  return (Vec)((IntVec)x & static_cast<int>(0xffff0000));
}

/// Pieces of inputs, rounded to nearest, so that what is left for the next piece is smallest.
template <int kPieces>
[[gnu::always_inline]] inline void split_inputs(Vec even, Vec odd, Pairs (&pieces)[kPieces]) {
  for (int i = 0; i < kPieces; ++i) {
    if (i == kPieces - 1) {
      pieces[i] = pair((IntVec)even, (IntVec)odd);  // exact: no more than 8 bits are left
      return;
    }
    const Vec even_piece = nearest_piece(even);
    const Vec odd_piece = nearest_piece(odd);
    pieces[i] = pair((IntVec)even_piece, (IntVec)odd_piece);
    even -= even_piece;
    odd -= odd_piece;
  }
}

/// Pieces of weights in [0, 1]: one is rounded to nearest, more are cut off, which takes an operation less each.
template <int kPieces>
[[gnu::always_inline]] inline void split_weights(Vec even, Vec odd, Pairs (&pieces)[kPieces]) {
  if constexpr (kPieces == 1) {
    pieces[0] = pair((IntVec)even + 0x8000, (IntVec)odd + 0x8000);
    return;
  }
  for (int i = 0; i < kPieces; ++i) {
    pieces[i] = pair((IntVec)even, (IntVec)odd);
    even -= leading_piece(even);
    odd -= leading_piece(odd);
  }
}

}  // namespace heed::cpu

#endif
