#include "verify/small_matrix.hpp"

#include <cstring>

#if defined(__x86_64__)
#define HEED_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HEED_CLONES
#endif

namespace heed {
namespace {

// R rows by kColumnGroup columns, accumulators in registers over the whole depth.
template <int R, typename T>
[[gnu::always_inline]] inline void multiply_rows(T* c, std::int64_t c_stride, const T* a, std::int64_t a_stride,
                                                 const T* b, std::int64_t b_stride, std::int64_t depth) {
  constexpr int kVector = 32 / sizeof(T);
  constexpr int kVectors = kColumnGroup / kVector;
  typedef T Vector [[gnu::vector_size(32), gnu::aligned(sizeof(T)), gnu::may_alias]];
  Vector sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = reinterpret_cast<const Vector*>(c + r * c_stride)[v];
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto* row = reinterpret_cast<const Vector*>(b + k * b_stride);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] += a[r * a_stride + k] * row[v];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) reinterpret_cast<Vector*>(c + r * c_stride)[v] = sums[r][v];
}

template <int R, typename T>
[[gnu::always_inline]] inline void multiply(T* c, std::int64_t c_stride, const T* a, std::int64_t a_stride, const T* b,
                                            std::int64_t b_stride, std::int64_t rows, std::int64_t columns,
                                            std::int64_t depth) {
  if (depth == 0) return;  // a and b may be null
  for (std::int64_t column = 0; column < columns; column += kColumnGroup) {
    std::int64_t row = 0;
    for (; row + R <= rows; row += R)
      multiply_rows<R>(c + row * c_stride + column, c_stride, a + row * a_stride, a_stride, b + column, b_stride,
                       depth);
    for (; row < rows; ++row)
      multiply_rows<1>(c + row * c_stride + column, c_stride, a + row * a_stride, a_stride, b + column, b_stride,
                       depth);
  }
}

}  // namespace

HEED_CLONES void multiply_add(double* c, std::int64_t c_stride, const double* a, std::int64_t a_stride, const double* b,
                              std::int64_t b_stride, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  multiply<2>(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);  // 2 x 4 vectors of 4
}

HEED_CLONES void multiply_add(float* c, std::int64_t c_stride, const float* a, std::int64_t a_stride, const float* b,
                              std::int64_t b_stride, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  multiply<4>(c, c_stride, a, a_stride, b, b_stride, rows, columns, depth);  // 4 x 2 vectors of 8
}

}  // namespace heed
