// Scheduler::stream_k of fwd_sm90_persistent on the emulated GPU: lists of blocks that several CTAs share, and whole Q
// tiles that CTAs draw.
#include "base/random.hpp"
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;

constexpr Config stream(int m_warpgroups) {
  return {.m_warpgroups = m_warpgroups, .block_n = 64, .stages = 2, .q_stages = 2, .scheduler = Scheduler::stream_k};
}

// The blocks of all Q tiles, in the order of the stream.
template <Config kConfig>
std::vector<int> lists_of(const ScoreFeatureParams& p) {
  std::vector<int> lists;
  const TensorStrides& c = p.block_count_strides;
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads; ++h)
      for (int row = (p.len_q - 1) / block_rows(kConfig); row >= 0; --row)
        lists.push_back(std::min(
            p.block_counts[b * c.batch + h * c.head + row * block_rows(kConfig) / p.block_rows * c.row], p.block_most));
  return lists;
}
// Whether a launch is divided: with a list for two Q tiles as if no head had an odd number of them.
template <Config kConfig>
bool divides(ScoreFeatureParams p, int ctas) {
  p.len_q = (p.len_q + p.block_rows - 1) / p.block_rows * p.block_rows;
  Stream stream{.ctas = ctas};
  for (const int blocks : lists_of<kConfig>(p)) {
    stream.total += blocks + kTileCost;
    stream.longest = std::max(stream.longest, blocks);
  }
  return stream.divides();
}

// A launch whose lists are divided, or are not, as the test is about.
template <Config kConfig, Problem kProblem>
void run_divided(const FeatureShape& shape, std::uint64_t seed, bool expected, std::vector<unsigned>& counters) {
  FeatureCase problem(kProblem, shape, seed);
  EXPECT_EQ(divides<kConfig>(problem.params(), Places<kConfig>::kAll), expected) << "seed " << seed;
  launch_case<kConfig, kProblem>(problem, shape, seed, counters);
  EXPECT_EQ(problem.difference(), "") << "seed " << seed;
}

// Launches that count in the same semaphores: of five waves of Q tiles that are drawn, and divided ones between them.
template <Config kConfig, Problem kProblem>
void run_in_turn() {
  FeatureShape shape{.heads = Places<kConfig>::kAll, .heads_kv = 1, .len_k = 300, .right_offset = 100};
  shape.len_q = 4 * block_rows(kConfig) + 44;
  shape.blocks = emulator::ListsOfBlocks{.rows = block_rows(kConfig)};
  std::vector<unsigned> counters = Places<kConfig>::counters();
  std::uint64_t seed = 90;
  run_divided<kConfig, kProblem>(shape, ++seed, false, counters);
  shape.blocks->per_head = false;
  run_divided<kConfig, kProblem>(shape, ++seed, false, counters);
  shape.len_k = 1300;
  shape.blocks->density = 0;
  shape.blocks->whole = 1;
  run_divided<kConfig, kProblem>(shape, ++seed, true, counters);
  shape.len_k = 300;
  shape.blocks->whole = 0;
  FeatureCase empty(kProblem, shape, ++seed);
  const std::vector<int> zeros(lists_of<kConfig>(empty.params()).size(), 0);
  empty.params().block_counts = zeros.data();
  launch_case<kConfig, kProblem>(empty, shape, seed, counters);
  EXPECT_EQ(empty.difference(), "");
  shape.blocks = {};
  FeatureCase dense(kProblem, shape, ++seed);
  launch_case<kConfig, kProblem>(dense, shape, seed, counters);
  EXPECT_EQ(dense.difference(), "");
}

// A few rows that see all keys beside others that see a few, as global tokens do; and lists that are about as long.
template <Config kConfig, Problem kProblem>
void run_lists() {
  constexpr Config kFits = canonical(kConfig, kProblem);
  static_assert(kFits.scheduler == Scheduler::stream_k);
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 1300, .right_offset = 1000};
  std::uint64_t seed = 40;
  for (const int keys : {64, 128}) {
    shape.blocks = emulator::ListsOfBlocks{.rows = block_rows(kConfig),
                                           .keys = keys,
                                           .density = 0.1,
                                           .per_batch = keys == 64,
                                           .per_head = keys == 64,
                                           .whole = 1};
    run_case<kFits, kProblem>(shape, ++seed);
  }
  shape.batch = 2;
  shape.blocks->density = 0;  // rows that see nothing, but for a list that all CTAs share
  run_case<kFits, kProblem>(shape, ++seed);
  shape.blocks->whole = 0;
  shape.blocks->density = 0.4;
  run_case<kFits, kProblem>(shape, ++seed);
  shape.len_q = 40;  // fewer Q tiles than CTAs
  run_case<kFits, kProblem>(shape, ++seed);
  shape.blocks = {};
  shape.len_k = 200;
  run_case<kFits, kProblem>(shape, ++seed);  // a launch without lists
  run_in_turn<kFits, kProblem>();
}

TEST(EmulatedPersistentBlocks, StreamK) {
  run_lists<stream(1), featured_problem(Element::fp16, 64, kNone, {.blocks = true})>();
}
TEST(EmulatedPersistentBlocks, StreamKOfTwoConsumerWarpgroups) {
  constexpr Problem kProblem = featured_problem(Element::bf16, 128, kCausal, {.sinks = true, .blocks = true});
  run_lists<stream(2), kProblem>();
}
TEST(EmulatedPersistentBlocks, StreamKBesideBothProducts) {
  run_lists<[] {
    Config c = stream(2);
    c.stages = 3;
    c.producer = Producer::warpgroup;
    c.softmax_overlap = SoftmaxOverlap::qk_pv;
    return c;
  }(),
            featured_problem(Element::fp16, 128, kNone, {.blocks = true})>();
}
TEST(EmulatedPersistentBlocks, StreamKOfVirtualCtas) {
  constexpr Config kVirtual{.m_warpgroups = 2,
                            .block_n = 64,
                            .stages = 2,
                            .scheduler = Scheduler::stream_k,
                            .row_max = RowMax::stale_16,
                            .producer = Producer::warpgroup,
                            .epilogue = EpilogueStore::smem_b128,
                            .virtual_ctas = 2};
  run_lists<kVirtual, featured_problem(Element::fp16, 64, kNone, {.blocks = true, .out_norm = true})>();
}

// With a ticket that nobody can draw any more there is a Q tile that nobody computes, and the counter is back at zero.
TEST(EmulatedPersistentBlocks, WholeQTilesOfStreamKAreDrawn) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, {.blocks = true});
  constexpr Config kConfig = canonical(stream(1), kProblem);
  FeatureShape shape{.batch = 1, .heads = 4, .heads_kv = 4, .len_q = 256, .len_k = 256};
  shape.blocks = emulator::ListsOfBlocks{.density = 1};
  FeatureCase problem(kProblem, shape, 7);
  ASSERT_FALSE(divides<kConfig>(problem.params(), Places<kConfig>::kAll));
  std::vector<unsigned> counters = Places<kConfig>::counters();
  counters[0] = 1;
  launch_case<kConfig, kProblem>(problem, shape, 7, counters);
  // Of 16 Q tiles the five CTAs begin with four of head 0 and the last of head 1; next would be the one before it.
  EXPECT_THAT(problem.difference(), ::testing::HasSubstr("batch 0 head 1 row 128"));
}

struct Words {
  unsigned begin[4];
  unsigned end[4];
  unsigned divided;
};

// What find_part should leave of CTA `cta`, by going through all lists.
Words words_of(const std::vector<int>& lists, bool divided, int ctas, int cta) {
  Stream stream{.ctas = ctas};
  for (const int blocks : lists) stream.total += blocks + kTileCost;
  const auto all = static_cast<unsigned>(lists.size());
  if (!divided) return {{static_cast<unsigned>(cta), 0, 1, 0}, {all, 0, 1, 0}, 0};
  Words words{{0, 0, 1, 0}, {cta < stream.parts() ? all : 0, 0, 1, 0}, 1};
  if (cta >= stream.parts()) return words;
  StreamTile tile{0, 0};
  for (unsigned index = 0; index < all; ++index) {
    tile.blocks = lists[index];
    const auto keep = [&](unsigned(&to)[4], long long at, unsigned from_start) {
      if (at < tile.begin || at >= tile.end()) return;
      const int cut = tile.cut(at);
      const bool is_whole = cut == 0 || cut == tile.blocks;
      const Pieces pieces = is_whole ? Pieces{1, 0} : pieces_of(stream, tile);
      to[0] = index + (cut == 0 ? 0 : is_whole ? 1 : from_start);
      to[1] = is_whole ? 0 : static_cast<unsigned>(cut);
      to[2] = static_cast<unsigned>(pieces.count);
      to[3] = static_cast<unsigned>(pieces.first_cta);
    };
    keep(words.begin, stream.begin(cta), 0);
    keep(words.end, stream.begin(cta + 1), 1);
    tile.begin = tile.end();
  }
  return words;
}

// Any number of Q tiles and heads, counts with gaps and without, which heads or entries share or not, and lists for two
// Q tiles.
TEST(EmulatedPersistentBlocks, PartsOfStreamK) {
  static constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, {.blocks = true});
  static constexpr Config kConfig = canonical(stream(1), kProblem);
  Random random(11);
  const auto drawn = [&](int least, int most) {
    return least + static_cast<int>(random.below(static_cast<std::uint64_t>(most - least + 1)));
  };
  int divided = 0;
  for (int round = 0; round < 60; ++round) {
    ScoreFeatureParams p{};
    p.batch = drawn(1, 4);
    p.heads = drawn(1, 6);
    p.len_q = round % 3 == 0 ? drawn(1, 200) : drawn(1, 2000);
    p.block_rows = round % 4 == 0 ? 128 : 64;
    p.block_most = drawn(1, 60);
    const int rows = (p.len_q + p.block_rows - 1) / p.block_rows;
    TensorStrides& c = p.block_count_strides;
    c.row = random.chance(0.8) ? 1 : 3;
    c.head = random.chance(0.4) ? 0 : rows * c.row + (random.chance(0.8) ? 0 : 5);
    const long long of_entry = c.head == 0 ? rows * c.row : p.heads * c.head;
    c.batch = random.chance(0.4) ? 0 : of_entry + (random.chance(0.8) ? 0 : 7);
    std::vector<int> counts(static_cast<std::size_t>(p.batch * (of_entry + 7)), p.block_most);  // also in gaps
    for (int b = 0; b < p.batch; ++b)
      for (int h = 0; h < p.heads; ++h)
        for (int row = 0; row < rows; ++row)
          counts[static_cast<std::size_t>(b * c.batch + h * c.head + row * c.row)] =
              random.chance(0.01) ? p.block_most + 1 : drawn(0, 1 + p.block_most / 8);
    p.block_counts = counts.data();
    const int ctas = drawn(1, 12);
    std::vector<Words> got(static_cast<std::size_t>(ctas));
    emulator::Launch launch;
    launch.grid = {static_cast<unsigned>(ctas), 1, 1};
    launch.threads = 32;
    launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
    emulator::run(launch, [&](char* shared) {
      const auto smem = SmemLayout<kConfig, kProblem>::of_virtual_cta(ptx::shared_address(shared), 0);
      find_part<kConfig, kProblem>(p, smem);
      if (threadIdx.x != 0) return;
      Words& words = got[blockIdx.x];
      ptx::ld_shared_v4(words.begin, smem.stream(StreamWords::begin));
      ptx::ld_shared_v4(words.end, smem.stream(StreamWords::end));
      words.divided = sm90_persistent::is_divided(smem) ? 1 : 0;
    });
    const std::vector<int> lists = lists_of<kConfig>(p);
    const bool is_divided = divides<kConfig>(p, ctas);
    divided += is_divided ? 1 : 0;
    for (int cta = 0; cta < ctas; ++cta) {
      const Words wanted = words_of(lists, is_divided, ctas, cta);
      const Words& words = got[static_cast<std::size_t>(cta)];
      EXPECT_THAT(words.begin, ::testing::ElementsAreArray(wanted.begin)) << "round " << round << ", CTA " << cta;
      EXPECT_THAT(words.end, ::testing::ElementsAreArray(wanted.end)) << "round " << round << ", CTA " << cta;
      EXPECT_EQ(words.divided, wanted.divided) << "round " << round << ", CTA " << cta;
    }
  }
  EXPECT_GT(divided, 10);
  EXPECT_LT(divided, 50);
}

}  // namespace
}  // namespace heed::sm90_persistent
