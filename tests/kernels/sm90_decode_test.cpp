// fwd_sm90_decode without a GPU: which block has which tiles, which places partial results go to, what fits.
#include "kernels/sm90/decode/legality.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "base/random.hpp"
#include "testing.hpp"

namespace heed::sm90_decode {
namespace {

TEST(Sm90Decode, EveryTileHasOneBlockAndSharesDifferByOne) {
  for (const int tiles : {1, 2, 5, 131, 132, 133, 4096, 8191})
    for (const int jobs : {1, 3, 200})
      for (const int blocks : {1, 2, 3, 6, 7, 132, 264, 400})
        for (const SplitPoints split_points : {SplitPoints::anywhere, SplitPoints::at_work_tiles}) {
          const int all = jobs * tiles;
          if (blocks > all) continue;
          const Share s = share({.split_points = split_points}, jobs, tiles, blocks);
          EXPECT_EQ(s.parts, split_points == SplitPoints::at_work_tiles && blocks % jobs == 0 ? blocks / jobs : 0);
          int next = 0;
          for (int b = 0; b < blocks; ++b) {
            ASSERT_EQ(s.first_tile(b), next);
            const int even = all / blocks;
            ASSERT_TRUE(s.tiles(b) == even || s.tiles(b) == even + 1) << tiles << " " << jobs << " " << blocks;
            ASSERT_GT(s.tiles(b), 0);
            if (s.parts > 0) {
              ASSERT_EQ(s.first_tile(b) / tiles, (s.first_tile(b + 1) - 1) / tiles);  // one job
            }
            next += s.tiles(b);
          }
          ASSERT_EQ(next, all);
          for (int job = 0; job < jobs; ++job) {
            const int first = s.first_block(job);
            const int last = s.last_block(job);
            ASSERT_LE(s.first_tile(first), job * tiles);
            ASSERT_GT(s.first_tile(first + 1), job * tiles);
            ASSERT_LE(s.first_tile(last), job * tiles + tiles - 1);
            ASSERT_GT(s.first_tile(last + 1), job * tiles + tiles - 1);
          }
        }
}

// Fewer blocks where jobs then need not be cut, or are all cut alike; never many fewer.
TEST(Sm90Decode, BlocksMatchJobsWhereFewAreLost) {
  constexpr Config kAtJobs{.split_points = SplitPoints::at_work_tiles};
  EXPECT_EQ(blocks_of(kAtJobs, 8, 1024, 132), 128);  // 16 a job
  EXPECT_EQ(blocks_of(kAtJobs, 32, 256, 132), 128);  // 4 a job
  EXPECT_EQ(blocks_of(kAtJobs, 512, 64, 132), 128);  // 4 jobs a block
  EXPECT_EQ(blocks_of(kAtJobs, 132, 64, 132), 132);
  EXPECT_EQ(blocks_of(kAtJobs, 70, 64, 132), 132);    // 70 would be half of them
  EXPECT_EQ(blocks_of(kAtJobs, 1021, 64, 132), 132);  // a prime number of jobs
  EXPECT_EQ(blocks_of(kAtJobs, 3, 5, 132), 15);       // a tile each
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::anywhere}, 8, 1024, 132), 132);
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::at_work_tiles, .max_splits = 4}, 8, 1024, 132), 32);
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::anywhere, .max_splits = 4}, 8, 1024, 132), 32);
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::at_work_tiles, .max_splits = 4}, 8, 3, 132), 24);
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::at_work_tiles, .max_splits = 1}, 512, 64, 132), 128);
  EXPECT_EQ(blocks_of({.split_points = SplitPoints::anywhere}, 1, 7, 132), 7);
  for (long long jobs = 1; jobs < 300; ++jobs) {
    const long long blocks = blocks_of(kAtJobs, jobs, 50, 132);
    EXPECT_TRUE(blocks == std::min(132LL, 50 * jobs) || blocks % jobs == 0 || jobs % blocks == 0) << jobs;
    EXPECT_GE(16 * blocks, 15 * std::min(132LL, 50 * jobs));
  }
}

// The grid tells a block its job only where all of its tiles are of one job.
TEST(Sm90Decode, TheGridSaysWhoseBlockItIs) {
  const auto grid = [](const Config& c, int batch, int heads, int blocks) {
    const attention::Grid3 g = grid_of(c, batch, heads, blocks);
    return std::array{static_cast<int>(g.x), static_cast<int>(g.y), static_cast<int>(g.z)};
  };
  constexpr Config kAtJobs{.split_points = SplitPoints::at_work_tiles};
  EXPECT_EQ(grid(kAtJobs, 8, 4, 128), (std::array{4, 4, 8}));
  EXPECT_EQ(grid(kAtJobs, 1, 8, 128), (std::array{16, 8, 1}));
  EXPECT_EQ(grid(kAtJobs, 64, 8, 128), (std::array{128, 1, 1}));  // four jobs a block
  EXPECT_EQ(grid(kAtJobs, 7, 10, 132), (std::array{132, 1, 1}));
  EXPECT_EQ(grid({.split_points = SplitPoints::anywhere}, 8, 4, 128), (std::array{128, 1, 1}));
}

// No two segments that give partial results share a place, and none lies outside the words.
TEST(Sm90Decode, PlacesAreApart) {
  Random random(3);
  for (int n = 0; n < 200; ++n) {
    const int jobs = 1 + static_cast<int>(random.below(20));
    const int job_tiles = 1 + static_cast<int>(random.below(30));
    const int blocks = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(jobs * job_tiles)));
    const Share s = share({.split_points = static_cast<SplitPoints>(random.below(2))}, jobs, job_tiles, blocks);
    const int rows = 1 + static_cast<int>(random.below(8));
    const Config config{.group_split = static_cast<GroupSplit>(random.below(2))};
    const Words words = words_of(config, 128, blocks, rows);
    std::set<long long> starts;
    std::set<int> arrivals;
    int segments = 0;
    for (int job = 0; job < jobs; ++job) {
      const int first = s.first_block(job);
      const int last = s.last_block(job);
      if (first == last) continue;
      EXPECT_TRUE(arrivals.insert(first).second) << "two jobs are counted at one word";
      for (int block = first; block <= last; ++block, ++segments) {
        const long long at = words.place(2 * block + (block == first ? 1 : 0));
        EXPECT_GE(at, blocks);
        EXPECT_EQ(at % 8, 0);  // a sector starts there
        EXPECT_LE(at + words.place_words, words.total());
        starts.insert(at);
      }
    }
    EXPECT_EQ(words.place_words % 8, 0);
    EXPECT_GE(words.place_words, rows * (128 + 2));  // columns, reference and sum of every row
    EXPECT_EQ(static_cast<int>(starts.size()), segments);
  }
}

TEST(Sm90Decode, JobsCoverThePackedRows) {
  ForwardParams p{};
  p.batch = 2;
  p.heads = 15;
  p.heads_kv = 3;
  p.group_size = 5;
  p.len_q = 7;
  p.len_k = 100;
  p.right_offset = 93;
  constexpr Config kConfig{.block_m = 16};
  ASSERT_EQ(row_tiles(kConfig, p.group_size, p.len_q), 3);
  int rows = 0;
  for (int index = 0; index < 2 * 3 * 3; ++index) {
    const Job job = job_at(kConfig, MaskKind::causal, p, place_of_job(kConfig, p, index));
    EXPECT_EQ(job.batch, index / 9);
    EXPECT_EQ(job.kv_head, index / 3 % 3);
    EXPECT_EQ(job.first, index % 3 * 16);
    EXPECT_EQ(job.keys_plain, 94 + job.first / 5);
    EXPECT_EQ(job.keys_end, 94 + (job.first + job.rows - 1) / 5);
    rows += job.rows;
  }
  EXPECT_EQ(rows, 2 * 15 * 7);
  EXPECT_EQ(tiles_of_job(Config{.block_n = 32}, MaskKind::causal, 7, 93, 100), 4);
  EXPECT_EQ(tiles_of_job(Config{.block_n = 32}, MaskKind::causal, 7, -20, 100), 1);  // nobody sees anything
}

TEST(Sm90Decode, WhatDoesNotFitIsIllegal) {
  constexpr Problem kProblem{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
  const auto legal = [&](const Config& c) { return is_legal(c, kProblem, 227 * 1024, 228 * 1024); };
  EXPECT_EQ(legal({}), Illegal::no);
  EXPECT_EQ(legal({.kv_groups = 4, .stages = 6}), Illegal::stages);
  constexpr Config kColumns{.block_n = 64, .stages = 3, .merge_warps = 1, .group_split = GroupSplit::columns};
  EXPECT_EQ(legal(kColumns), Illegal::no);  // stages are everybody's: three of four groups do
  EXPECT_EQ(legal({.block_n = 32, .kv_groups = 4, .merge_warps = 1, .group_split = GroupSplit::columns}),
            Illegal::columns);
  EXPECT_EQ(legal({.block_m = 64, .block_n = 64, .merge_warps = 1, .group_split = GroupSplit::columns}),
            Illegal::columns_rows);
  EXPECT_EQ(legal({.block_n = 64, .stages = 4, .merge_warps = 2, .group_split = GroupSplit::columns}),
            Illegal::columns_mergers);
  EXPECT_EQ(legal({.block_m = 16, .stages = 8, .producer_warp = false}), Illegal::no);
  EXPECT_EQ(legal({.block_m = 32, .kv_groups = 2, .stages = 8, .producer_warp = false}), Illegal::producer);
  EXPECT_EQ(legal({.block_m = 64, .kv_groups = 8, .stages = 8}), Illegal::threads);
  EXPECT_EQ(legal({.block_n = 64, .kv_groups = 4, .stages = 8}), Illegal::shared_memory);
  EXPECT_EQ(legal({.kv_groups = 4, .stages = 8, .min_blocks = 2}), Illegal::occupancy);
  EXPECT_EQ(legal({.block_n = 32, .kv_groups = 8, .stages = 8, .merge_warps = 4}), Illegal::registers);
  EXPECT_EQ(is_legal({}, {.element = Element::fp16, .head_dim = 100, .mask = MaskKind::none}, 227 * 1024, 228 * 1024),
            Illegal::head_dim);
  // Nine warps are three a quarter of the multiprocessor, as twelve are.
  EXPECT_EQ(registers_allowed({.kv_groups = 6, .merge_warps = 2}), 168);
  EXPECT_EQ(registers_allowed({.kv_groups = 6, .merge_warps = 2, .producer_warp = false}), 255);
  EXPECT_EQ(legal({.stages = 8, .merge_warps = 4}), Illegal::no);
  EXPECT_EQ(legal({.stages = 8, .merge_warps = 4, .exp2 = static_cast<attention::Exp2>(1)}), Illegal::registers);
  EXPECT_EQ(legal({.stages = 8, .merge_warps = 4, .producer_warp = false}), Illegal::no);
}

}  // namespace
}  // namespace heed::sm90_decode
