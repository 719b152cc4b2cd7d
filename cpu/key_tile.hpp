/// Tiles of K and V as the vector unit reads them: fp32 rows, where they lie in memory, or converted into scratch.
#pragma once

#include "cpu/config.hpp"
#include "cpu/features.hpp"
#include "cpu/simd.hpp"

namespace heed::cpu {

struct KeyTile {
  const float* rows;
  long long row_stride;
  [[nodiscard]] KeyTile from(int row) const { return {rows + row * row_stride, row_stride}; }
};

/// Rows [tile, tile + count) of a head of K or V.
struct KeyRows {
  long long batch;
  long long kv_head;
  int tile;
  int count;
  int keys_end;  ///< of the keys that are walked: none beyond is fetched ahead
};

/// @param scratch (count, head_dim); not used where rows are read as they lie
template <Config kConfig, Problem kProblem, Element kElement, typename Params>
inline KeyTile loaded_tile(const Params& params, const void* tensor, const TensorStrides& strides, const KeyRows& of,
                           float* scratch) {
  using Memory = Stored<kElement>;
  constexpr int kDim = kProblem.head_dim;
  constexpr bool kPages = kProblem.features.pages;
  constexpr bool kConverts = sizeof(Memory) != sizeof(float);
  if constexpr (kPages) {
    for (int j = 0; j < of.count; ++j) {
      const long long row = row_of_keys<true>(params, strides, of.batch, of.kv_head, of.tile + j);
      if constexpr (kConverts)
        convert_row<kElement>(static_cast<const Memory*>(tensor) + row, scratch + j * kDim, kDim);
      else
        for (int d = 0; d < kDim; ++d) scratch[j * kDim + d] = static_cast<const float*>(tensor)[row + d];
    }
    return {scratch, kDim};
  } else {
    const long long first = row_of_keys<false>(params, strides, of.batch, of.kv_head, of.tile);
    const auto* rows = static_cast<const Memory*>(tensor) + first;
    const auto fetch = [&](int j) {
      if constexpr (kConfig.prefetch > 0)
        if (of.tile + j + kConfig.prefetch < of.keys_end)
          __builtin_prefetch(rows + (j + kConfig.prefetch) * strides.row);
    };
    if constexpr (kConverts) {
      for (int j = 0; j < of.count; ++j) {
        fetch(j);
        convert_row<kElement>(rows + j * strides.row, scratch + j * kDim, kDim);
      }
      return {scratch, kDim};
    } else {
      if constexpr (kConfig.prefetch > 0)
        for (int j = 0; j < of.count; ++j) fetch(j);
      return {rows, strides.row};
    }
  }
}

/// Rows of quantised K or V, each element times the factor of its place (kernels/attention/scales.hpp), in scratch.
template <Problem kProblem, Element kElement>
inline KeyTile dequantised_tile(const FeatureParams& params, const void* tensor, const TensorStrides& strides,
                                const TensorScales& scales, const KeyRows& of, float* scratch) {
  constexpr int kDim = kProblem.head_dim;
  for (int j = 0; j < of.count; ++j) {
    const long long row = row_of_keys<kProblem.features.pages>(params, strides, of.batch, of.kv_head, of.tile + j);
    const long long factor =
        key_scale_index(params, scales, static_cast<int>(of.batch), static_cast<int>(of.kv_head), of.tile + j);
    dequantise_row<kElement>(static_cast<const Stored<kElement>*>(tensor) + row, scales.at + factor,
                             scales.channel != 0, scratch + j * kDim, kDim);
  }
  return {scratch, kDim};
}

}  // namespace heed::cpu
