// What fwd_sm90_stream computes at compile time, checked on the host: who works on which rows and keys, what lies
// where, which configs are refused.
#include "kernels/stream/known_tiles.hpp"
#include "kernels/stream/legality.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "base/random.hpp"
#include "testing.hpp"

namespace heed::stream {
namespace {

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .causal = false};

Config random_config(Random& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random.below(values.size())]; };
  Config c;
  c.row_groups = one_of({1, 2, 3, 4});
  c.key_groups = one_of({1, 2, 4});
  c.cluster = one_of({1, 2});
  c.tile_keys = one_of({32, 48, 64, 80, 96, 112, 128});
  c.stages = one_of({1, 2, 3, 5, 8, 16});
  c.query_stages = one_of({1, 2, 3, 4});
  c.schedule = static_cast<Schedule>(random.below(3));
  c.overlap = static_cast<Overlap>(random.below(3));
  c.product_order = static_cast<ProductOrder>(random.below(3));
  c.reference = static_cast<Reference>(random.below(3));
  c.turns = static_cast<Turns>(random.below(2));
  c.starts = static_cast<Starts>(random.below(2));
  c.producer = random.chance(0.5) ? Producer::own_warp : Producer::own_group;
  c.release = static_cast<Release>(random.below(2));
  c.shares = static_cast<Shares>(random.below(2));
  c.masking = static_cast<Masking>(random.below(3));
  c.tile_order = static_cast<TileOrder>(random.below(4));
  c.pairs = static_cast<Pairs>(random.below(2));
  c.evict_first = static_cast<EvictFirst>(random.below(11));
  c.store = static_cast<Store>(random.below(5));
  c.scaling = static_cast<Scaling>(random.below(3));
  c.packing = static_cast<Packing>(random.below(3));
  c.adding = static_cast<Adding>(random.below(3));
  c.sums = static_cast<Sums>(random.below(2));
  c.arrival = static_cast<Arrival>(random.below(2));
  c.upkeep = static_cast<Upkeep>(random.below(2));
  c.sizes = static_cast<Sizes>(random.below(3));
  c.programs = static_cast<Programs>(random.below(2));
  c.outputs = static_cast<Outputs>(random.below(2));
  c.teams = one_of({1, 2, 3, 4});
  c.min_blocks = one_of({1, 2, 3, 4});
  return c;
}

// What a program of whole row tiles does not ask for is so.
TEST(Stream, WholeRowTilesSeeTheSameKeys) {
  Random random(9);
  int whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    Config c = random_config(random);
    c.tile_order = random.chance(0.5) ? TileOrder::mirrored : TileOrder::rows_first;
    const Problem problem{.element = Element::fp16,
                          .head_dim = 64,
                          .causal = random.chance(0.7),
                          .sizes = {.batch = 1,
                                    .heads = 1,
                                    .heads_kv = 1,
                                    .len_q = 32 * (1 + static_cast<int>(random.below(40))),
                                    .len_k = 1 + static_cast<int>(random.below(1500)),
                                    .causal_offset = static_cast<int>(random.below(900)) - 100}};
    if (!can_be_whole(c, problem)) continue;
    ++whole;
    const FixedSizes& s = problem.sizes;
    for (int row = 0; row < s.len_q; ++row)
      ASSERT_EQ(keys_of_row<true>(problem.causal, row, s.causal_offset, s.len_k),
                visible_keys(problem.causal, row, s.causal_offset, s.len_k));
    for (int index = 0; index < s.len_q / block_rows(c); ++index) {
      ASSERT_EQ(keys_seen<true>(c, problem.causal, index, s.len_q, s.len_k, s.causal_offset),
                keys_seen(c, problem.causal, index, s.len_q, s.len_k, s.causal_offset));
      for (int of = 0; of < c.row_groups; ++of) {
        ASSERT_LE((group_tile(c, index, of, group_tiles(s.len_q)) + 1) * kGroupRows, s.len_q);
        ASSERT_EQ(tiles_seen<true>(c, problem.causal, index, of, s.len_q, s.len_k, s.causal_offset),
                  tiles_seen(c, problem.causal, index, of, s.len_q, s.len_k, s.causal_offset));
      }
    }
  }
  EXPECT_GT(whole, 2000);
}

// What a program for fixed sizes leaves out does not happen: by the rows and tiles of every row group, one by one.
TEST(Stream, ProgramsKnowWhatTheirTilesMeet) {
  Random random(10);
  int leaner = 0;
  for (int i = 0; i < 20'000; ++i) {
    Config c = random_config(random);
    c.sizes = Sizes::fixed;
    c.programs = Programs::needed;
    c.tile_order = random.chance(0.5) ? TileOrder::mirrored : TileOrder::rows_first;
    const FixedSizes s{.batch = 1,
                       .heads = 1,
                       .heads_kv = 1,
                       .len_q = random.chance(0.5) ? 64 * (1 + static_cast<int>(random.below(20)))
                                                   : 1 + static_cast<int>(random.below(1300)),
                       .len_k = random.chance(0.5) ? 64 * (1 + static_cast<int>(random.below(20)))
                                                   : 1 + static_cast<int>(random.below(1300)),
                       .causal_offset = random.chance(0.5) ? 0 : static_cast<int>(random.below(900)) - 300};
    const Problem problem{.element = Element::fp16, .head_dim = 64, .causal = random.chance(0.7), .sizes = s};
    c = canonical(c, problem);
    if (c.pairs == Pairs::together) continue;
    const KnownTiles known = known_tiles(c, problem);
    leaner += known.some_later_masked && known.some_are_one && known.some_pass ? 0 : 1;
    for (int index = 0; index < (s.len_q + block_rows(c) - 1) / block_rows(c); ++index)
      for (int g = 0; g < c.row_groups; ++g) {
        const int first_row = group_tile(c, index, g, group_tiles(s.len_q)) * kGroupRows;
        if (first_row >= s.len_q) continue;
        const int last_row = std::min(first_row + kGroupRows, s.len_q) - 1;
        const int by_all = visible_keys(problem.causal, first_row, s.causal_offset, s.len_k);
        const int by_any = visible_keys(problem.causal, last_row, s.causal_offset, s.len_k);
        for (int part = 0; part < parts(c); ++part) {
          const Range range =
              tiles_of_part(c, keys_seen(c, problem.causal, index, s.len_q, s.len_k, s.causal_offset), part);
          int tiles = 0;
          int last = -1;
          for (int n = range.first; n < range.end; ++n)
            if (n * c.tile_keys < by_any) ++tiles, last = n;
          ASSERT_TRUE(known.some_are_none || tiles > 0);
          ASSERT_TRUE(known.some_are_one || tiles != 1);
          ASSERT_TRUE(known.some_are_more || tiles <= 1);
          ASSERT_TRUE(tiles == 0 || (tiles % 2 != 0 ? known.some_are_odd : known.some_are_even));
          ASSERT_TRUE(known.some_pass || tiles == range.end - range.first);
          for (int n = last; n > last - tiles; --n) {
            const bool masked = (n + 1) * c.tile_keys > by_all;
            const bool is_known = n == last ? (masked ? known.some_first_masked : known.some_first_whole)
                                            : !masked || known.some_later_masked;
            ASSERT_TRUE(is_known);
          }
        }
      }
  }
  EXPECT_GT(leaner, 10'000);
  constexpr Problem kMission{
      .element = Element::fp16, .head_dim = 64, .causal = true, .sizes = {1, 8, 8, 1024, 1024, 0}};
  constexpr Config kNeeded{.row_groups = 1, .cluster = 2, .sizes = Sizes::fixed, .programs = Programs::needed};
  EXPECT_FALSE(known_tiles(kNeeded, kMission).some_later_masked) << "the mask's edge runs from corner to corner";
  constexpr Config kAll{.row_groups = 1, .cluster = 2, .sizes = Sizes::fixed};
  EXPECT_TRUE(known_tiles(kAll, kMission).some_later_masked);
}

// A row tile a block: what it begins with is all there is.
TEST(Stream, OpeningsAreOfBlocksThatStay) {
  constexpr Problem kSome{.element = Element::fp16, .head_dim = 64, .causal = false};
  for (const EvictFirst e : {EvictFirst::but_opening, EvictFirst::but_first_keys}) {
    Config c{.query_stages = 2, .schedule = Schedule::persistent, .evict_first = e};
    EXPECT_EQ(canonical(c, kSome).evict_first, e);
    c.schedule = Schedule::one_tile;
    EXPECT_EQ(canonical(c, kSome).evict_first, EvictFirst::values);
  }
}

TEST(Stream, WholeRowTilesWantRowsAndKeys) {
  constexpr Config kWhole{.row_groups = 2, .sizes = Sizes::whole};
  const auto becomes = [&](bool causal, int len_q, int len_k, int offset) {
    return canonical(
               kWhole,
               {.element = Element::fp16, .head_dim = 64, .causal = causal, .sizes = {1, 1, 1, len_q, len_k, offset}})
        .sizes;
  };
  EXPECT_EQ(becomes(false, 256, 100, 0), Sizes::whole);
  EXPECT_EQ(becomes(false, 192, 100, 0), Sizes::fixed) << "the last row tile has 64 rows of 128";
  EXPECT_EQ(becomes(true, 256, 256, 0), Sizes::whole);
  EXPECT_EQ(becomes(true, 256, 255, 0), Sizes::fixed) << "the last row would see a key past the last";
  EXPECT_EQ(becomes(true, 256, 255, -1), Sizes::fixed) << "the first row sees none";
  EXPECT_EQ(canonical(kWhole, kHalf64).sizes, Sizes::any) << "nothing is known";
}

// Where outputs lie is known with the sizes or not at all, and to whom it makes a difference.
TEST(Stream, DenseOutputsGoWithKnownSizes) {
  constexpr Problem kKnown{.element = Element::fp16, .head_dim = 64, .causal = false, .sizes = {1, 8, 8, 512, 512, 0}};
  const auto reason = [](const Config& c, const Problem& problem) {
    return is_legal(c, problem, 227 * 1024, 228 * 1024);
  };
  constexpr Config kAny{.stages = 2};
  ASSERT_EQ(reason(kAny, kKnown), Illegal::no);
  const auto with = [](Config c, Sizes sizes, Outputs outputs) {
    c.sizes = sizes;
    c.outputs = outputs;
    return c;
  };
  for (const Sizes sizes : {Sizes::fixed, Sizes::whole})
    for (const Outputs outputs : {Outputs::any, Outputs::dense}) {
      const Config c = with(kAny, sizes, outputs);
      EXPECT_EQ(canonical(c, kKnown), c);
      EXPECT_EQ(reason(c, kKnown), Illegal::no);
      EXPECT_EQ(canonical(c, kHalf64), kAny) << "nothing is known";
      EXPECT_EQ(reason(c, kHalf64), Illegal::same_program);
    }
  const Config of_any = with(kAny, Sizes::any, Outputs::dense);
  EXPECT_EQ(canonical(of_any, kKnown), with(kAny, Sizes::fixed, Outputs::dense));
  EXPECT_EQ(reason(of_any, kKnown), Illegal::same_program);
  EXPECT_EQ(canonical(of_any, kHalf64), kAny);
  // Sizes that are not whole are fixed all the same, and outputs dense.
  constexpr Problem kRagged{.element = Element::fp16, .head_dim = 64, .causal = false, .sizes = {1, 8, 8, 500, 512, 0}};
  EXPECT_EQ(canonical(with(kAny, Sizes::whole, Outputs::dense), kRagged), with(kAny, Sizes::fixed, Outputs::dense));
  // Boxes go where a map says; where there are none after all, rows do not.
  Config boxes = kAny;
  boxes.store = Store::boxes;
  ASSERT_EQ(reason(boxes, kKnown), Illegal::no);
  EXPECT_EQ(canonical(with(boxes, Sizes::any, Outputs::dense), kKnown), boxes) << "they ask for no sizes either";
  EXPECT_EQ(canonical(with(boxes, Sizes::fixed, Outputs::dense), kKnown), with(boxes, Sizes::fixed, Outputs::any));
  EXPECT_EQ(reason(with(boxes, Sizes::fixed, Outputs::dense), kKnown), Illegal::same_program);
  boxes.key_groups = 2;
  boxes.schedule = Schedule::persistent;
  const Config rows = canonical(with(boxes, Sizes::any, Outputs::dense), kKnown);
  EXPECT_NE(rows.store, Store::boxes);
  EXPECT_EQ(rows.outputs, Outputs::dense);
  EXPECT_EQ(rows.sizes, Sizes::fixed);
}

// A row group that takes every other tile waits for the next turn before it gives the last one back.
TEST(Stream, PairsHoldTwoTurns) {
  Config c{.row_groups = 2,
           .stages = 1,
           .producer = Producer::own_group,
           .tile_order = TileOrder::mirrored,
           .pairs = Pairs::together};
  const Problem problem{.element = Element::fp16, .head_dim = 64, .causal = true};
  EXPECT_EQ(is_legal(c, problem, 227 * 1024, 228 * 1024), Illegal::same_program);
  c.stages = 2;
  EXPECT_EQ(is_legal(c, problem, 227 * 1024, 228 * 1024), Illegal::no);
}

TEST(Stream, EveryKeyTileBelongsToOnePart) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const Config c = random_config(random);
    const int keys = static_cast<int>(random.below(3000));
    int expected = 0;
    int most = 0;
    int least = 1 << 30;
    for (int part = 0; part < parts(c); ++part) {
      const Range range = tiles_of_part(c, keys, part);
      ASSERT_EQ(range.first, expected);
      ASSERT_GE(range.end, range.first);
      expected = range.end;
      most = std::max(most, range.end - range.first);
      least = std::min(least, range.end - range.first);
    }
    ASSERT_GE(expected * c.tile_keys, keys);
    ASSERT_LT((expected - 1) * c.tile_keys, std::max(1, keys));
    ASSERT_LE(most - least, 1);
  }
}

TEST(Stream, EveryRowTileComesOnce) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    Config c;
    c.tile_order = random.chance(0.5) ? TileOrder::rows_first : TileOrder::heads_first;
    const int row_tiles = 1 + static_cast<int>(random.below(9));
    const int heads = 1 + static_cast<int>(random.below(7));
    const int batch = 1 + static_cast<int>(random.below(4));
    const int together = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(heads * batch)));
    std::set<std::tuple<int, int, int>> seen;
    int before = row_tiles;
    for (int n = 0; n < row_tiles * heads * batch; ++n) {
      const RowTile tile = row_tile_at(c, n, row_tiles, heads, batch, together);
      ASSERT_TRUE(tile.index >= 0 && tile.index < row_tiles);
      ASSERT_TRUE(tile.head >= 0 && tile.head < heads);
      ASSERT_TRUE(tile.batch >= 0 && tile.batch < batch);
      ASSERT_TRUE(seen.insert({tile.index, tile.head, tile.batch}).second) << "twice";
      // The last rows of what runs together come first.
      const int section = row_tiles * (c.tile_order == TileOrder::heads_first ? together : 1);
      ASSERT_LE(tile.index, n % section == 0 ? row_tiles - 1 : before);
      if (n % section == 0) {
        ASSERT_EQ(tile.index, row_tiles - 1);
      }
      before = tile.index;
    }
  }
}

// Waves that go back and forth hold every row tile once, and two whole ones give every block as much of both ends.
TEST(Stream, WavesGoBackAndForth) {
  Random random(6);
  for (int i = 0; i < 300; ++i) {
    const int blocks = 1 + static_cast<int>(random.below(140));
    const int all = 1 + static_cast<int>(random.below(600));
    std::set<int> seen;
    for (int block = 0; block < std::min(blocks, all); ++block) {
      bool back = false;
      for (int index = block; index < all; index += blocks, back = !back) {
        const int taken = back ? backwards(index, block, blocks, all) : index;
        ASSERT_TRUE(taken >= index - block && taken < std::min(index - block + blocks, all));
        ASSERT_TRUE(seen.insert(taken).second) << "twice";
        if (back) {
          ASSERT_EQ(taken + index - blocks, std::min(index - block + blocks, all) - 1 + index - block - blocks);
        }
      }
    }
    ASSERT_EQ(static_cast<int>(seen.size()), all);
  }
}

// Even waves are as many as filled ones, of as few blocks as that takes.
TEST(Stream, EvenWavesAreAsManyAsFilledOnes) {
  const Config filled{.schedule = Schedule::persistent};
  Config even = filled;
  even.waves = Waves::even;
  EXPECT_EQ(blocks_that_stay(filled, 256, 132), 132);
  EXPECT_EQ(blocks_that_stay(even, 256, 132), 128);
  EXPECT_EQ(blocks_that_stay(even, 1536, 396), 384);
  for (const int places : {1, 2, 132, 396})
    for (int tiles = 1; tiles < 1200; ++tiles) {
      const auto waves = [&](long long blocks) { return (tiles + blocks - 1) / blocks; };
      const long long blocks = blocks_that_stay(even, tiles, places);
      ASSERT_LE(blocks, blocks_that_stay(filled, tiles, places));
      ASSERT_EQ(waves(blocks), waves(places));
      if (blocks > 1) {
        ASSERT_GT(waves(blocks - 1), waves(places));
      }
    }
}

// Key groups of a pair hold every tile once, and multiply as often as each other but for a tile or two.
TEST(Stream, PairsCutTheirTilesByWork) {
  for (const int key_groups : {1, 2, 4}) {
    const Config c{
        .row_groups = 2, .key_groups = key_groups, .tile_order = TileOrder::mirrored, .pairs = Pairs::together};
    for (int longer = 0; longer < 40; ++longer)
      for (int shorter = 0; shorter <= longer; ++shorter) {
        int end = 0;
        for (int g = 0; g < key_groups; ++g) {
          const Range range = tiles_of_part(c, shorter, longer, g);
          ASSERT_EQ(range.first, end);
          ASSERT_GE(range.end, range.first);
          end = range.end;
          const int work =
              range.end - range.first + std::max(0, std::min(range.end, shorter) - std::min(range.first, shorter));
          ASSERT_LE(std::abs(work - (shorter + longer) / key_groups), 3) << longer << " " << shorter;
        }
        ASSERT_EQ(end, longer);
      }
  }
}

// Every 64 rows belong to one row group of one row tile; the row tile's last row is the last that any of them holds.
TEST(Stream, EveryRowBelongsToOneRowGroup) {
  Random random(5);
  for (int i = 0; i < 3000; ++i) {
    Config c = random_config(random);
    c.tile_order = random.chance(0.7) ? TileOrder::mirrored : TileOrder::rows_first;
    const int len_q = 1 + static_cast<int>(random.below(1500));
    const int all = (len_q + kGroupRows - 1) / kGroupRows;
    const int row_tiles = (len_q + block_rows(c) - 1) / block_rows(c);
    std::set<int> seen;
    for (int index = 0; index < row_tiles; ++index) {
      int last = -1;
      for (int g = 0; g < c.row_groups; ++g) {
        const int tile = group_tile(c, index, g, all);
        ASSERT_GE(tile, 0);
        if (tile >= all) continue;
        ASSERT_TRUE(seen.insert(tile).second) << "twice";
        last = std::max(last, std::min((tile + 1) * kGroupRows, len_q) - 1);
      }
      ASSERT_EQ(last_row(c, index, len_q), last);
    }
    ASSERT_EQ(static_cast<int>(seen.size()), all);
  }
}

// Every row tile once; half a wave later comes one that sees as many keys less as this one sees more.
TEST(Stream, FoldedRowTilesMeetTheirOpposites) {
  const Config c{.cluster = 2, .tile_order = TileOrder::folded};
  EXPECT_TRUE(heads_in_x(c));
  for (const int row_tiles : {1, 2, 7, 16}) {
    std::set<int> seen;
    for (int y = 0; y < row_tiles; ++y) seen.insert(row_tile_of_block(c, true, y, row_tiles));
    EXPECT_EQ(static_cast<int>(seen.size()), row_tiles);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), row_tiles - 1);
  }
  for (int y = 0; y < 8; ++y) EXPECT_EQ(row_tile_of_block(c, true, y, 16) + row_tile_of_block(c, true, y + 8, 16), 15);
}

// Of an odd number of tiles the block without the mask has the one more.
TEST(Stream, BlocksOfAClusterShareEvenly) {
  const Config c{.row_groups = 1, .cluster = 2};
  EXPECT_EQ(tiles_of_part(c, 15 * 64, 0), (Range{0, 8}));
  EXPECT_EQ(tiles_of_part(c, 15 * 64, 1), (Range{8, 15}));
  EXPECT_EQ(tiles_of_part(c, 1, 0), (Range{0, 1}));
  EXPECT_EQ(tiles_of_part(c, 1, 1), (Range{1, 1}));
}

// Of key groups that start one after the other the first has as many tiles as any, and the last as few.
TEST(Stream, WhoStartsFirstHasMore) {
  const Config two{.row_groups = 1, .key_groups = 2, .starts = Starts::in_turn};
  EXPECT_EQ(tiles_of_part(two, 15 * 64, 0), (Range{0, 8}));
  EXPECT_EQ(tiles_of_part(two, 15 * 64, 1), (Range{8, 15}));
  for (const int key_groups : {2, 4})
    for (int tiles = 0; tiles < 40; ++tiles) {
      const Config c{.row_groups = 1, .key_groups = key_groups, .starts = Starts::in_turn};
      const auto of = [&](int part) {
        const Range range = tiles_of_part(c, tiles * 64, part);
        return range.end - range.first;
      };
      for (int part = 0; part < key_groups; ++part) {
        EXPECT_LE(of(part), of(0));
        EXPECT_GE(of(part), of(key_groups - 1));
      }
    }
}

// A row group that waits for its start frees no stage, so that row groups which share rings start together; a block
// that stays starts once.
TEST(Stream, OnlyKeyGroupsOfOneRowTileStartInTurn) {
  const Problem problem{.element = Element::fp16, .head_dim = 64, .causal = true};
  const auto starts = [&](Config c) {
    c.starts = Starts::in_turn;
    return canonical(c, problem).starts;
  };
  EXPECT_EQ(starts({.row_groups = 1, .key_groups = 2}), Starts::in_turn);
  EXPECT_EQ(starts({.row_groups = 1, .key_groups = 4}), Starts::in_turn);
  EXPECT_EQ(starts({.row_groups = 2, .key_groups = 2}), Starts::together);
  EXPECT_EQ(starts({.row_groups = 1, .key_groups = 1, .cluster = 2}), Starts::together);
  EXPECT_EQ(starts({.row_groups = 1, .key_groups = 2, .schedule = Schedule::persistent}), Starts::together);
}

// Of teams some may have no row tile and hear of it only with their queries; a warp has no registers to leave.
TEST(Stream, WhatIsDoneAheadFitsTheBlock) {
  Config c{.row_groups = 1,
           .stages = 2,
           .schedule = Schedule::persistent,
           .producer = Producer::own_group,
           .release = Release::after_copies,
           .shares = Shares::ahead,
           .min_blocks = 3};
  EXPECT_EQ(canonical(c, kHalf64).shares, Shares::ahead);
  EXPECT_EQ(canonical(c, kHalf64).release, Release::after_copies);
  c.producer = Producer::own_warp;
  EXPECT_EQ(canonical(c, kHalf64).release, Release::at_once);
  c.teams = 2;
  EXPECT_EQ(canonical(c, kHalf64).shares, Shares::when_due);
}

// Under a causal mask all row tiles with an even number of row groups see the same number of keys.
TEST(Stream, MirroredRowTilesAreEqual) {
  for (const int row_groups : {2, 4}) {
    const Config c{.row_groups = row_groups, .tile_order = TileOrder::mirrored};
    const int all = 8 * row_groups;
    for (int index = 0; index < 8; ++index) {
      int tiles = 0;
      for (int g = 0; g < row_groups; ++g) tiles += group_tile(c, index, g, all) + 1;
      EXPECT_EQ(tiles, row_groups * (all + 1) / 2);
    }
  }
}

TEST(Stream, HeadsTogetherFitTheL2) {
  EXPECT_EQ(heads_together(kHalf64, 8192, 64), 16);  // 2 MiB of K and V a head
  EXPECT_EQ(heads_together(kHalf64, 512, 64), 64);
  EXPECT_EQ(heads_together(kHalf64, 1 << 24, 64), 1);
  EXPECT_EQ(heads_together(kHalf64, 0, 3), 3);
}

TEST(Stream, CanonicalConfigsAreTheirOwnName) {
  Random random(3);
  for (const int dim : {8, 64, 80, 128, 192, 256})
    for (const FixedSizes& sizes : {FixedSizes{}, FixedSizes{1, 8, 8, 512, 600, 88}}) {
      const Element element = random.chance(0.5) ? Element::fp16 : Element::bf16;
      const Problem problem{.element = element, .head_dim = dim, .causal = true, .sizes = sizes};
      for (int i = 0; i < 3000; ++i) {
        const Config c = canonical(random_config(random), problem);
        ASSERT_EQ(canonical(c, problem), c);
        const Illegal reason = is_legal(c, problem, 227 * 1024, 228 * 1024);
        // Only resources are left to refuse it.
        ASSERT_TRUE(reason == Illegal::no || reason == Illegal::shared_memory || reason == Illegal::occupancy ||
                    reason == Illegal::registers || reason == Illegal::operands || reason == Illegal::threads)
            << static_cast<int>(reason);
      }
    }
}

// Regions of shared memory follow each other without overlap, operands on whole swizzle atoms.
TEST(Stream, SharedMemoryIsLaidOutWithoutOverlap) {
  Random random(4);
  for (const int dim : {64, 96, 192, 256}) {
    const Problem problem{.element = Element::fp16, .head_dim = dim, .causal = true};
    for (int i = 0; i < 5000; ++i) {
      const Config c = canonical(random_config(random), problem);
      const SharedPlan p = shared_plan(c, dim);
      const int boxes = padded_dim(dim) / 64;
      ASSERT_EQ(p.query_bytes, c.row_groups * boxes * 8192);
      ASSERT_EQ(p.ring, c.query_stages * p.query_bytes);
      ASSERT_EQ(p.operand, boxes * c.tile_keys * 128);
      const int ring_end = p.ring + c.key_groups * 2 * c.stages * p.operand;
      if (sends_in_stages(c, dim)) {
        // Every sender's part lies in its own stages.
        ASSERT_EQ(p.exchange, p.ring);
        ASSERT_EQ(p.sender_bytes, 2 * c.stages * p.operand);
        ASSERT_LE(bytes_sent(c, dim), p.sender_bytes);
        ASSERT_EQ(c.row_groups, 1);
        ASSERT_EQ(p.barriers, ring_end + (c.store == Store::aimed_rows ? 16 * consumer_threads(c) : 0));
        ASSERT_EQ(c.teams, 1);
      } else {
        ASSERT_EQ(p.exchange, ring_end);
        // Of a cluster, what the other block sent.
        ASSERT_EQ(p.exchange_bytes, (c.cluster > 1 ? 1 : c.key_groups) * bytes_sent(c, dim));
        ASSERT_EQ(p.sender_bytes, bytes_sent(c, dim));
        const bool apart =
            (writes_lines(c) && parts(c) == 1) || (c.store == Store::boxes && c.schedule != Schedule::one_tile);
        ASSERT_EQ(p.rows % (c.store == Store::boxes && apart ? tile::kSwizzleAtomBytes : tile::kBoxRowBytes), 0);
        const int help = c.pairs == Pairs::together ? c.row_groups / 2 * c.key_groups * p.help_bytes : 0;
        const int lines = c.store == Store::aimed_rows ? 16 * consumer_threads(c) : 0;
        const int end = ring_end + c.row_groups * p.exchange_bytes + help + (apart ? p.query_bytes : 0) + lines;
        ASSERT_EQ(p.barriers, (c.teams - 1) * p.team_bytes + end);
        ASSERT_GE(p.team_bytes, end);
      }
      ASSERT_GE(p.row_tiles, p.barriers + 8 * barrier_plan(c).count);
      // Behind the last team's data come all teams' barriers, each with its row tiles.
      ASSERT_EQ(p.team_bytes % tile::kSwizzleAtomBytes, 0);
      ASSERT_GE(p.team_barriers, p.row_tiles + 16 * c.query_stages - p.barriers);
      ASSERT_EQ(p.team_barriers % 16, 0);
      ASSERT_EQ(p.total, p.row_tiles + 16 * c.query_stages + (c.teams - 1) * p.team_barriers);
      if (c.teams > 1) {
        ASSERT_NE(c.schedule, Schedule::one_tile);
        ASSERT_EQ(parts(c), 1);
        ASSERT_EQ(c.pairs, Pairs::apart);
      }
      for (const int offset : {p.query_bytes, p.ring, p.box, p.operand}) ASSERT_EQ(offset % tile::kSwizzleAtomBytes, 0);
      for (const int offset : {p.exchange, p.exchange_bytes, p.sender_bytes, p.row_tiles}) ASSERT_EQ(offset % 16, 0);
      ASSERT_EQ(p.barriers % 8, 0);
      // Slices of one row a lane and 32 columns at least, four tiles of 8, and two floats a row of every group.
      if (c.cluster > 1) {
        ASSERT_EQ(c.key_groups, 1);
        ASSERT_EQ(c.schedule, Schedule::one_tile);
        ASSERT_EQ(row_slices(c), 2);
        ASSERT_EQ(column_slices(c), 1);
        // Half of 64 rows, 16 bits a value, and two floats of each of these rows.
        ASSERT_EQ(bytes_sent(c, dim), 32 * padded_dim(dim) * 2 + 32 * 8);
      } else if (c.key_groups > 1) {
        ASSERT_EQ(row_slices(c) * column_slices(c), c.key_groups);
        ASSERT_EQ(padded_dim(dim) / column_slices(c) % 32, 0);
        ASSERT_EQ(c.key_groups * bytes_sent(c, dim),
                  (c.key_groups - 1) * 64 * padded_dim(dim) * 4 + c.key_groups * 64 * 8);
      }
      const BarrierPlan b = barrier_plan(c);
      ASSERT_EQ(b.ring, (c.row_groups + 1) * c.query_stages);
      ASSERT_EQ(b.inbox, b.ring + 2 * c.key_groups * c.stages);
      ASSERT_EQ(b.count, b.inbox + (c.cluster > 1 ? c.row_groups : 0));
    }
  }
}

// Every tile's keys come in one turn and its values in a later one, each once; the first turn has no values.
TEST(Stream, TurnsHoldEveryTileOnce) {
  for (const Overlap overlap : {Overlap::nothing, Overlap::values, Overlap::products}) {
    const Config c{.overlap = overlap};
    EXPECT_EQ(turns_of(c, 0), 0);
    for (int tiles = 1; tiles < 6; ++tiles) {
      int keys = 0;
      int values = 0;
      for (int turn = 0; turn < turns_of(c, tiles); ++turn) {
        keys += turn < tiles ? 1 : 0;
        values += turn >= value_lag(c) && turn - value_lag(c) < tiles ? 1 : 0;
      }
      EXPECT_EQ(keys, tiles);
      EXPECT_EQ(values, tiles);
    }
    EXPECT_GE(value_lag(c), 1);
  }
}

TEST(Stream, RegistersOfAMultiprocessorAreShared) {
  Config c;
  EXPECT_EQ(registers_allowed(c), 168);  // 9 warps take the room of 12
  c.producer = Producer::own_group;
  EXPECT_EQ(launch_registers(c), 168);
  EXPECT_EQ(registers_allowed(c), 240);
  c.row_groups = 4;
  EXPECT_EQ(launch_registers(c), 96);
  EXPECT_EQ(registers_allowed(c), 112);
  const Config teams{.row_groups = 1, .schedule = Schedule::persistent, .producer = Producer::own_group, .teams = 4};
  EXPECT_EQ(threads(teams), threads(c));
  EXPECT_EQ(registers_allowed(teams), 112);
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    const Config any = random_config(random);
    if (threads(any) > 1024) continue;
    const int warps_a_quarter = (threads(any) / 32 * any.min_blocks + 3) / 4;
    ASSERT_LE(launch_registers(any) * 32 * warps_a_quarter, 16384);
    if (!moves_registers(any)) continue;
    ASSERT_LE(registers_allowed(any) * consumer_threads(any) + tile::kProducerRegisters * kGroupThreads,
              launch_registers(any) * threads(any));
    ASSERT_EQ(registers_allowed(any) % 8, 0);
  }
}

}  // namespace
}  // namespace heed::stream
