/// V transposed, for products of 8-bit operands, which take both with rows along the contraction: here keys. CTAs of a
/// launch transpose V piece by piece into the workspace before they take Q tiles, and copies of V wait for all pieces.
///
/// The workspace holds slab after slab, those of a head in a row, as they lie in shared memory later:
///
///                  positions 0 .. 15     positions 16 .. 31
///     column d   | half 0              | half 1             |   32 bytes; halves are swapped where d / 4 is odd, which
///     column d+1 | ..                  | ..                 |   is the swizzle of rows of 32 bytes
///
/// A sum over keys does not ask for their order, so position 16 h + 4 c + 2 i + e holds key 16 h + 8 i + 2 c + e: the
/// accumulators of S, in which lane c of a quad has keys 8 j + 2 c + {0, 1}, are then the A operand of P V without any
/// exchange. FlashAttention-3 permutes K instead, and transposes V in shared memory (arXiv 2407.08608, 3.3).
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/bytes.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/fp8/config.hpp"
#include "kernels/sm90/fp8/entry_pieces.cuh"

namespace heed::sm90_fp8 {

template <const Config& kConfig, const Problem& kProblem>
struct TransposedValues {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kSlabBytes = kSlabKeys * kDim;
  static constexpr int kSlabThreads = kDim / 4;  // each has four columns
  static constexpr int kPieceSlabs = threads(kConfig) / kSlabThreads;
  static constexpr bool kEntries = entries_differ(kProblem.features);
  using Pieces = PieceCount<kEntries>;

  const ScoreFeatureParams& params;  ///< of the launch

  /// Keys that some row sees; of those behind them V^T has zeros. Where entries differ, room for the most that one has.
  __device__ __forceinline__ int keys() const {
    if constexpr (kEntries) return params.len_k;
    return visible_keys(kProblem.mask, params.len_q - 1, params.right_offset, params.len_k);
  }
  /// Slabs of a head: whole KV tiles.
  __device__ __forceinline__ int slabs() const { return static_cast<int>(padded_keys(kConfig, keys())) / kSlabKeys; }
  __device__ __forceinline__ int pieces_of_head() const { return (slabs() + kPieceSlabs - 1) / kPieceSlabs; }
  __device__ __forceinline__ unsigned pieces() const {
    return static_cast<unsigned>(pieces_of_head()) * static_cast<unsigned>(params.heads_kv * params.batch);
  }
  /// Slab `slab` of head `kv_head` of entry `batch`.
  __device__ __forceinline__ char* slab_at(int batch, int kv_head, int slab) const {
    const long long head = static_cast<long long>(batch) * params.heads_kv + kv_head;
    return static_cast<char*>(params.workspace) + (head * slabs() + slab) * kSlabBytes;
  }

  /// Claims pieces and transposes them until none is left. All threads of the block. Whoever waits for pieces waits for
  /// CTAs that run: which CTA takes which is not known before, so that no launch needs all its CTAs at once.
  /// @param claim shared address of two words
  __device__ __forceinline__ Pieces run(unsigned claim) const {
    const unsigned all = kEntries ? 0 : pieces();
    [[maybe_unused]] EntryPieces<kConfig, kProblem> entries{kPieceSlabs, static_cast<int>(threadIdx.x) % 32};
    [[maybe_unused]] EntryPiece at;
    if (threadIdx.x == 0) ptx::st_shared(claim, claimed());
    __syncthreads();
    unsigned transposed = 0;
    for (int turn = 0;; turn ^= 1, ++transposed) {
      const unsigned piece = ptx::ld_shared(claim + 4 * turn);
      if constexpr (kEntries) {
        if (!entries.find(params, piece, at)) break;
      } else {
        if (piece >= all) break;
      }
      // On its way while this piece is transposed.
      unsigned next = 0;
      if (threadIdx.x == 0) next = claimed();
      if constexpr (kEntries)
        transpose_of_entry(at);
      else
        transpose(piece);
      if (threadIdx.x == 0) ptx::st_shared(claim + 4 * (turn ^ 1), next);
      ptx::fence_proxy_async_global();
      __syncthreads();
    }
    // The first one releases what all of the block have written, and the others are counted after it.
    Pieces all_pieces;
    if constexpr (kEntries) all_pieces.all = entries.before;
    if (threadIdx.x != 0 || transposed == 0) return all_pieces;
    ptx::atom_inc_acq_rel_gpu(params.semaphores + done_pieces, 0xffffffffU);
    for (unsigned i = 1; i < transposed; ++i) ptx::atom_inc_relaxed_gpu(params.semaphores + done_pieces, 0xffffffffU);
    return all_pieces;
  }

  /// By one thread, before its first copy of V.
  /// @param of what run() gave
  __device__ __forceinline__ void wait(const Pieces& of) const {
    if constexpr (kEntries)
      ptx::wait_for_word(params.semaphores + done_pieces, of.all);
    else
      ptx::wait_for_word(params.semaphores + done_pieces, pieces());
    ptx::fence_proxy_async_global();
  }

  /// By one thread of each CTA, which asks for nothing of this any more.
  __device__ __forceinline__ void leave() const {
    if (ptx::atom_inc_acq_rel_gpu(params.semaphores + ctas_done, gridDim.x - 1) != gridDim.x - 1) return;
    params.semaphores[claimed_pieces] = 0;
    params.semaphores[done_pieces] = 0;
  }

 private:
  __device__ __forceinline__ unsigned claimed() const {
    return ptx::atom_inc_relaxed_gpu(params.semaphores + claimed_pieces, 0xffffffffU);
  }

  __device__ __forceinline__ void transpose(unsigned piece) const {
    const int of_head = pieces_of_head();
    const int head = static_cast<int>(piece) / of_head;
    const int slab =
        (static_cast<int>(piece) - head * of_head) * kPieceSlabs + static_cast<int>(threadIdx.x) / kSlabThreads;
    if (static_cast<int>(threadIdx.x) >= kPieceSlabs * kSlabThreads || slab >= slabs()) return;
    const int batch = head / params.heads_kv;
    const int kv_head = head - batch * params.heads_kv;
    const int column = static_cast<int>(threadIdx.x) % kSlabThreads * 4;
    const auto* from =
        static_cast<const char*>(params.v) + batch * params.v_strides.batch + kv_head * params.v_strides.head + column;
    const int first = slab * kSlabKeys;
    const int end = keys();
    unsigned of_key[kSlabKeys];  // four columns each
#pragma unroll
    for (int k = 0; k < kSlabKeys; ++k)
      of_key[k] = first + k < end ? *reinterpret_cast<const unsigned*>(from + (first + k) * params.v_strides.row) : 0;
    write(slab_at(batch, kv_head, slab), of_key, column);
  }

  /// The same where entries have keys of their own, by one row of a page after the other where they lie in pages.
  __device__ __forceinline__ void transpose_of_entry(const EntryPiece& piece) const {
    const int slab = piece.slab + static_cast<int>(threadIdx.x) / kSlabThreads;
    if (static_cast<int>(threadIdx.x) >= kPieceSlabs * kSlabThreads || slab >= piece.end_slab) return;
    const attention::ParamsOfEntry<kProblem> own = attention::params_of_entry<kProblem>(params, piece.entry);
    const int column = static_cast<int>(threadIdx.x) % kSlabThreads * 4;
    const auto* from = static_cast<const char*>(own.v) + piece.kv_head * own.v_strides.head + column;
    unsigned of_key[kSlabKeys];
#pragma unroll
    for (int k = 0; k < kSlabKeys; k += kPageStep) {
      const int first = slab * kSlabKeys + k;
      const bool is_seen = first < piece.end && first + kPageStep > piece.begin;  // else the table may lack its page
      const auto* row = from + (is_seen ? key_offset(own, own.v_strides, piece.entry, first) : 0);
#pragma unroll
      for (int i = 0; i < kPageStep; ++i)
        of_key[k + i] = first + i >= piece.begin && first + i < piece.end
                            ? *reinterpret_cast<const unsigned*>(row + i * own.v_strides.row)
                            : 0;
    }
    write(slab_at(piece.entry, piece.kv_head, slab), of_key, column);
  }

  /// Four columns of a slab, one after the other.
  __device__ __forceinline__ static void write(char* to, const unsigned (&of_key)[kSlabKeys], int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned of_column[4][4];  // four positions each
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const unsigned* k = of_key + 16 * h + 2 * c;
        const unsigned first_low = ptx::prmt(k[0], k[1], 0x5140);  // columns 0 and 1 of both keys
        const unsigned first_high = ptx::prmt(k[0], k[1], 0x7362);
        const unsigned next_low = ptx::prmt(k[8], k[9], 0x5140);
        const unsigned next_high = ptx::prmt(k[8], k[9], 0x7362);
        of_column[0][c] = ptx::prmt(first_low, next_low, 0x5410);
        of_column[1][c] = ptx::prmt(first_low, next_low, 0x7632);
        of_column[2][c] = ptx::prmt(first_high, next_high, 0x5410);
        of_column[3][c] = ptx::prmt(first_high, next_high, 0x7632);
      }
      const int half = h ^ (column / 4 & 1);
#pragma unroll
      for (int d = 0; d < 4; ++d) ptx::st_global_v4(to + (column + d) * kSlabKeys + 16 * half, of_column[d]);
    }
  }
};

}  // namespace heed::sm90_fp8
