/// The products of fwd_sm90_split: wgmma on boxes in shared memory.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
#pragma once

#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/tma_producer.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::sm90_split {

/// What a warpgroup has to know of its place to multiply, and the output it adds to.
template <const Config& kConfig, const Problem& kProblem>
struct Gemms : TmaProducer<kConfig, kProblem> {
  using Base = TmaProducer<kConfig, kProblem>;
  using Base::kPlan, Base::kBoxes, Base::kBlockN, Base::keys_at, Base::values_at, Base::shared;
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kOutColumns = out_columns(kConfig, kProblem.head_dim);
  static constexpr bool kOnes = kConfig.rowsum == Rowsum::mma;

  int m_warpgroup;
  int kv_group;
  float acc_o[kOutColumns / 2];  // (64, kOutColumns): two rows a lane

  __device__ __forceinline__ Gemms(const ForwardParams& p, const TensorMaps& m, unsigned shared_address)
      : Base{p, m, shared_address, 0, 0, 0} {}

  __device__ __forceinline__ unsigned long long q_descriptor() const {
    return tile::matrix_descriptor(shared + kPlan.q + m_warpgroup * kBoxes * kWarpgroupRows * tile::kBoxRowBytes, 16);
  }
  __device__ __forceinline__ unsigned long long k_descriptor(int slot) const {
    return tile::matrix_descriptor(keys_at(kv_group, slot), 16);
  }
  /// Column 64 lies one box stride behind the values: the tile of ones, wherever a step's values are.
  __device__ __forceinline__ unsigned long long v_descriptor(int slot) const {
    const unsigned values = values_at(kv_group, slot);
    return tile::matrix_descriptor(values, kOnes ? shared + kPlan.ones - values : kPlan.value_box);
  }

  /// Asks for the scores of an n-block: one committed group.
  __device__ __forceinline__ void gemm_qk(float (&into)[kBlockN / 2], unsigned long long q, unsigned long long keys,
                                          int n_block) const {
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
  __device__ __forceinline__ void gemm_pv(const unsigned (&p)[4], unsigned long long values, int offset,
                                          bool accumulate) {
    const unsigned long long v =
        values + tile::descriptor_advance(offset) - (kOnes ? tile::descriptor_box_stride(offset) : 0);
    ptx::wgmma_rs<kProblem.element, kOutColumns>(acc_o, p, v, accumulate);
  }

  /// Halves of the output where columns are multiplied in two goes: those of the slice that is sent, then the split's
  /// own (PvSplitN::on).
  using Slice = float[kDim / 4];
  __device__ __forceinline__ Slice& sent() { return reinterpret_cast<Slice&>(acc_o[0]); }
  __device__ __forceinline__ Slice& kept() { return reinterpret_cast<Slice&>(acc_o[kDim / 4]); }
  /// The same product with the values of one slice's columns.
  __device__ __forceinline__ static void gemm_pv_slice(Slice& into, const unsigned (&p)[4], unsigned long long values,
                                                       int slice, int offset, bool accumulate) {
    constexpr int kSliceBytes = kBoxes / 2 * kPlan.value_box;
    ptx::wgmma_rs<kProblem.element, kDim / 2>(
        into, p, values + slice * tile::descriptor_advance(kSliceBytes) + tile::descriptor_advance(offset), accumulate);
  }
};

}  // namespace heed::sm90_split
