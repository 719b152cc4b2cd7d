/// What is done to finished rows of O on a CPU, before they are written: norms and gates
/// (kernels/attention/features.hpp says in which order).
#pragma once

#include "cpu/exp2.hpp"
#include "cpu/features.hpp"
#include "cpu/simd.hpp"
#include "kernels/attention/features.hpp"

namespace heed::cpu {

/// 1 / (1 + e^-x). 2^x is for numbers that are not above 0.
inline float sigmoid(float x) {
  const float size = x < 0 ? x : -x;  // NaN stays
  const float power = exp2<Exp2::degree6>(broadcast(size * kLog2E))[0];
  return (x < 0 ? power : 1.0F) / (1.0F + power);
}

/// Norms and gates a row of O.
/// @param p the launch as the row's entry has it
/// @param x (head dim): the row, divided by the sum of its probabilities; changed in place
template <Features kFeatures, Element kElement>
inline void finish_output(const FeatureParams& p, long long entry, long long head, long long row, float* x) {
  const int columns = p.out_columns;
  if constexpr (kFeatures.out_norm)
    if (p.out_norm_weight != nullptr) {
      float squares = 0;
      for (int d = 0; d < columns; ++d) squares += x[d] * x[d];
      const float inverse = 1.0F / __builtin_sqrtf(squares / static_cast<float>(columns) + p.out_norm_eps);
      const float* const weight = p.out_norm_weight + head * p.out_norm_head;
      for (int d = 0; d < columns; ++d) x[d] = x[d] * inverse * weight[d];
    }
  if constexpr (kFeatures.out_gate)
    if (p.out_gate != nullptr) {
      const TensorStrides& s = p.out_gate_strides;
      const auto* const gates =
          static_cast<const Stored<kElement>*>(p.out_gate) + entry * s.batch + head * s.head + row * s.row;
      const bool of_row = p.out_gate_column == 0;
      const float all = of_row ? sigmoid(load_scalar<kElement>(gates)) : 1.0F;
      for (int d = 0; d < columns; ++d) x[d] *= of_row ? all : sigmoid(load_scalar<kElement>(gates + d));
    }
}

}  // namespace heed::cpu
