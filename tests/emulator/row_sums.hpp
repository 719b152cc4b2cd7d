/// Inner loops of computations in double precision, compiled with optimisation.
#pragma once

namespace heed::emulator {

/// Sum of a[i] * b[i].
double dot(const double* a, const double* b, int n);
/// Adds weight * v[i] to out[i], its size to size[i] and its square to squares[i].
void add_terms(double weight, const double* v, int n, double* out, double* size, double* squares);

}  // namespace heed::emulator
