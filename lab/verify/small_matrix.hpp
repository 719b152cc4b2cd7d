/// C += A B for the small row blocks of the oracle and of the unfused computation.
///
/// Plain host code, compiled once for each x86-64 level and chosen at load time (GCC's target_clones), because the
/// binary itself is built for the baseline and the oracle is the most expensive part of a trial's verification.
#pragma once

#include <cstdint>

namespace heed {

/// Columns are processed in groups of this many: pad `columns`, and the rows of B and C, to a multiple of it.
constexpr int kColumnGroup = 16;

constexpr std::int64_t padded_columns(std::int64_t columns) {
  return (columns + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
}

/// c (rows, columns; row stride c_stride) += a (rows, depth; row stride a_stride) * b (depth, columns; row stride
/// b_stride). `columns` must be a multiple of kColumnGroup; rows and depth are free. No aliasing.
void multiply_add(double* c, std::int64_t c_stride, const double* a, std::int64_t a_stride, const double* b,
                  std::int64_t b_stride, std::int64_t rows, std::int64_t columns, std::int64_t depth);
void multiply_add(float* c, std::int64_t c_stride, const float* a, std::int64_t a_stride, const float* b,
                  std::int64_t b_stride, std::int64_t rows, std::int64_t columns, std::int64_t depth);

}  // namespace heed
