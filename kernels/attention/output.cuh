/// What is done to finished rows of O, in registers and before they are written: norms and gates
/// (kernels/attention/features.hpp says in which order).
///
/// A row is held by a few lanes of a warp that follow each other, each with some of its columns; all of a warp's lanes
/// take part. A norm takes one exchange of sums among these lanes, and reads its weights while it waits.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/element.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// 1 / (1 + e^-x), off by some 2^-22 of itself; 0 below -88, where it is less than the smallest normal number. NaN
/// stays.
__device__ __forceinline__ float sigmoid(float x) {
  return ptx::rcp_approx_ftz(1.0F + ptx::ex2_approx_ftz(-kLog2e * x));
}

/// A row of O: which one of the launch as its entry has it.
struct OutputRow {
  int entry;
  int head;
  int row;
  bool is_there;  ///< else it is past the last, and nothing of it is read
};

/// What the columns of a row are multiplied by, beside what all of them are.
template <const Problem& kProblem>
struct ColumnFactors {
  static constexpr Features kFeatures = kProblem.features;
  static constexpr int kBytes = ElementTraits<kProblem.element>::bytes;

  const char* gates = nullptr;     ///< of the row's first column; null where they have none of their own
  const float* weights = nullptr;  ///< of the head's first column
  float of_row = 1.0F;             ///< the sigmoid of the row's one gate

  __device__ __forceinline__ ColumnFactors(const FeatureParams& p, const OutputRow& at) {
    if constexpr (kFeatures.out_norm)
      if (p.out_norm_weight != nullptr) weights = p.out_norm_weight + at.head * p.out_norm_head;
    if constexpr (kFeatures.out_gate)
      if (p.out_gate != nullptr && at.is_there) {
        const TensorStrides& s = p.out_gate_strides;
        gates = static_cast<const char*>(p.out_gate) +
                (at.entry * s.batch + at.head * s.head + at.row * s.row) * static_cast<long long>(kBytes);
        if (p.out_gate_column == 0) {
          of_row = sigmoid(gate(0));
          gates = nullptr;
        }
      }
  }

  /// @param column one that there is
  __device__ __forceinline__ float of_column(int column) const {
    float factor = 1.0F;
    if constexpr (kFeatures.out_norm)
      if (weights != nullptr) factor = weights[column];
    if constexpr (kFeatures.out_gate)
      if (gates != nullptr) factor *= sigmoid(gate(column));
    return factor;
  }

 private:
  __device__ __forceinline__ float gate(int column) const {
    if constexpr (kBytes == 4)
      return reinterpret_cast<const float*>(gates)[column];
    else
      return ptx::unpack_low<kProblem.element>(reinterpret_cast<const unsigned short*>(gates)[column]);
  }
};

/// Finishes a row of O that kLanes lanes hold: multiplies it by `inverse`, norms it and gates it. Columns that there
/// are not become 0, where V has zeros.
/// @param p the launch as the row's entry has it
/// @tparam kCount of this lane's columns
/// @param value value(i) is the lane's i-th, which is changed in place
/// @param column column(i) is where it lies in the row
template <const Problem& kProblem, int kLanes, int kCount, typename Value, typename Column>
__device__ __forceinline__ void finish_output(const FeatureParams& p, const OutputRow& at, float inverse,
                                              const Value& value, const Column& column) {
  static_assert(kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "of one warp");
  const ColumnFactors<kProblem> factors(p, at);
  float of_row = factors.of_row;
  if constexpr (kProblem.features.out_norm) {
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value(i) *= inverse;
      if (column(i) < p.out_columns) squares = fmaf(value(i), value(i), squares);
    }
#pragma unroll
    for (int lane = 1; lane < kLanes; lane *= 2) squares += __shfl_xor_sync(0xffffffffU, squares, lane);
    if (p.out_norm_weight != nullptr)
      of_row *= ptx::rsqrt_approx_ftz(squares / static_cast<float>(p.out_columns) + p.out_norm_eps);
  } else {
    of_row *= inverse;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    value(i) = column(i) < p.out_columns ? value(i) * of_row * factors.of_column(column(i)) : 0.0F;
}

}  // namespace heed::attention
