/// Sums of products of emulated tensor cores. They take most of the time of an emulated kernel, and are compiled with
/// more optimisation than what is unrolled for a GPU. Products and sums are rounded to fp32, in the order of the inner
/// index.
#pragma once

#include <cstddef>

namespace heed::emulator {

/// What a lane gives to mma.m16n8k16.
struct FragmentOperands {
  float* d;
  const unsigned* a;
  unsigned b[2];
};
/// d (16, 8) += a (16, 16) * b (16, 8) in fp16 or bf16 of 32 lanes, each a FragmentOperands.
void multiply_fragments(bool bf16, void* const* lanes);

/// Accumulators of one thread of a warpgroup, as registers hold them (kernels/tile/fragment.hpp).
struct Accumulators {
  float* result;  ///< a product in flight is to write
  float* d;       ///< the registers, which are NaN until it is waited for
};
/// result (64, columns) of 128 threads = a (64, depth) * b (depth, columns), row by row, plus what it was if
/// `accumulate`.
void multiply_warpgroup(const Accumulators* threads, const float* a, const float* b, int columns, int depth,
                        bool accumulate);

}  // namespace heed::emulator
