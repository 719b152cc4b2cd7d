/// fwd_sm90_persistent: how CTAs divide the lists of blocks of a launch (Scheduler::stream_k). Shared by the host, nvcc
/// and NVRTC.
///
/// The Q tiles of a launch, one after the other, are a stream of blocks of keys; each CTA takes an equal part of it,
/// and a Q tile that lies in the parts of several CTAs is computed in pieces (Stream-K: Osama et al., arXiv
/// 2301.03598). A list may be as long as all keys beside others of a few blocks, as the rows of global tokens are in
/// Longformer (Beltagy et al., arXiv 2004.05150): with a CTA for each Q tile, a launch takes as long as its longest
/// list.
#pragma once

#include "kernels/contract.hpp"

namespace heed::sm90_persistent {

/// Blocks that a piece has at least; where a CTA's part would begin or end with fewer, its neighbour takes them.
inline constexpr int kLeastPiece = 2;
/// What a Q tile costs beside its blocks, in blocks.
inline constexpr int kTileCost = 1;

/// The lists of a launch and its CTAs.
struct Stream {
  long long total = 0;  ///< blocks of all lists, and kTileCost for each Q tile
  int longest = 0;      ///< blocks of the longest list, for divides()
  int ctas = 1;         ///< persistent CTAs, virtual ones counted

  /// CTAs with a part, which are the first: of fewer than two pieces a part is not worth its merge.
  [[nodiscard]] HEED_HOST_DEVICE constexpr int parts() const {
    const long long most = total / (2 * kLeastPiece);
    return most < 1 ? 1 : most < ctas ? static_cast<int>(most) : ctas;
  }
  /// Whether Q tiles are divided: one has more blocks than half a CTA's part. Otherwise whole Q tiles, drawn as CTAs
  /// finish, are even enough, and CTAs that are at lists of one head read the same keys out of the L2.
  [[nodiscard]] HEED_HOST_DEVICE constexpr bool divides() const { return 2LL * longest * ctas > total; }
  /// Where part `index` begins, of parts() + 1.
  [[nodiscard]] HEED_HOST_DEVICE constexpr long long begin(int index) const { return total * index / parts(); }
};

/// A Q tile's place in the stream.
struct StreamTile {
  long long begin;
  int blocks;

  [[nodiscard]] HEED_HOST_DEVICE constexpr long long end() const { return begin + blocks + kTileCost; }
  /// Blocks in front of a cut at `at`, which lies in the tile: none or all where few would be on one side.
  [[nodiscard]] HEED_HOST_DEVICE constexpr int cut(long long at) const {
    const int before = static_cast<int>(at - begin) - kTileCost;
    if (before < kLeastPiece) return 0;
    return blocks - before < kLeastPiece ? blocks : before;
  }
};

/// The pieces of a Q tile, which consecutive CTAs have.
struct Pieces {
  int count;
  int first_cta;
  constexpr bool operator==(const Pieces&) const = default;
};

/// @param tile with a cut between its blocks
HEED_HOST_DEVICE constexpr Pieces pieces_of(const Stream& stream, const StreamTile& tile) {
  // The first part that begins so far behind the tile's start, and the first that begins too near its end.
  const auto first_from = [&](long long at) {
    return static_cast<int>((at * stream.parts() + stream.total - 1) / stream.total);
  };
  const int first = first_from(tile.begin + kTileCost + kLeastPiece);
  const int end = first_from(tile.end() - kLeastPiece + 1);
  return {end - first + 1, first - 1};
}

/// The workspace: two pieces for each CTA, the one that ends a Q tile which a CTA before has begun, and the one that
/// begins a Q tile; of each, warp by warp, the registers of the output and four of the rows' state, 16 bytes a lane.
HEED_HOST_DEVICE constexpr long long piece_floats(int head_dim) {
  return 32LL * (head_dim / 2 + 4);
}
/// @param warps of the consumers of a virtual CTA
HEED_HOST_DEVICE constexpr long long piece_at(int cta, bool begins_tile, int warps, int warp, int head_dim) {
  return ((2LL * cta + (begins_tile ? 1 : 0)) * warps + warp) * piece_floats(head_dim);
}
HEED_HOST_DEVICE constexpr long long stream_workspace_bytes(long long ctas, int warps, int head_dim) {
  return 4 * 2 * ctas * warps * piece_floats(head_dim);
}

}  // namespace heed::sm90_persistent
