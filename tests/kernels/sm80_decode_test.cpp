// fwd_sm80_decode without a GPU: which block, group and lane takes which row and key, and the whole computation done
// with those functions in the kernel's order, merges included.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/random.hpp"
#include "kernels/sm80/decode/config.hpp"
#include "testing.hpp"

namespace heed::sm80_decode {
namespace {

constexpr int kShapes = 4000;

struct Shape {
  Config config;
  MaskKind mask = MaskKind::none;
  int heads_kv = 1;
  int group_size = 1;
  int len_q = 1;
  int len_k = 1;
  int causal_offset = 0;
  int splits = 1;
};

template <std::size_t kCount>
int one_of(Random& random, const int (&values)[kCount]) {
  return values[random.below(kCount)];
}

int from_to(Random& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

Shape random_shape(Random& random) {
  Shape s;
  s.config.block_m = one_of(random, {16, 32, 64});
  s.config.warp_rows = s.config.block_m == 16 ? 16 : one_of(random, {16, 32});
  s.config.block_n = one_of(random, {16, 32, 64});
  s.config.kv_groups = one_of(random, {1, 2, 4, 8});
  s.mask = random.chance(0.6) ? MaskKind::causal : MaskKind::none;
  s.heads_kv = from_to(random, 1, 3);
  s.group_size = one_of(random, {1, 2, 3, 4, 7, 8, 16});
  s.len_q = one_of(random, {1, 1, 2, 3, 7, 16, 29, 77});
  s.len_k = random.chance(0.3) ? from_to(random, 1, 40) : from_to(random, 1, 1500);
  s.causal_offset = random.chance(0.5) ? s.len_k - s.len_q : 0;
  s.splits = random.chance(0.3) ? 1 : from_to(random, 1, 140);
  return s;
}

TEST(Decode, EveryPackedRowIsHeldOnce) {
  Random random(1);
  for (int n = 0; n < kShapes; ++n) {
    const Shape s = random_shape(random);
    const int tiles = row_tiles(s.config, s.group_size, s.len_q);
    std::set<std::tuple<int, int, int>> held;
    for (int y = 0; y < s.heads_kv * tiles; ++y) {
      const RowTile tile = row_tile(s.config, y, s.group_size, s.len_q);
      ASSERT_GE(tile.rows, 1);
      ASSERT_LE(tile.rows, s.config.block_m);
      for (int row = 0; row < tile.rows; ++row) {
        const PackedRow at = packed_row(tile.first + row, s.group_size);
        ASSERT_LT(at.query, s.len_q);
        ASSERT_GE(at.head, 0);
        ASSERT_LT(at.head, s.group_size);
        ASSERT_LT(tile.kv_head, s.heads_kv);
        ASSERT_TRUE(held.insert({tile.kv_head, at.head, at.query}).second);
      }
    }
    ASSERT_EQ(held.size(), static_cast<std::size_t>(s.heads_kv * s.group_size * s.len_q));
  }
}

TEST(Decode, KeysOfATileAreThoseItsRowsSee) {
  Random random(2);
  for (int n = 0; n < kShapes; ++n) {
    const Shape s = random_shape(random);
    for (int y = 0; y < s.heads_kv * row_tiles(s.config, s.group_size, s.len_q); ++y) {
      const RowTile tile = row_tile(s.config, y, s.group_size, s.len_q);
      int most = 0;
      int fewest = std::numeric_limits<int>::max();
      for (int row = 0; row < tile.rows; ++row) {
        const int query = packed_row(tile.first + row, s.group_size).query;
        const int sees = visible_keys(s.mask, query, s.causal_offset, s.len_k);
        most = std::max(most, sees);
        fewest = std::min(fewest, sees);
      }
      ASSERT_EQ(keys_some_see(s.mask, tile, s.group_size, s.causal_offset, s.len_k), most);
      ASSERT_EQ(keys_all_see(s.mask, tile, s.group_size, s.causal_offset, s.len_k), fewest);
    }
  }
}

TEST(Decode, EveryTileOfKeysIsTakenOnceAndSplitsAreEven) {
  Random random(3);
  for (int n = 0; n < kShapes; ++n) {
    const Shape s = random_shape(random);
    const int keys = random.chance(0.05) ? 0 : s.len_k;
    std::vector<int> taken(static_cast<std::size_t>(ceil_div(keys, s.config.block_n)), 0);
    int most = 0;
    int fewest = std::numeric_limits<int>::max();
    for (int split = 0; split < s.splits; ++split) {
      const TileRange range = tiles_of_split(keys, s.config.block_n, s.splits, split);
      most = std::max(most, range.count);
      fewest = std::min(fewest, range.count);
      int of_groups = 0;
      for (int group = 0; group < s.config.kv_groups; ++group) {
        const int count = tiles_of_group(range.count, s.config.kv_groups, group);
        of_groups += count;
        for (int t = 0; t < count; ++t) {
          const int tile = range.first + group + t * s.config.kv_groups;
          ASSERT_LT(tile * s.config.block_n, keys) << "a tile holds a key that exists";
          ++taken.at(static_cast<std::size_t>(tile));
        }
      }
      ASSERT_EQ(of_groups, range.count);
    }
    ASSERT_LE(most - fewest, 1);
    for (const int times : taken) ASSERT_EQ(times, 1);
  }
}

TEST(Decode, LargeNumbersDoNotOverflow) {
  const TileRange last = tiles_of_split(std::numeric_limits<int>::max() - 63, 16, 1024, 1023);
  EXPECT_EQ(last.first + last.count, ceil_div(std::numeric_limits<int>::max() - 63, 16));
  EXPECT_EQ(ceil_div(std::numeric_limits<int>::max(), 16), 134217728);
}

TEST(Decode, WorkspaceRowsAreApart) {
  Config c;
  for (const int dim : {64, 128})
    for (const int splits : {2, 5}) {
      const int tiles = 3;
      const long long floats = workspace_bytes(c, tiles, splits, dim) / 4;
      std::vector<int> owner(static_cast<std::size_t>(floats), 0);
      for (int tile = 0; tile < tiles; ++tile)
        for (int split = 0; split < splits; ++split)
          for (int row = 0; row < c.block_m; ++row) {
            const long long index = workspace_row(c, tile, splits, split, row);
            const long long out = workspace_out(index, dim);
            EXPECT_EQ(out % 4, 0) << "written in 16-byte pieces";
            for (int d = 0; d < dim; ++d) ++owner.at(static_cast<std::size_t>(out + d));
            const long long state = workspace_state(c, tiles, splits, index, dim);
            EXPECT_EQ(state % 2, 0);
            for (int i = 0; i < 2; ++i) ++owner.at(static_cast<std::size_t>(state + i));
          }
      for (const int times : owner) ASSERT_EQ(times, 1);
    }
  EXPECT_EQ(workspace_bytes(c, 3, 1, 64), 0);
}

TEST(Decode, SplitsFillTheChip) {
  Config c;
  c.block_n = 16;
  c.kv_groups = 4;
  const auto filled = [&](long long tiles, long long slots, int keys) {
    const int splits = choose_splits(c, tiles, slots, keys);
    const long long blocks = tiles * splits;
    return std::pair{splits, static_cast<double>(blocks) / static_cast<double>((blocks + slots - 1) / slots * slots)};
  };
  EXPECT_EQ(filled(32, 132, 8192).first, 4);   // b8h32hkv4l1k8192: 128 blocks on 132 multiprocessors
  EXPECT_EQ(filled(32, 264, 8192).first, 8);   // two a multiprocessor
  EXPECT_EQ(filled(8, 264, 32768).first, 32);  // b1h32hkv8l1k32768: 256 of 264
  EXPECT_EQ(filled(512, 264, 2048).first, 1);  // b64h32hkv8l1k2048: full without splitting
  EXPECT_EQ(filled(1, 264, 64).first, 1);      // one tile of keys a group is the least
  EXPECT_EQ(filled(1, 264, 65).first, 2);
  EXPECT_EQ(filled(1, 264, 0).first, 1);  // nothing is visible
  EXPECT_EQ(filled(1, 1, 1 << 20).first, 1);
  Random random(5);
  for (int n = 0; n < kShapes; ++n) {
    const long long tiles = from_to(random, 1, 700);
    const long long slots = one_of(random, {132, 264, 396, 528});
    const auto [splits, fill] = filled(tiles, slots, 1 << 20);
    EXPECT_GE(fill, 0.75) << tiles << " tiles, " << slots << " slots, " << splits << " splits";
    EXPECT_LE(tiles * splits, std::max(tiles, 4 * (slots + tiles)));
  }
}

TEST(Decode, MergePartsFitTheSharedMemoryAndTheThreads) {
  Config c;
  for (const int groups : {1, 2, 4, 8})
    for (const int dim : {64, 128})
      for (int rows = 1; rows <= c.block_m; ++rows)
        for (const int splits : {2, 3, 33, 200}) {
          c.kv_groups = groups;
          const int parts = merge_parts(c, dim, rows, splits);
          EXPECT_GE(parts, 1);
          EXPECT_LE(parts, std::min(groups, splits));
          if (parts > 1) {
            EXPECT_LE(parts * rows * dim / 8, threads(c));
          }
          int added = 0;  // the kernel: splits part, part + parts, ...
          for (int part = 0; part < parts; ++part) added += tiles_of_group(splits, parts, part);
          EXPECT_EQ(added, splits);
        }
}

// One row's softmax state, as the kernel keeps it in registers, in shared memory and in the workspace.
struct State {
  double reference = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double out = 0;  // one column of V is enough

  void add_key(double score, double value) { merge({score, 1, value}); }
  void merge(const State& other) {
    const double next = std::max(reference, other.reference);
    const double finite = std::isinf(next) ? 0 : next;
    const double mine = std::exp2(reference - finite);
    const double theirs = std::exp2(other.reference - finite);
    reference = next;
    sum = sum * mine + other.sum * theirs;
    out = out * mine + other.out * theirs;
  }
};

// The kernel's loops over blocks, groups, tiles, splits and parts, with its own index functions, against a plain
// softmax. Keys that nobody sees are NaN: reading one would show.
TEST(Decode, TheKernelsLoopsComputeAttention) {
  Random random(7);
  for (int n = 0; n < 600; ++n) {
    Shape s = random_shape(random);
    s.len_k = from_to(random, 1, 300);
    s.causal_offset = random.chance(0.5) ? s.len_k - s.len_q : 0;
    const int seen_by_last = visible_keys(s.mask, s.len_q - 1, s.causal_offset, s.len_k);
    std::vector<double> key(static_cast<std::size_t>(s.len_k));
    std::vector<double> value(static_cast<std::size_t>(s.len_k));
    for (int j = 0; j < s.len_k; ++j) {
      const bool seen = j < seen_by_last;
      key[static_cast<std::size_t>(j)] = seen ? random.uniform() * 20 - 10 : std::nan("");
      value[static_cast<std::size_t>(j)] = seen ? random.uniform() - 0.5 : std::nan("");
    }
    const auto score = [&](int head, int query, int j) {
      return key[static_cast<std::size_t>(j)] * (1 + 0.1 * head) + 0.01 * query;
    };
    std::map<std::pair<int, int>, State> stored;  // (head in group, query)
    const int tiles = row_tiles(s.config, s.group_size, s.len_q);
    for (int y = 0; y < tiles; ++y) {
      const RowTile tile = row_tile(s.config, y, s.group_size, s.len_q);
      const int keys_end = keys_some_see(s.mask, tile, s.group_size, s.causal_offset, s.len_k);
      const int keys_plain = keys_all_see(s.mask, tile, s.group_size, s.causal_offset, s.len_k);
      std::vector<std::vector<State>> workspace;  // (split, row)
      for (int split = 0; split < s.splits; ++split) {
        const TileRange range = tiles_of_split(keys_end, s.config.block_n, s.splits, split);
        std::vector<State> block(static_cast<std::size_t>(tile.rows));
        for (int group = 0; group < s.config.kv_groups; ++group) {
          std::vector<State> partial(static_cast<std::size_t>(tile.rows));
          for (int t = 0; t < tiles_of_group(range.count, s.config.kv_groups, group); ++t) {
            const int first_key = (range.first + group + t * s.config.kv_groups) * s.config.block_n;
            const bool masks = first_key + s.config.block_n > keys_plain;
            for (int row = 0; row < tile.rows; ++row) {
              const PackedRow at = packed_row(tile.first + row, s.group_size);
              const int row_end = visible_keys(s.mask, at.query, s.causal_offset, s.len_k);
              for (int j = first_key; j < first_key + s.config.block_n; ++j) {
                const bool copied = j < keys_end;  // else zeros
                if (masks && j >= row_end) continue;
                ASSERT_TRUE(copied) << "a zero that was filled in would count";
                partial[static_cast<std::size_t>(row)].add_key(score(at.head, at.query, j),
                                                               value[static_cast<std::size_t>(j)]);
              }
            }
          }
          for (std::size_t row = 0; row < block.size(); ++row) block[row].merge(partial[row]);
        }
        workspace.push_back(block);
      }
      const int parts = merge_parts(s.config, 64, tile.rows, s.splits);
      for (int row = 0; row < tile.rows; ++row) {
        State merged;
        for (int part = 0; part < parts; ++part) {
          State of_part;
          for (int i = 0; i < tiles_of_group(s.splits, parts, part); ++i)
            of_part.merge(workspace[static_cast<std::size_t>(part + i * parts)][static_cast<std::size_t>(row)]);
          merged.merge(of_part);
        }
        const PackedRow at = packed_row(tile.first + row, s.group_size);
        stored[{at.head, at.query}] = merged;
      }
    }
    for (int head = 0; head < s.group_size; ++head)
      for (int query = 0; query < s.len_q; ++query) {
        const int sees = visible_keys(s.mask, query, s.causal_offset, s.len_k);
        const State& got = stored.at({head, query});
        double maximum = -std::numeric_limits<double>::infinity();
        for (int j = 0; j < sees; ++j) maximum = std::max(maximum, score(head, query, j));
        double sum = 0;
        double out = 0;
        for (int j = 0; j < sees; ++j) {
          const double weight = std::exp2(score(head, query, j) - maximum);
          sum += weight;
          out += weight * value[static_cast<std::size_t>(j)];
        }
        if (sees == 0) {
          ASSERT_EQ(got.sum, 0);
          continue;
        }
        ASSERT_NEAR(got.out / got.sum, out / sum, 1e-9);
        ASSERT_NEAR(got.reference + std::log2(got.sum), maximum + std::log2(sum), 1e-9);
      }
  }
}

// cp.async of a tile: every chunk of every row once, none from behind the keys' end, each to its own place.
TEST(Decode, CopiesCoverATile) {
  for (const int dim : {64, 128})
    for (const int group_threads : {32, 64, 128})
      for (const int block_n : {16, 32, 64}) {
        const int chunks = dim / 8;
        const int copy_rows = group_threads / chunks;
        ASSERT_EQ(group_threads % chunks, 0);
        ASSERT_EQ(block_n % copy_rows, 0);
        std::set<std::pair<int, int>> copied;
        for (int thread = 0; thread < group_threads; ++thread)
          for (int i = 0; i < block_n / copy_rows; ++i)
            copied.insert({thread / chunks + i * copy_rows, thread % chunks});
        EXPECT_EQ(copied.size(), static_cast<std::size_t>(block_n * chunks));
      }
}

TEST(Decode, PlansOverlapOnlyWhereTheyMay) {
  for (const int groups : {1, 4, 16})
    for (const int stages : {1, 3, 8})
      for (const int dim : {64, 128}) {
        Config c;
        c.kv_groups = groups;
        c.stages = stages;
        const SharedPlan plan = shared_plan(c, dim);
        EXPECT_GE(plan.stages, c.block_m * tile::row_pitch(c.smem_layout, dim));
        EXPECT_GE(plan.total, plan.stages + groups * stages * 2 * plan.tile_bytes);
        EXPECT_GE(plan.row_state, groups * c.block_m * (dim + 4) * 4);
        EXPECT_GE(plan.is_last, plan.row_state + groups * c.block_m * 8);
        EXPECT_GE(plan.total, plan.is_last + 4);
        EXPECT_EQ(plan.stages % 16, 0);
        EXPECT_EQ(plan.tile_bytes % 16, 0);
        EXPECT_EQ(plan.row_state % 8, 0);
        EXPECT_EQ(plan.partial_pitch % 4, 0);
      }
}

}  // namespace
}  // namespace heed::sm80_decode
