// What fwd_sm90_persistent computes at compile time, checked on the host: who works on which rows and keys, what lies
// where, which configs are refused.
#include "kernels/sm90/persistent/known_kv_tiles.hpp"
#include "kernels/sm90/persistent/legality.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "base/random.hpp"
#include "testing.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};

Config random_config(Random& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random.below(values.size())]; };
  Config c;
  c.m_warpgroups = one_of({1, 2, 3, 4});
  c.kv_groups = one_of({1, 2, 4});
  c.cluster = one_of({1, 2});
  c.block_n = one_of({32, 48, 64, 80, 96, 112, 128});
  c.stages = one_of({1, 2, 3, 5, 8, 16});
  c.q_stages = one_of({1, 2, 3, 4});
  c.scheduler = static_cast<Scheduler>(random.below(3));
  c.softmax_overlap = static_cast<SoftmaxOverlap>(random.below(3));
  c.gemm_order = static_cast<GemmOrder>(random.below(3));
  c.row_max = static_cast<RowMax>(random.below(3));
  c.pingpong = static_cast<Pingpong>(random.below(2));
  c.stagger_splits = static_cast<StaggerSplits>(random.below(2));
  c.producer = random.chance(0.5) ? Producer::warp : Producer::warpgroup;
  c.setmaxnreg = static_cast<Setmaxnreg>(random.below(2));
  c.tile_setup = static_cast<TileSetup>(random.below(2));
  c.mask_path = static_cast<MaskPath>(random.below(3));
  c.tile_order = static_cast<TileOrder>(random.below(4));
  c.share_causal_tail = static_cast<ShareCausalTail>(random.below(2));
  c.evict_first = static_cast<EvictFirst>(random.below(11));
  c.epilogue = static_cast<EpilogueStore>(random.below(5));
  c.scale_placement = static_cast<ScalePlacement>(random.below(3));
  c.convert_placement = static_cast<ConvertPlacement>(random.below(3));
  c.rowsum_placement = static_cast<RowsumPlacement>(random.below(3));
  c.rowsum_reduce = static_cast<RowsumReduce>(random.below(2));
  c.barrier_wait = static_cast<BarrierWait>(random.below(2));
  c.stage_release = static_cast<StageRelease>(random.below(2));
  c.virtual_ctas = one_of({1, 2, 3, 4});
  c.min_blocks = one_of({1, 2, 3, 4});
  return c;
}

// What a program of whole Q tiles does not ask for is so.
TEST(Stream, WholeRowTilesSeeTheSameKeys) {
  Random random(9);
  int whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    Config c = random_config(random);
    c.tile_order = random.chance(0.5) ? TileOrder::paired : TileOrder::row_major;
    const Problem problem{.element = Element::fp16,
                          .head_dim = 64,
                          .mask = random.chance(0.7) ? MaskKind::causal : MaskKind::none,
                          .sizes = {.batch = 1,
                                    .heads = 1,
                                    .heads_kv = 1,
                                    .len_q = 32 * (1 + static_cast<int>(random.below(40))),
                                    .len_k = 1 + static_cast<int>(random.below(1500)),
                                    .right_offset = static_cast<int>(random.below(900)) - 100}};
    if (!can_be_whole(c, problem)) continue;
    ++whole;
    const FixedSizes& s = problem.sizes;
    for (int row = 0; row < s.len_q; ++row)
      ASSERT_EQ(keys_of_row<true>(problem.mask, row, s.right_offset, s.len_k),
                visible_keys(problem.mask, row, s.right_offset, s.len_k));
    for (int index = 0; index < s.len_q / block_rows(c); ++index) {
      ASSERT_EQ(keys_seen<true>(c, problem.mask, index, s.len_q, s.len_k, s.right_offset),
                keys_seen(c, problem.mask, index, s.len_q, s.len_k, s.right_offset));
      for (int of = 0; of < c.m_warpgroups; ++of) {
        ASSERT_LE((warpgroup_tile(c, index, of, warpgroup_tiles(s.len_q)) + 1) * kWarpgroupRows, s.len_q);
        ASSERT_EQ(tiles_seen<true>(c, problem.mask, index, of, s.len_q, s.len_k, s.right_offset),
                  tiles_seen(c, problem.mask, index, of, s.len_q, s.len_k, s.right_offset));
      }
    }
  }
  EXPECT_GT(whole, 2000);
}

constexpr Specialization kPruned{.specialize = Specialize::shape, .prune = Prune::on};

// What a program for fixed sizes leaves out does not happen: by the rows and tiles of every consumer warpgroup, one by
// one.
TEST(Stream, ProgramsKnowWhatTheirTilesMeet) {
  Random random(10);
  int leaner = 0;
  for (int i = 0; i < 20'000; ++i) {
    Config c = random_config(random);
    c.tile_order = random.chance(0.5) ? TileOrder::paired : TileOrder::row_major;
    const FixedSizes s{.batch = 1,
                       .heads = 1,
                       .heads_kv = 1,
                       .len_q = random.chance(0.5) ? 64 * (1 + static_cast<int>(random.below(20)))
                                                   : 1 + static_cast<int>(random.below(1300)),
                       .len_k = random.chance(0.5) ? 64 * (1 + static_cast<int>(random.below(20)))
                                                   : 1 + static_cast<int>(random.below(1300)),
                       .right_offset = random.chance(0.5) ? 0 : static_cast<int>(random.below(900)) - 300};
    const Problem problem{.element = Element::fp16,
                          .head_dim = 64,
                          .mask = random.chance(0.7) ? MaskKind::causal : MaskKind::none,
                          .sizes = s,
                          .specialization = kPruned};
    c = canonical(c, problem);
    if (c.share_causal_tail == ShareCausalTail::on) continue;
    const KnownKvTiles known = known_kv_tiles(c, problem);
    leaner += known.some_later_masked && known.some_are_one && known.some_pass ? 0 : 1;
    for (int index = 0; index < (s.len_q + block_rows(c) - 1) / block_rows(c); ++index)
      for (int g = 0; g < c.m_warpgroups; ++g) {
        const int first_row = warpgroup_tile(c, index, g, warpgroup_tiles(s.len_q)) * kWarpgroupRows;
        if (first_row >= s.len_q) continue;
        const int last_row = std::min(first_row + kWarpgroupRows, s.len_q) - 1;
        const int by_all = visible_keys(problem.mask, first_row, s.right_offset, s.len_k);
        const int by_any = visible_keys(problem.mask, last_row, s.right_offset, s.len_k);
        for (int part = 0; part < num_splits(c); ++part) {
          const Range range =
              kv_tiles_of_split(c, keys_seen(c, problem.mask, index, s.len_q, s.len_k, s.right_offset), part);
          int tiles = 0;
          int last = -1;
          for (int n = range.first; n < range.end; ++n)
            if (n * c.block_n < by_any) ++tiles, last = n;
          ASSERT_TRUE(known.some_are_none || tiles > 0);
          ASSERT_TRUE(known.some_are_one || tiles != 1);
          ASSERT_TRUE(known.some_are_more || tiles <= 1);
          ASSERT_TRUE(tiles == 0 || (tiles % 2 != 0 ? known.some_are_odd : known.some_are_even));
          ASSERT_TRUE(known.some_pass || tiles == range.end - range.first);
          for (int n = last; n > last - tiles; --n) {
            const bool masked = (n + 1) * c.block_n > by_all;
            const bool is_known = n == last ? (masked ? known.some_first_masked : known.some_first_whole)
                                            : !masked || known.some_later_masked;
            ASSERT_TRUE(is_known);
          }
        }
      }
  }
  EXPECT_GT(leaner, 10'000);
  Problem mission{.element = Element::fp16,
                  .head_dim = 64,
                  .mask = MaskKind::causal,
                  .sizes = {1, 8, 8, 1024, 1024, 0},
                  .specialization = kPruned};
  constexpr Config kSplit{.m_warpgroups = 1, .cluster = 2};
  EXPECT_FALSE(known_kv_tiles(kSplit, mission).some_later_masked) << "the mask's edge runs from corner to corner";
  mission.specialization.prune = Prune::off;
  EXPECT_TRUE(known_kv_tiles(kSplit, mission).some_later_masked);
}

// A Q tile a block: what it begins with is all there is.
TEST(Stream, OpeningsAreOfBlocksThatStay) {
  constexpr Problem kSome{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
  for (const EvictFirst e : {EvictFirst::all_but_first_q_2k, EvictFirst::all_but_first_q_k}) {
    Config c{.q_stages = 2, .scheduler = Scheduler::static_persistent, .evict_first = e};
    EXPECT_EQ(canonical(c, kSome).evict_first, e);
    c.scheduler = Scheduler::single_tile;
    EXPECT_EQ(canonical(c, kSome).evict_first, EvictFirst::v_o);
  }
}

// The specialization that a config has for a problem, of one that is asked for.
Specialization specialized(const Config& config, const Problem& problem, const Specialization& wanted) {
  return canonical(wanted, specializations_of(canonical(config, problem), problem));
}

TEST(Stream, WholeRowTilesWantRowsAndKeys) {
  constexpr Config kTwo{.m_warpgroups = 2};
  constexpr Specialization kWhole{.specialize = Specialize::whole_tiles};
  const auto becomes = [&](bool causal, int len_q, int len_k, int offset) {
    return specialized(kTwo,
                       {.element = Element::fp16,
                        .head_dim = 64,
                        .mask = causal ? MaskKind::causal : MaskKind::none,
                        .sizes = {1, 1, 1, len_q, len_k, offset}},
                       kWhole)
        .specialize;
  };
  EXPECT_EQ(becomes(false, 256, 100, 0), Specialize::whole_tiles);
  EXPECT_EQ(becomes(false, 192, 100, 0), Specialize::shape) << "the last row tile has 64 rows of 128";
  EXPECT_EQ(becomes(true, 256, 256, 0), Specialize::whole_tiles);
  EXPECT_EQ(becomes(true, 256, 255, 0), Specialize::shape) << "the last row would see a key past the last";
  EXPECT_EQ(becomes(true, 256, 255, -1), Specialize::shape) << "the first row sees none";
  EXPECT_EQ(specialized(kTwo, kHalf64, kWhole), Specialization{}) << "nothing is known";
}

// Where outputs lie is known with the sizes or not at all, and to whom it makes a difference.
TEST(Stream, DenseOutputsGoWithKnownSizes) {
  constexpr Problem kKnown{
      .element = Element::fp16, .head_dim = 64, .mask = MaskKind::none, .sizes = {1, 8, 8, 512, 512, 0}};
  constexpr Config kAny{.stages = 2};
  constexpr Specialization kDense{.specialize = Specialize::shape, .o_layout = OutputLayout::dense};
  constexpr Specialization kDenseAlone{.o_layout = OutputLayout::dense};
  for (const Specialize specialize : {Specialize::shape, Specialize::whole_tiles})
    for (const OutputLayout outputs : {OutputLayout::strided, OutputLayout::dense}) {
      const Specialization wanted{.specialize = specialize, .o_layout = outputs};
      EXPECT_EQ(specialized(kAny, kKnown, wanted), wanted);
      EXPECT_EQ(specialized(kAny, kHalf64, wanted), Specialization{}) << "nothing is known";
    }
  EXPECT_EQ(specialized(kAny, kKnown, kDenseAlone), kDense);
  EXPECT_EQ(specialized(kAny, kHalf64, kDenseAlone), Specialization{});
  // Sizes that are not whole are fixed all the same, and outputs dense.
  constexpr Problem kRagged{
      .element = Element::fp16, .head_dim = 64, .mask = MaskKind::none, .sizes = {1, 8, 8, 500, 512, 0}};
  EXPECT_EQ(specialized(kAny, kRagged, {.specialize = Specialize::whole_tiles, .o_layout = OutputLayout::dense}),
            kDense);
  // Boxes go where a map says; where there are none after all, rows do not.
  Config boxes = kAny;
  boxes.epilogue = EpilogueStore::tma;
  EXPECT_EQ(specialized(boxes, kKnown, kDenseAlone), Specialization{}) << "they ask for no sizes either";
  EXPECT_EQ(specialized(boxes, kKnown, kDense), Specialization{.specialize = Specialize::shape});
  boxes.kv_groups = 2;
  boxes.scheduler = Scheduler::static_persistent;
  EXPECT_NE(canonical(boxes, kKnown).epilogue, EpilogueStore::tma);
  EXPECT_EQ(specialized(boxes, kKnown, kDenseAlone), kDense);
}

// A consumer warpgroup that takes every other tile waits for the next iteration before it gives the last one back.
TEST(Stream, PairsHoldTwoTurns) {
  Config c{.m_warpgroups = 2,
           .stages = 1,
           .producer = Producer::warpgroup,
           .tile_order = TileOrder::paired,
           .share_causal_tail = ShareCausalTail::on};
  const Problem problem{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
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
    for (int part = 0; part < num_splits(c); ++part) {
      const Range range = kv_tiles_of_split(c, keys, part);
      ASSERT_EQ(range.first, expected);
      ASSERT_GE(range.end, range.first);
      expected = range.end;
      most = std::max(most, range.end - range.first);
      least = std::min(least, range.end - range.first);
    }
    ASSERT_GE(expected * c.block_n, keys);
    ASSERT_LT((expected - 1) * c.block_n, std::max(1, keys));
    ASSERT_LE(most - least, 1);
  }
}

TEST(Stream, EveryRowTileComesOnce) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    Config c;
    c.tile_order = random.chance(0.5) ? TileOrder::row_major : TileOrder::lpt_l2;
    const int q_tiles = 1 + static_cast<int>(random.below(9));
    const int heads = 1 + static_cast<int>(random.below(7));
    const int batch = 1 + static_cast<int>(random.below(4));
    const int together = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(heads * batch)));
    std::set<std::tuple<int, int, int>> seen;
    int before = q_tiles;
    for (int n = 0; n < q_tiles * heads * batch; ++n) {
      const QTile tile = q_tile_at(c, n, q_tiles, heads, batch, together);
      ASSERT_TRUE(tile.index >= 0 && tile.index < q_tiles);
      ASSERT_TRUE(tile.head >= 0 && tile.head < heads);
      ASSERT_TRUE(tile.batch >= 0 && tile.batch < batch);
      ASSERT_TRUE(seen.insert({tile.index, tile.head, tile.batch}).second) << "twice";
      // The last rows of what runs together come first.
      const int section = q_tiles * (c.tile_order == TileOrder::lpt_l2 ? together : 1);
      ASSERT_LE(tile.index, n % section == 0 ? q_tiles - 1 : before);
      if (n % section == 0) {
        ASSERT_EQ(tile.index, q_tiles - 1);
      }
      before = tile.index;
    }
  }
}

// Waves that go back and forth hold every Q tile once, and two whole ones give every block as much of both ends.
TEST(Stream, WavesGoBackAndForth) {
  Random random(6);
  for (int i = 0; i < 300; ++i) {
    const int blocks = 1 + static_cast<int>(random.below(140));
    const int all = 1 + static_cast<int>(random.below(600));
    std::set<int> seen;
    for (int block = 0; block < std::min(blocks, all); ++block) {
      bool back = false;
      for (int index = block; index < all; index += blocks, back = !back) {
        const int taken = back ? q_tile_from_the_end(index, block, blocks, all) : index;
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
  const Config filled{.scheduler = Scheduler::static_persistent};
  Config even = filled;
  even.grid = Grid::balanced;
  EXPECT_EQ(persistent_ctas(filled, 256, 132), 132);
  EXPECT_EQ(persistent_ctas(even, 256, 132), 128);
  EXPECT_EQ(persistent_ctas(even, 1536, 396), 384);
  for (const int places : {1, 2, 132, 396})
    for (int tiles = 1; tiles < 1200; ++tiles) {
      const auto waves = [&](long long blocks) { return (tiles + blocks - 1) / blocks; };
      const long long blocks = persistent_ctas(even, tiles, places);
      ASSERT_LE(blocks, persistent_ctas(filled, tiles, places));
      ASSERT_EQ(waves(blocks), waves(places));
      if (blocks > 1) {
        ASSERT_GT(waves(blocks - 1), waves(places));
      }
    }
}

// KV groups of a pair hold every tile once, and multiply as often as each other but for a tile or two.
TEST(Stream, PairsCutTheirTilesByWork) {
  for (const int key_groups : {1, 2, 4}) {
    const Config c{.m_warpgroups = 2,
                   .kv_groups = key_groups,
                   .tile_order = TileOrder::paired,
                   .share_causal_tail = ShareCausalTail::on};
    for (int longer = 0; longer < 40; ++longer)
      for (int shorter = 0; shorter <= longer; ++shorter) {
        int end = 0;
        for (int g = 0; g < key_groups; ++g) {
          const Range range = kv_tiles_of_split(c, shorter, longer, g);
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

// Every 64 rows belong to one consumer warpgroup of one Q tile; the Q tile's last row is the last that any of them
// holds.
TEST(Stream, EveryRowBelongsToOneRowGroup) {
  Random random(5);
  for (int i = 0; i < 3000; ++i) {
    Config c = random_config(random);
    c.tile_order = random.chance(0.7) ? TileOrder::paired : TileOrder::row_major;
    const int len_q = 1 + static_cast<int>(random.below(1500));
    const int all = (len_q + kWarpgroupRows - 1) / kWarpgroupRows;
    const int q_tiles = (len_q + block_rows(c) - 1) / block_rows(c);
    std::set<int> seen;
    for (int index = 0; index < q_tiles; ++index) {
      int last = -1;
      for (int g = 0; g < c.m_warpgroups; ++g) {
        const int tile = warpgroup_tile(c, index, g, all);
        ASSERT_GE(tile, 0);
        if (tile >= all) continue;
        ASSERT_TRUE(seen.insert(tile).second) << "twice";
        last = std::max(last, std::min((tile + 1) * kWarpgroupRows, len_q) - 1);
      }
      ASSERT_EQ(last_row(c, index, len_q), last);
    }
    ASSERT_EQ(static_cast<int>(seen.size()), all);
  }
}

// Every Q tile once; half a wave later comes one that sees as many keys less as this one sees more.
TEST(Stream, FoldedRowTilesMeetTheirOpposites) {
  const Config c{.cluster = 2, .tile_order = TileOrder::lpt_then_spt};
  EXPECT_TRUE(heads_in_x(c));
  for (const int q_tiles : {1, 2, 7, 16}) {
    std::set<int> seen;
    for (int y = 0; y < q_tiles; ++y) seen.insert(q_tile_of_cta(c, MaskKind::causal, y, q_tiles));
    EXPECT_EQ(static_cast<int>(seen.size()), q_tiles);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), q_tiles - 1);
  }
  for (int y = 0; y < 8; ++y)
    EXPECT_EQ(q_tile_of_cta(c, MaskKind::causal, y, 16) + q_tile_of_cta(c, MaskKind::causal, y + 8, 16), 15);
}

// Of an odd number of tiles the block without the mask has the one more.
TEST(Stream, BlocksOfAClusterShareEvenly) {
  const Config c{.m_warpgroups = 1, .cluster = 2};
  EXPECT_EQ(kv_tiles_of_split(c, 15 * 64, 0), (Range{0, 8}));
  EXPECT_EQ(kv_tiles_of_split(c, 15 * 64, 1), (Range{8, 15}));
  EXPECT_EQ(kv_tiles_of_split(c, 1, 0), (Range{0, 1}));
  EXPECT_EQ(kv_tiles_of_split(c, 1, 1), (Range{1, 1}));
}

// Of KV groups that start one after the other the first has as many tiles as any, and the last as few.
TEST(Stream, WhoStartsFirstHasMore) {
  const Config two{.m_warpgroups = 1, .kv_groups = 2, .stagger_splits = StaggerSplits::on};
  EXPECT_EQ(kv_tiles_of_split(two, 15 * 64, 0), (Range{0, 8}));
  EXPECT_EQ(kv_tiles_of_split(two, 15 * 64, 1), (Range{8, 15}));
  for (const int key_groups : {2, 4})
    for (int tiles = 0; tiles < 40; ++tiles) {
      const Config c{.m_warpgroups = 1, .kv_groups = key_groups, .stagger_splits = StaggerSplits::on};
      const auto of = [&](int part) {
        const Range range = kv_tiles_of_split(c, tiles * 64, part);
        return range.end - range.first;
      };
      for (int part = 0; part < key_groups; ++part) {
        EXPECT_LE(of(part), of(0));
        EXPECT_GE(of(part), of(key_groups - 1));
      }
    }
}

// A consumer warpgroup that waits for its start frees no stage, so that consumer warpgroups which share rings start
// together; a block that stays starts once.
TEST(Stream, OnlyKeyGroupsOfOneRowTileStartInTurn) {
  const Problem problem{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
  const auto starts = [&](Config c) {
    c.stagger_splits = StaggerSplits::on;
    return canonical(c, problem).stagger_splits;
  };
  EXPECT_EQ(starts({.m_warpgroups = 1, .kv_groups = 2}), StaggerSplits::on);
  EXPECT_EQ(starts({.m_warpgroups = 1, .kv_groups = 4}), StaggerSplits::on);
  EXPECT_EQ(starts({.m_warpgroups = 2, .kv_groups = 2}), StaggerSplits::off);
  EXPECT_EQ(starts({.m_warpgroups = 1, .kv_groups = 1, .cluster = 2}), StaggerSplits::off);
  EXPECT_EQ(starts({.m_warpgroups = 1, .kv_groups = 2, .scheduler = Scheduler::static_persistent}), StaggerSplits::off);
}

// Of virtual CTAs some may have no Q tile and hear of it only with their queries; a warp has no registers to leave.
TEST(Stream, WhatIsDoneAheadFitsTheBlock) {
  Config c{.m_warpgroups = 1,
           .stages = 2,
           .scheduler = Scheduler::static_persistent,
           .producer = Producer::warpgroup,
           .setmaxnreg = Setmaxnreg::after_loads,
           .tile_setup = TileSetup::early,
           .min_blocks = 3};
  EXPECT_EQ(canonical(c, kHalf64).tile_setup, TileSetup::early);
  EXPECT_EQ(canonical(c, kHalf64).setmaxnreg, Setmaxnreg::after_loads);
  c.producer = Producer::warp;
  EXPECT_EQ(canonical(c, kHalf64).setmaxnreg, Setmaxnreg::early);
  c.virtual_ctas = 2;
  EXPECT_EQ(canonical(c, kHalf64).tile_setup, TileSetup::lazy);
}

// Under a causal mask all Q tiles with an even number of consumer warpgroups see the same number of keys.
TEST(Stream, MirroredRowTilesAreEqual) {
  for (const int row_groups : {2, 4}) {
    const Config c{.m_warpgroups = row_groups, .tile_order = TileOrder::paired};
    const int all = 8 * row_groups;
    for (int index = 0; index < 8; ++index) {
      int tiles = 0;
      for (int g = 0; g < row_groups; ++g) tiles += warpgroup_tile(c, index, g, all) + 1;
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
      const Problem problem{.element = element, .head_dim = dim, .mask = MaskKind::causal, .sizes = sizes};
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
    const Problem problem{.element = Element::fp16, .head_dim = dim, .mask = MaskKind::causal};
    for (int i = 0; i < 5000; ++i) {
      const Config c = canonical(random_config(random), problem);
      const SharedPlan p = shared_plan(c, dim);
      const int boxes = padded_dim(dim) / 64;
      ASSERT_EQ(p.q_stage_bytes, c.m_warpgroups * boxes * 8192);
      ASSERT_EQ(p.ring, c.q_stages * p.q_stage_bytes);
      ASSERT_EQ(p.operand, boxes * c.block_n * 128);
      const int ring_end = p.ring + c.kv_groups * 2 * c.stages * p.operand;
      if (sends_in_stages(c, dim)) {
        // Every sender's part lies in its own stages.
        ASSERT_EQ(p.exchange, p.ring);
        ASSERT_EQ(p.sender_bytes, 2 * c.stages * p.operand);
        ASSERT_LE(bytes_sent(c, dim), p.sender_bytes);
        ASSERT_EQ(c.m_warpgroups, 1);
        ASSERT_EQ(p.barriers,
                  ring_end + (c.epilogue == EpilogueStore::smem_b128_preaddressed ? 16 * consumer_threads(c) : 0));
        ASSERT_EQ(c.virtual_ctas, 1);
      } else {
        ASSERT_EQ(p.exchange, ring_end);
        // Of a cluster, what the other block sent.
        ASSERT_EQ(p.exchange_bytes, (c.cluster > 1 ? 1 : c.kv_groups) * bytes_sent(c, dim));
        ASSERT_EQ(p.sender_bytes, bytes_sent(c, dim));
        const bool apart = (stores_from_smem(c) && num_splits(c) == 1) ||
                           (c.epilogue == EpilogueStore::tma && c.scheduler != Scheduler::single_tile);
        ASSERT_EQ(p.rows % (c.epilogue == EpilogueStore::tma && apart ? tile::kSwizzleAtomBytes : tile::kBoxRowBytes),
                  0);
        const int help =
            c.share_causal_tail == ShareCausalTail::on ? c.m_warpgroups / 2 * c.kv_groups * p.partner_partial_bytes : 0;
        const int lines = c.epilogue == EpilogueStore::smem_b128_preaddressed ? 16 * consumer_threads(c) : 0;
        const int end = ring_end + c.m_warpgroups * p.exchange_bytes + help + (apart ? p.q_stage_bytes : 0) + lines;
        ASSERT_EQ(p.barriers, (c.virtual_ctas - 1) * p.virtual_cta_bytes + end);
        ASSERT_GE(p.virtual_cta_bytes, end);
      }
      ASSERT_GE(p.q_tiles, p.barriers + 8 * barrier_plan(c).count);
      // Behind the last virtual CTA's data come all virtual CTAs' barriers, each with its Q tiles.
      ASSERT_EQ(p.virtual_cta_bytes % tile::kSwizzleAtomBytes, 0);
      ASSERT_GE(p.virtual_cta_barriers, p.q_tiles + 16 * c.q_stages - p.barriers);
      ASSERT_EQ(p.virtual_cta_barriers % 16, 0);
      ASSERT_EQ(p.total, p.q_tiles + 16 * c.q_stages + (c.virtual_ctas - 1) * p.virtual_cta_barriers);
      if (c.virtual_ctas > 1) {
        ASSERT_NE(c.scheduler, Scheduler::single_tile);
        ASSERT_EQ(num_splits(c), 1);
        ASSERT_EQ(c.share_causal_tail, ShareCausalTail::off);
      }
      for (const int offset : {p.q_stage_bytes, p.ring, p.box, p.operand})
        ASSERT_EQ(offset % tile::kSwizzleAtomBytes, 0);
      for (const int offset : {p.exchange, p.exchange_bytes, p.sender_bytes, p.q_tiles}) ASSERT_EQ(offset % 16, 0);
      ASSERT_EQ(p.barriers % 8, 0);
      // Slices of one row a lane and 32 columns at least, four tiles of 8, and two floats a row of every group.
      if (c.cluster > 1) {
        ASSERT_EQ(c.kv_groups, 1);
        ASSERT_EQ(c.scheduler, Scheduler::single_tile);
        ASSERT_EQ(row_slices(c), 2);
        ASSERT_EQ(column_slices(c), 1);
        // Half of 64 rows, 16 bits a value, and two floats of each of these rows.
        ASSERT_EQ(bytes_sent(c, dim), 32 * padded_dim(dim) * 2 + 32 * 8);
      } else if (c.kv_groups > 1) {
        ASSERT_EQ(row_slices(c) * column_slices(c), c.kv_groups);
        ASSERT_EQ(padded_dim(dim) / column_slices(c) % 32, 0);
        ASSERT_EQ(c.kv_groups * bytes_sent(c, dim),
                  (c.kv_groups - 1) * 64 * padded_dim(dim) * 4 + c.kv_groups * 64 * 8);
      }
      const BarrierPlan b = barrier_plan(c);
      ASSERT_EQ(b.ring, (c.m_warpgroups + 1) * c.q_stages);
      ASSERT_EQ(b.inbox, b.ring + 2 * c.kv_groups * c.stages);
      ASSERT_EQ(b.count, b.inbox + (c.cluster > 1 ? c.m_warpgroups : 0));
    }
  }
}

// Every tile's keys come in one iteration and its values in a later one, each once; the first iteration has no values.
TEST(Stream, TurnsHoldEveryTileOnce) {
  for (const SoftmaxOverlap overlap : {SoftmaxOverlap::none, SoftmaxOverlap::pv, SoftmaxOverlap::qk_pv}) {
    const Config c{.softmax_overlap = overlap};
    EXPECT_EQ(iterations_of(c, 0), 0);
    for (int tiles = 1; tiles < 6; ++tiles) {
      int keys = 0;
      int values = 0;
      for (int turn = 0; turn < iterations_of(c, tiles); ++turn) {
        keys += turn < tiles ? 1 : 0;
        values += turn >= v_lag(c) && turn - v_lag(c) < tiles ? 1 : 0;
      }
      EXPECT_EQ(keys, tiles);
      EXPECT_EQ(values, tiles);
    }
    EXPECT_GE(v_lag(c), 1);
  }
}

TEST(Stream, RegistersOfAMultiprocessorAreShared) {
  Config c;
  EXPECT_EQ(registers_allowed(c), 168);  // 9 warps take the room of 12
  c.producer = Producer::warpgroup;
  EXPECT_EQ(launch_registers(c), 168);
  EXPECT_EQ(registers_allowed(c), 240);
  c.m_warpgroups = 4;
  EXPECT_EQ(launch_registers(c), 96);
  EXPECT_EQ(registers_allowed(c), 112);
  const Config teams{
      .m_warpgroups = 1, .scheduler = Scheduler::static_persistent, .producer = Producer::warpgroup, .virtual_ctas = 4};
  EXPECT_EQ(threads(teams), threads(c));
  EXPECT_EQ(registers_allowed(teams), 112);
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    const Config any = random_config(random);
    if (threads(any) > 1024) continue;
    const int warps_a_quarter = (threads(any) / 32 * any.min_blocks + 3) / 4;
    ASSERT_LE(launch_registers(any) * 32 * warps_a_quarter, 16384);
    if (!moves_registers(any)) continue;
    ASSERT_LE(registers_allowed(any) * consumer_threads(any) + tile::kProducerRegisters * kWarpgroupThreads,
              launch_registers(any) * threads(any));
    ASSERT_EQ(registers_allowed(any) % 8, 0);
  }
}

}  // namespace
}  // namespace heed::sm90_persistent
