/// The addresses of fwd_sm90_fp8's shared memory, the descriptors of operands there, and which KV tiles a Q tile has.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/sm90/fp8/config.hpp"

namespace heed::sm90_fp8 {

template <const Config& kConfig, const Problem& kProblem>
struct Layout {
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kColumns = box_columns(kDim);
  static constexpr int kBoxes = kDim / kColumns;
  static constexpr int kQBox = kWarpgroupRows * kColumns;   // bytes of 64 queries
  static constexpr int kKBox = kConfig.block_n * kColumns;  // bytes of a tile's keys

  unsigned shared;

  __device__ __forceinline__ unsigned barrier(int index) const { return shared + kPlan.barriers + 8 * index; }
  __device__ __forceinline__ unsigned q_full(int stage) const { return barrier(kBarriers.q_full + stage); }
  __device__ __forceinline__ unsigned q_empty(int stage) const { return barrier(kBarriers.q_empty + stage); }
  __device__ __forceinline__ unsigned k_full(int stage) const { return barrier(kBarriers.k_full + stage); }
  __device__ __forceinline__ unsigned k_empty(int stage) const { return barrier(kBarriers.k_empty + stage); }
  __device__ __forceinline__ unsigned v_full(int stage) const { return barrier(kBarriers.v_full + stage); }
  __device__ __forceinline__ unsigned v_empty(int stage) const { return barrier(kBarriers.v_empty + stage); }
  __device__ __forceinline__ unsigned queries(int stage, int m_warpgroup) const {
    return shared + kPlan.q + stage * kPlan.q_stage + m_warpgroup * kWarpgroupRows * kDim;
  }
  __device__ __forceinline__ unsigned keys(int stage) const { return shared + kPlan.k + stage * kPlan.operand; }
  __device__ __forceinline__ unsigned values(int stage) const { return shared + kPlan.v + stage * kPlan.operand; }
  /// Of a thread of a consumer warpgroup, 16 bytes; the next ones 16 x 128 bytes on.
  __device__ __forceinline__ unsigned sums(int m_warpgroup, int thread) const {
    return shared + kPlan.sums + 2 * m_warpgroup * kWarpgroupRows * kDim + 16 * thread;
  }
  /// Of a thread of a consumer warpgroup: two row maxima.
  __device__ __forceinline__ unsigned sums_max(int m_warpgroup, int thread) const {
    return shared + kPlan.sums_max + 8 * (m_warpgroup * kWarpgroupThreads + thread);
  }
  __device__ __forceinline__ unsigned q_tile(int stage) const { return shared + kPlan.q_tiles + 16 * stage; }
  __device__ __forceinline__ unsigned claim() const { return shared + kPlan.claim; }

  /// Of rows of this many bytes, K-major with the swizzle of their size: eight rows are an atom.
  template <int kRowBytes>
  __device__ __forceinline__ static unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
    return kSwizzle << 62 | static_cast<unsigned long long>(8 * kRowBytes >> 4) << 32 | (address & 0x3FFFFU) >> 4;
  }
  /// Added to a descriptor: step k of 32 columns of Q or K, whose boxes are `box` bytes.
  __device__ __forceinline__ static constexpr unsigned long long step(int k, int box) {
    return static_cast<unsigned long long>((k * 32 / kColumns * box + k * 32 % kColumns) >> 4);
  }
};

/// The KV tiles of a Q tile: [first, end), of which [full_first, full_end) all rows of it see whole.
struct KvTiles {
  int first;
  int end;
  int full_first;
  int full_end;
};
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ KvTiles kv_tiles(const ForwardParams& p, int q_tile) {
  constexpr int kKeys = kConfig.block_n;
  const int begin = q_tile * block_rows(kConfig);
  const int end = min(begin + block_rows(kConfig), p.len_q);
  const auto span = key_span<kProblem.mask>(mask_bounds(p), begin, end);
  KvTiles tiles{span.begin / kKeys, (span.end + kKeys - 1) / kKeys, (span.full_begin + kKeys - 1) / kKeys,
                span.full_end / kKeys};
  if (span.begin >= span.end) tiles.end = tiles.first;
  return tiles;
}

/// The Q tile that comes `index`-th, in the order of the config.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ attention::QTile q_tile_of(const ForwardParams& p, int index) {
  const int q_tiles = (p.len_q + block_rows(kConfig) - 1) / block_rows(kConfig);
  const int together = attention::heads_together(kProblem.head_dim, p.len_k, p.heads_kv * p.batch) * p.group_size;
  return attention::q_tile_of_all(kConfig.tile_order, index, q_tiles, p.heads, p.batch, together);
}

/// A stage of a ring and how often it was passed.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace heed::sm90_fp8
