// Who works on which rows and KV tiles in fwd_sm90_persistent, checked on the host.
#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/sm90/persistent/known_kv_tiles.hpp"
#include "sm90_persistent_configs.hpp"
#include "testing.hpp"

namespace heed::sm90_persistent {
namespace {

// What a program of whole Q tiles does not ask for is so.
TEST(Persistent, WholeRowTilesSeeTheSameKeys) {
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
TEST(Persistent, ProgramsKnowWhatTheirTilesMeet) {
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
  Problem problem{.element = Element::fp16,
                  .head_dim = 64,
                  .mask = MaskKind::causal,
                  .sizes = {1, 8, 8, 1024, 1024, 0},
                  .specialization = kPruned};
  constexpr Config kSplit{.m_warpgroups = 1, .cluster = 2};
  EXPECT_FALSE(known_kv_tiles(kSplit, problem).some_later_masked) << "the mask's edge runs from corner to corner";
  problem.specialization.prune = Prune::off;
  EXPECT_TRUE(known_kv_tiles(kSplit, problem).some_later_masked);
}

TEST(Persistent, EveryKeyTileBelongsToOnePart) {
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

TEST(Persistent, EveryRowTileComesOnce) {
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
      const QTile tile = attention::q_tile_of_all(c.tile_order, n, q_tiles, heads, batch, together);
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
TEST(Persistent, WavesGoBackAndForth) {
  Random random(6);
  for (int i = 0; i < 300; ++i) {
    const int blocks = 1 + static_cast<int>(random.below(140));
    const int all = 1 + static_cast<int>(random.below(600));
    std::set<int> seen;
    for (int block = 0; block < std::min(blocks, all); ++block) {
      bool back = false;
      for (int index = block; index < all; index += blocks, back = !back) {
        const int taken = back ? attention::q_tile_from_the_end(index, block, blocks, all) : index;
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

// Balanced waves are as many as full ones, of as few CTAs as that takes.
TEST(Persistent, BalancedWavesAreAsManyAsFullOnes) {
  using attention::persistent_ctas;
  EXPECT_EQ(persistent_ctas(false, 256, 132), 132);
  EXPECT_EQ(persistent_ctas(true, 256, 132), 128);
  EXPECT_EQ(persistent_ctas(true, 1536, 396), 384);
  for (const int places : {1, 2, 132, 396})
    for (int tiles = 1; tiles < 1200; ++tiles) {
      const auto waves = [&](long long ctas) { return (tiles + ctas - 1) / ctas; };
      const long long ctas = persistent_ctas(true, tiles, places);
      ASSERT_LE(ctas, persistent_ctas(false, tiles, places));
      ASSERT_EQ(waves(ctas), waves(places));
      if (ctas > 1) {
        ASSERT_GT(waves(ctas - 1), waves(places));
      }
    }
}

// KV groups of a pair hold every tile once, and multiply as often as each other but for a tile or two.
TEST(Persistent, PairsCutTheirTilesByWork) {
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
TEST(Persistent, EveryRowBelongsToOneRowGroup) {
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
TEST(Persistent, FoldedRowTilesMeetTheirOpposites) {
  const Config c{.cluster = 2, .tile_order = TileOrder::lpt_then_spt};
  EXPECT_EQ(grid_axes(c), attention::GridAxes::heads_tiles_batch);
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
TEST(Persistent, BlocksOfAClusterShareEvenly) {
  const Config c{.m_warpgroups = 1, .cluster = 2};
  EXPECT_EQ(kv_tiles_of_split(c, 15 * 64, 0), (Range{0, 8}));
  EXPECT_EQ(kv_tiles_of_split(c, 15 * 64, 1), (Range{8, 15}));
  EXPECT_EQ(kv_tiles_of_split(c, 1, 0), (Range{0, 1}));
  EXPECT_EQ(kv_tiles_of_split(c, 1, 1), (Range{1, 1}));
}

// Of KV groups that start one after the other the first has as many tiles as any, and the last as few.
TEST(Persistent, WhoStartsFirstHasMore) {
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

// Under a causal mask all Q tiles with an even number of consumer warpgroups see the same number of keys.
TEST(Persistent, MirroredRowTilesAreEqual) {
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

TEST(Persistent, HeadsTogetherFitTheL2) {
  EXPECT_EQ(attention::heads_together(64, 8192, 64), 16);  // 2 MiB of K and V a head
  EXPECT_EQ(attention::heads_together(64, 512, 64), 64);
  EXPECT_EQ(attention::heads_together(64, 1 << 24, 64), 1);
  EXPECT_EQ(attention::heads_together(64, 0, 3), 3);
}

// Every tile's keys come in one iteration and its values in a later one, each once; the first iteration has no values.
TEST(Persistent, TurnsHoldEveryTileOnce) {
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

}  // namespace
}  // namespace heed::sm90_persistent
