/// Where rows of a batch entry lie in the tensor maps of Hopper's families. Rows of all entries lie in one tensor where
/// a launch has cu_seqlens, and its map is that of a batch of 1: an entry's first row is added to every coordinate.
/// Boxes do not end where an entry does, so what is behind its end is read with it: rows of queries that are not
/// stored, scores that are masked, and values that consumers zero.
#pragma once

#include "kernels/attention/features.hpp"

namespace heed::sm90 {

/// Coordinates of an entry's first rows. Without lengths an empty type.
template <bool kLengths>
struct RowsInMaps {};
template <>
struct RowsInMaps<true> {
  int first_q = 0;
  int q_batch = 0;
  int first_k = 0;
  int k_batch = 0;
};

/// @param launch its parameters, or those that an entry has of it (of_entry)
__device__ __forceinline__ void find_rows(RowsInMaps<true>& rows, const ScoreFeatureParams& launch, int entry) {
  rows.q_batch = launch.cu_seqlens_q == nullptr ? entry : 0;
  rows.first_q = launch.cu_seqlens_q == nullptr ? 0 : launch.cu_seqlens_q[entry];
  rows.k_batch = launch.cu_seqlens_k == nullptr ? entry : 0;
  rows.first_k = launch.cu_seqlens_k == nullptr ? 0 : launch.cu_seqlens_k[entry];
}

}  // namespace heed::sm90
