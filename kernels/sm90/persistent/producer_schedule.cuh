/// Which Q tiles the producer of fwd_sm90_persistent goes through (Scheduler), and when it asks for the next.
#pragma once

#include "kernels/ptx/global.cuh"
#include "kernels/sm90/persistent/stream_k.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct ProducerSchedule {
  static constexpr bool kOneTile = kConfig.scheduler == Scheduler::single_tile;
  static constexpr bool kStreamK = streams(kConfig);
  /// Whether Q tiles are drawn from a counter; of Scheduler::stream_k where it divides none.
  static constexpr bool kDraws = kConfig.scheduler == Scheduler::dynamic_persistent || kStreamK;
  // Turns of a Q tile that are still to be asked for when the next Q tile is drawn: an atomic in the L2 takes less
  // than one. With 1, 2, 3 and 4 times are equal to 1%.
  static constexpr int kDrawnAhead = 2;

  const Params<kProblem>& params;  ///< of the launch, or of an entry
  SmemLayout<kConfig, kProblem> smem;

  /// Of schedules in which blocks stay: which Q tile is this virtual CTA's first, and how many virtual CTAs there are.
  __device__ __forceinline__ int first() const {
    if constexpr (kStreamK) return first_of_part(smem);
    return blockIdx.x * kConfig.virtual_ctas + smem.virtual_cta.index;
  }
  __device__ __forceinline__ int virtual_ctas() const { return gridDim.x * kConfig.virtual_ctas; }
  /// Of the last block's virtual CTAs some may have no Q tile.
  __device__ __forceinline__ bool has_q_tiles() const {
    return (kConfig.virtual_ctas == 1 && !kStreamK) || first() < end();
  }
  /// Of Scheduler::stream_k, those before the end of this CTA's part.
  __device__ __forceinline__ int end() const {
    if constexpr (kStreamK) return end_of_part(smem);
    return q_tiles() * params.heads * params.batch;
  }
  __device__ __forceinline__ int q_tiles() const {
    return (params.len_q + block_rows(kConfig) - 1) / block_rows(kConfig);
  }
  /// Of schedules in which blocks stay: the Q tile that comes `index`-th.
  __device__ __forceinline__ QTile q_tile(int index) const {
    const int together =
        attention::heads_together(kProblem.head_dim, params.len_k, params.heads_kv * params.batch) * params.group_size;
    return attention::q_tile_of_all(kConfig.tile_order, index, q_tiles(), params.heads, params.batch, together);
  }
  __device__ __forceinline__ QTile first_q_tile() const {
    if constexpr (kOneTile) {
      return q_tile_of_this_cta<kConfig, kProblem>();
    } else {
      return q_tile(first());
    }
  }
  /// Of Scheduler::stream_k, the inverse of q_tile.
  __device__ __forceinline__ int index_of(const QTile& tile) const {
    return (tile.batch * params.heads + tile.head) * q_tiles() + q_tiles() - 1 - tile.index;
  }
  /// The blocks together draw as many tickets as there are Q tiles, the last of each included: back at zero then.
  /// Of Scheduler::stream_k pieces are counted in the same semaphores, in launches that draw none.
  __device__ __forceinline__ int following(int index, int total) const {
    if constexpr (kStreamK)
      if (is_divided(smem)) return index + 1;
    // Relaxed: it orders nothing, and to wait for its end would hold up the loads behind it.
    if constexpr (kDraws) return virtual_ctas() + ptx::atom_inc_relaxed_gpu(params.semaphores, total - 1);
    return index + virtual_ctas();
  }

  /// The iteration of a Q tile, of so many KV tiles, in which it is decided which one comes next. A counter is asked as
  /// late as its answer is sure to be there in time: of blocks that draw while their Q tiles have just begun some
  /// draw long ones when others are nearly done. In front of the first iteration / like this on an H200, causal, us:
  /// three to six waves b1h48l2048d128 107 / 96.5, b5h16l1024d128 59.9 / 51.3, b3h32l2048d64 120 / 105.5, b3h8l2048d256
  /// 121 / 103; sixteen b4h8l4096d256 464 / 444, b8h16l2048d128 255.6 / 251.7, b32h16l512d128 103.5 / 104.2.
  __device__ __forceinline__ static int iteration_of_draw(const Range& tiles) {
    if constexpr (!kDraws) return 0;
    return max(0, iterations_of(kConfig, tiles.end - tiles.first) - kDrawnAhead);
  }
};

}  // namespace heed::sm90_persistent
