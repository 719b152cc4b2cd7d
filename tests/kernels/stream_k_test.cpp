// Stream-K over lists of blocks: every block is one CTA's, and CTAs agree on the pieces of a Q tile.
#include "kernels/sm90/persistent/stream_k.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.hpp"

namespace heed::sm90_persistent {
namespace {

struct Part {
  int tile;
  int begin;  // blocks
  int end;
  int cta;
};

// Of parts that begin and end where Stream says, in the order of the stream.
std::vector<Part> divided(const Stream& stream, const std::vector<int>& lists) {
  std::vector<Part> parts;
  StreamTile tile{0, 0};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    tile.blocks = lists[i];
    for (int cta = 0; cta < stream.parts(); ++cta) {
      const long long begins = stream.begin(cta);
      const long long ends = stream.begin(cta + 1);
      if (ends <= tile.begin || begins >= tile.end()) continue;
      const int begin = begins <= tile.begin ? 0 : tile.cut(begins);
      const int end = ends >= tile.end() ? tile.blocks : tile.cut(ends);
      const bool is_first = begins <= tile.begin;
      if (begin < end || (tile.blocks == 0 && is_first)) parts.push_back({static_cast<int>(i), begin, end, cta});
    }
    tile.begin = tile.end();
  }
  return parts;
}

Stream stream_of(const std::vector<int>& lists, int ctas) {
  Stream stream{.ctas = ctas};
  for (const int blocks : lists) {
    stream.total += blocks + kTileCost;
    stream.longest = std::max(stream.longest, blocks);
  }
  return stream;
}

TEST(StreamK, EveryBlockIsInOnePieceAndPiecesAreCounted) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> lists(1 + random.below(40));
    const int most = 1 + static_cast<int>(random.below(60));
    for (int& blocks : lists)
      blocks = random.below(8) == 0 ? 3 * most : static_cast<int>(random.below(static_cast<std::size_t>(most)));
    const Stream stream = stream_of(lists, 1 + static_cast<int>(random.below(30)));
    const std::vector<Part> parts = divided(stream, lists);
    std::size_t next = 0;
    StreamTile tile{0, 0};
    for (std::size_t i = 0; i < lists.size(); ++i) {
      tile.blocks = lists[i];
      int from = 0;
      std::vector<Part> pieces;
      for (; next < parts.size() && parts[next].tile == static_cast<int>(i); ++next) {
        ASSERT_EQ(parts[next].begin, from);
        from = parts[next].end;
        pieces.push_back(parts[next]);
      }
      ASSERT_EQ(from, lists[i]) << "round " << round << ", list " << i;
      ASSERT_FALSE(pieces.empty());
      if (pieces.size() > 1) {
        const Pieces counted = pieces_of(stream, tile);
        ASSERT_EQ(counted, (Pieces{static_cast<int>(pieces.size()), pieces.front().cta}));
        for (std::size_t p = 0; p < pieces.size(); ++p) {
          ASSERT_EQ(pieces[p].cta, counted.first_cta + static_cast<int>(p));
          ASSERT_GE(pieces[p].end - pieces[p].begin, kLeastPiece);
        }
      }
      tile.begin = tile.end();
    }
    ASSERT_EQ(next, parts.size());
  }
}

TEST(StreamK, PartsAreEqualToAPieceAndOnlyLongListsAreDivided) {
  // A global row of 128 blocks beside 127 of 9, as Longformer's at 16,384 tokens.
  std::vector<int> lists(128, 9);
  lists[0] = 128;
  const Stream stream = stream_of(lists, 16);
  EXPECT_TRUE(stream.divides());
  std::vector<int> blocks(16, 0);
  for (const Part& part : divided(stream, lists)) blocks[static_cast<std::size_t>(part.cta)] += part.end - part.begin;
  EXPECT_LE(*std::max_element(blocks.begin(), blocks.end()), stream.total / 16 + 2 * kLeastPiece);
  EXPECT_FALSE(stream_of(std::vector<int>(128, 64), 16).divides());
  EXPECT_EQ(stream_of({1, 0, 2}, 132).parts(), 1);
}

TEST(StreamK, PiecesInTheWorkspaceDoNotOverlap) {
  constexpr int kWarps = 8;
  EXPECT_EQ(piece_at(0, true, kWarps, 0, 128) - piece_at(0, false, kWarps, kWarps - 1, 128), piece_floats(128));
  EXPECT_EQ(piece_at(1, false, kWarps, 0, 128) - piece_at(0, true, kWarps, kWarps - 1, 128), piece_floats(128));
  EXPECT_EQ(stream_workspace_bytes(3, kWarps, 128), 4 * piece_at(3, false, kWarps, 0, 128));
}

}  // namespace
}  // namespace heed::sm90_persistent
