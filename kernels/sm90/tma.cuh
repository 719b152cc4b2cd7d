/// What the TMA producers of Hopper families share: boxes of an operand, tensor maps ahead of their use, and the
/// stages of a ring.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::sm90 {

/// A stage of a ring and how often it was passed. Counted up and compared, not masked: this stays in uniform registers.
template <int kStages>
struct PipelineState {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Asks for kColumns columns of rows of one head, from row `row` on.
/// @param barrier counts the bytes
/// @param box of the columns, from the first on
/// @tparam kEvictFirst the L2 gives the lines up before others; it also does where `evict_first`
template <bool kEvictFirst = false, int kColumns = tile::kBoxColumns>
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, unsigned barrier, int box, int row,
                                         int head, int batch, bool evict_first = false) {
  if (kEvictFirst || evict_first)
    ptx::cp_async_bulk_tensor_4d_evict_first(to, map, barrier, box * kColumns, row, head, batch);
  else
    ptx::cp_async_bulk_tensor_4d(to, map, barrier, box * kColumns, row, head, batch);
}

/// Asks for an operand of one head: kBoxes boxes, one behind the other in shared memory, `box_bytes` apart.
template <int kBoxes, bool kEvictFirst = false, int kColumns = tile::kBoxColumns>
__device__ __forceinline__ void load_boxes(unsigned to, int box_bytes, const TensorMap& map, unsigned barrier, int row,
                                           int head, int batch) {
#pragma unroll
  for (int b = 0; b < kBoxes; ++b)
    load_box<kEvictFirst, kColumns>(to + b * box_bytes, map, barrier, b, row, head, batch);
}

/// A load waits for its tensor map, which comes from memory: those of the first loads, and those that are used later.
__device__ __forceinline__ void prefetch_first_maps(const TensorMaps& maps) {
  ptx::prefetch_tensormap(maps.q);
  ptx::prefetch_tensormap(maps.k);
}
template <bool kStoresO>
__device__ __forceinline__ void prefetch_later_maps(const TensorMaps& maps) {
  ptx::prefetch_tensormap(maps.v);
  if constexpr (kStoresO) ptx::prefetch_tensormap(maps.o);
}

}  // namespace heed::sm90
