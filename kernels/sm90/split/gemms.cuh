/// The products of fwd_sm90_split: wgmma on boxes in shared memory.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
#pragma once

#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/cta_tile.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::sm90_split {

/// A consumer warpgroup's output, and the products that scores and it are made of.
template <const Config& kConfig, const Problem& kProblem>
struct Gemms {
  using Smem = SmemLayout<kConfig, kProblem>;
  using Warpgroup = sm90_split::Warpgroup<kConfig>;

  // ---- compile-time facts
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr int kOutRegisters = out_columns(kConfig, kProblem.head_dim) / 2;
  static constexpr bool kOnes = kConfig.rowsum == Rowsum::mma;
  static_assert(kDim % 64 == 0 && kBlockN % kMmaK == 0, "wgmma takes 16 keys at a time and boxes of 64 columns");

  // ---- state
  float acc_o[kOutRegisters];  // (64, head dim, and columns of ones): two rows a lane

  __device__ __forceinline__ static unsigned long long q_descriptor(const Smem& smem, const Warpgroup& warpgroup) {
    return tile::matrix_descriptor(
        smem.shared + kPlan.q + warpgroup.m_warpgroup * kBoxes * kWarpgroupRows * tile::kBoxRowBytes, 16);
  }
  __device__ __forceinline__ static unsigned long long k_descriptor(const Smem& smem, const Warpgroup& warpgroup,
                                                                    int slot) {
    return tile::matrix_descriptor(smem.keys(warpgroup.kv_group, slot), 16);
  }
  /// Column 64 lies one box stride behind the values: the tile of ones, wherever a step's values are.
  __device__ __forceinline__ static unsigned long long v_descriptor(const Smem& smem, const Warpgroup& warpgroup,
                                                                    int slot) {
    const unsigned values = smem.values(warpgroup.kv_group, slot);
    return tile::matrix_descriptor(values, kOnes ? smem.shared + kPlan.ones - values : kPlan.value_box);
  }

  /// Asks for the scores of an n-block: one committed group.
  __device__ __forceinline__ static void qk(float (&into)[kBlockN / 2], unsigned long long q, unsigned long long keys,
                                            int n_block) {
    const unsigned long long k = keys + tile::descriptor_advance(n_block * kBoxes * kPlan.key_box);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
      ptx::wgmma_ss<kProblem.element, kBlockN>(
          into, q + tile::descriptor_advance(i / 4 * kWarpgroupRows * tile::kBoxRowBytes + i % 4 * 32),
          k + tile::descriptor_advance(i / 4 * kPlan.key_box + i % 4 * 32), i != 0);
    ptx::wgmma_commit_group();
  }

  /// Adds the product of 16 probabilities a row with their values, `offset` bytes on from the iteration's.
  __device__ __forceinline__ void pv(const unsigned (&p)[4], unsigned long long values, int offset, bool accumulate) {
    const unsigned long long v =
        values + tile::descriptor_advance(offset) - (kOnes ? tile::descriptor_box_stride(offset) : 0);
    ptx::wgmma_rs<kProblem.element, 2 * kOutRegisters>(acc_o, p, v, accumulate);
  }

  /// Halves of the output where columns are multiplied in two goes: those of the slice that is sent, then the split's
  /// own (PvSplitN::on).
  using Slice = float[kDim / 4];
  __device__ __forceinline__ Slice& sent() { return reinterpret_cast<Slice&>(acc_o[0]); }
  __device__ __forceinline__ Slice& kept() { return reinterpret_cast<Slice&>(acc_o[kDim / 4]); }
  /// The same product with the values of one slice's columns.
  __device__ __forceinline__ static void pv_slice(Slice& into, const unsigned (&p)[4], unsigned long long values,
                                                  int slice, int offset, bool accumulate) {
    constexpr int kSliceBytes = kBoxes / 2 * kPlan.value_box;
    ptx::wgmma_rs<kProblem.element, kDim / 2>(
        into, p, values + slice * tile::descriptor_advance(kSliceBytes) + tile::descriptor_advance(offset), accumulate);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOutRegisters; ++i) acc_o[i] = 0.0F;
  }
};

}  // namespace heed::sm90_split
