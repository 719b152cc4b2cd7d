#include "row_sums.hpp"

#include <cmath>

namespace heed::emulator {

// Four sums at once: one waits for its last addition.
double dot(const double* a, const double* b, int n) {
  double sums[4] = {};
  int i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void add_terms(double weight, const double* v, int n, double* __restrict out, double* __restrict size,
               double* __restrict squares) {
  for (int i = 0; i < n; ++i) {
    const double term = weight * v[i];
    out[i] += term;
    size[i] += std::fabs(term);
    squares[i] += term * term;
  }
}

}  // namespace heed::emulator
