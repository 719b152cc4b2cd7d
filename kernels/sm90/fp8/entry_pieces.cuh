/// Pieces of V (transposed_values.cuh) where entries of a batch have keys of their own: an entry has as many as its
/// keys need, head after head, and pieces are counted entry after entry, so that CTAs claim none without work.
///
/// Which entry a piece is of every warp works out from the lengths in global memory, 32 entries at a time. Pieces that
/// a CTA claims only grow, so that it goes through the batch once.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/sm90/fp8/entries.hpp"

namespace heed::sm90_fp8 {

/// Where the first slab of a piece lies, and which keys of the entry some row sees: of all others V^T has zeros, as
/// they may be NaN.
struct EntryPiece {
  int entry;
  int kv_head;
  int slab;
  int end_slab;  ///< of the entry's heads
  int begin;
  int end;
};

template <const Config& kConfig, const Problem& kProblem>
struct EntryPieces {
  static constexpr unsigned kAll = 0xffffffffU;
  static constexpr int kTileSlabs = kConfig.block_n / kSlabKeys;

  int piece_slabs;
  int lane;
  int first = -32;      // of the 32 entries that are looked at
  unsigned before = 0;  // pieces of those in front of them
  unsigned mine = 0;    // pieces of the lane's entry
  unsigned end = 0;     // pieces of these entries up to the lane's
  unsigned of_these = 0;

  /// The keys of an entry that some row sees, in slabs of whole KV tiles.
  /// @param own the launch as the entry has it
  __device__ __forceinline__ static EntryPiece keys_of(const ScoreFeatureParams& own) {
    EntryPiece keys{};
    if (own.len_q == 0) return keys;
    keys.end = visible_keys(kProblem.mask, own.len_q - 1, own.right_offset, own.len_k);
    keys.begin = hidden_keys(kProblem.mask, 0, own.left_offset, own.len_k);
    if (keys.begin > keys.end) keys.begin = keys.end;
    keys.slab = keys.begin / kConfig.block_n * kTileSlabs;
    keys.end_slab = static_cast<int>(padded_keys(kConfig, keys.end)) / kSlabKeys;
    return keys;
  }
  __device__ __forceinline__ int pieces_of_head(const EntryPiece& keys) const {
    return (keys.end_slab - keys.slab + piece_slabs - 1) / piece_slabs;
  }

  /// Finds the piece, which is behind those that were asked for before. For whole warps.
  /// @return false where there are no more: `before` is then the number of all
  __device__ __forceinline__ bool find(const ScoreFeatureParams& launch, unsigned piece, EntryPiece& at) {
    while (piece >= before + of_these) {
      before += of_these;
      first += 32;
      of_these = 0;
      if (first >= launch.batch) {
        first = launch.batch;
        return false;
      }
      mine = 0;
      if (first + lane < launch.batch)
        mine = static_cast<unsigned>(
            pieces_of_head(keys_of(attention::params_of_entry<kProblem>(launch, first + lane))) * launch.heads_kv);
      end = mine;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const unsigned others = __shfl_sync(kAll, end, lane - by);
        if (lane >= by) end += others;
      }
      of_these = __shfl_sync(kAll, end, 31);
    }
    int in_front = before + end <= piece ? 1 : 0;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) in_front += __shfl_xor_sync(kAll, in_front, mask);
    const int index = static_cast<int>(piece - before - __shfl_sync(kAll, end - mine, in_front));
    at = keys_of(attention::params_of_entry<kProblem>(launch, first + in_front));
    at.entry = first + in_front;
    const int of_head = pieces_of_head(at);
    at.kv_head = index / of_head;
    at.slab += (index - at.kv_head * of_head) * piece_slabs;
    return true;
  }
};

/// How many pieces there are. Where entries do not differ an empty type, as that follows from the launch's parameters.
template <bool kEntries>
struct PieceCount {};
template <>
struct PieceCount<true> {
  unsigned all = 0;
};

}  // namespace heed::sm90_fp8
