// What fwd_sm90_split computes at compile time, checked on the host: who works on which keys, what lies where, in which
// order.
#include "kernels/sm90/split/known_parts.hpp"
#include "kernels/sm90/split/legality.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/random.hpp"
#include "testing.hpp"

namespace heed::sm90_split {
namespace {

static_assert(kGroupSizeIndex * sizeof(int) == offsetof(ForwardParams, group_size));
static_assert(kLenKIndex * sizeof(int) == offsetof(ForwardParams, len_k));

constexpr Problem kPlain{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr FixedSizes kSizes{.batch = 1, .heads = 8, .heads_kv = 8, .len_q = 512, .len_k = 512};

Config random_config(Random& random, const Problem& problem) {
  const auto one_of = [&](std::vector<int> values) { return values[random.below(values.size())]; };
  const TileOrder orders[] = {TileOrder::ascending, TileOrder::descending, TileOrder::lpt_then_spt};
  Config c;
  c.m_warpgroups = one_of({1, 2, 3, 4});
  c.kv_groups = one_of({1, 2});
  c.cluster = one_of({1, 2, 4, 8});
  c.tile_order = orders[random.below(3)];
  c.mask_at = random.chance(0.5) ? MaskAt::probabilities : MaskAt::scores;
  c.block_n = one_of({32, 64, 128});
  c.n_blocks_per_stage = one_of({1, 2, 3, 4, 6, 8});
  c.stages = one_of({1, 2, 3, 4});
  c.qk_in_flight = one_of({1, 2, 4, 8});
  c.v_barriers = one_of({1, 2, 3, 4});
  c.pv_ksteps_per_commit = one_of({1, 2, 4});
  c.pv_start_step = one_of({0, 2, 5, 8});
  c.late_convert = random.chance(0.5);
  c.prefetch_next_qk = random.chance(0.3);
  c.merge_dtype = static_cast<MergeDtype>(random.below(4));
  c.lse_first = random.chance(0.5) ? LseFirst::off : LseFirst::on;
  c.pv_split_n = random.chance(0.5) ? PvSplitN::off : PvSplitN::on;
  c.asm_order = random.chance(0.5) ? AsmOrder::fixed : AsmOrder::free;
  c.producer = static_cast<Producer>(random.below(3));
  c.tma_multicast = random.chance(0.5) ? TmaMulticast::none : TmaMulticast::q;
  c.epilogue = static_cast<EpilogueStore>(random.below(3));
  c.gqa = static_cast<Gqa>(random.below(2));
  return canonical(c, problem);
}

TEST(Split, EveryKeyBelongsToOnePart) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const Config c = random_config(random, kPlain);
    const int keys = static_cast<int>(random.below(3000));
    int expected = 0;
    int most = 0;
    int least = 1 << 30;
    for (int part = 0; part < num_splits(c); ++part) {
      const Range range = n_blocks_of_split(c, keys, part);
      ASSERT_EQ(range.first, expected);
      ASSERT_GE(range.end, range.first);
      expected = range.end;
      most = std::max(most, range.end - range.first);
      least = std::min(least, range.end - range.first);
      const int segments = iterations_of(c, range);
      ASSERT_GE(segments * c.n_blocks_per_stage, range.end - range.first);
      ASSERT_LT((segments - 1) * c.n_blocks_per_stage, std::max(1, range.end - range.first));
    }
    ASSERT_GE(expected * c.block_n, keys);
    ASSERT_LT((expected - 1) * c.block_n, std::max(1, keys));
    ASSERT_LE(most - least, 1);
  }
}

TEST(Split, EveryRowTileComesOnce) {
  for (const TileOrder order : {TileOrder::ascending, TileOrder::descending, TileOrder::lpt_then_spt})
    for (int q_tiles = 1; q_tiles < 40; ++q_tiles) {
      std::set<int> seen;
      for (int index = 0; index < q_tiles; ++index) seen.insert(q_tile_at({.tile_order = order}, index, q_tiles));
      ASSERT_EQ(static_cast<int>(seen.size()), q_tiles);
      ASSERT_EQ(*seen.begin(), 0);
      ASSERT_EQ(*seen.rbegin(), q_tiles - 1);
    }
  // A long Q tile and, half a grid later, one that makes up for it.
  const Config folded{.tile_order = TileOrder::lpt_then_spt};
  for (int index = 0; index < 8; ++index)
    ASSERT_EQ(q_tile_at(folded, index, 16) + q_tile_at(folded, index + 8, 16), 15);
}

TEST(Split, ProductsFollowTheirProbabilitiesInOrder) {
  Random random(2);
  for (int i = 0; i < 20'000; ++i) {
    const Config c = random_config(random, kPlain);
    int before = 0;
    for (int j = 0; j < products(c); ++j) {
      const int step = pv_commit_after_step(c, j);
      const int last_packed_by_then = c.late_convert && step < iteration_steps(c) - 1 ? step - 1 : step;
      ASSERT_GE(last_packed_by_then, (j + 1) * c.pv_ksteps_per_commit - 1) << "product " << j;
      ASSERT_GE(step, before);
      ASSERT_LT(step, iteration_steps(c));
      before = step;
    }
    ASSERT_EQ(products(c) * c.pv_ksteps_per_commit, iteration_steps(c));
    // Scores that are asked for late are there before the first step that needs them.
    if (c.qk_in_flight < c.n_blocks_per_stage) {
      ASSERT_LT(late_scores_after_step(c), c.qk_in_flight * c.block_n / kMmaK);
    }
  }
}

TEST(Split, CanonicalConfigsAreTheirOwnName) {
  Random random(3);
  for (const int dim : {32, 64, 96, 128, 192, 256})
    for (const FixedSizes& sizes : {FixedSizes{}, kSizes}) {
      const Problem problem{.element = Element::bf16, .head_dim = dim, .mask = MaskKind::causal, .sizes = sizes};
      for (int i = 0; i < 3000; ++i) {
        const Config c = random_config(random, problem);
        ASSERT_EQ(canonical(c, problem), c);
        const Illegal reason = is_legal(c, problem, 227 * 1024, 228 * 1024);
        // Only resources are left to refuse it.
        ASSERT_TRUE(reason == Illegal::no || reason == Illegal::shared_memory || reason == Illegal::occupancy ||
                    reason == Illegal::registers || reason == Illegal::threads)
            << static_cast<int>(reason);
      }
    }
}

// What a program for fixed sizes leaves out does not happen.
TEST(Split, ProgramsKnowWhatTheirPartsMeet) {
  Random random(11);
  int leaner = 0;
  for (int i = 0; i < 20'000; ++i) {
    const FixedSizes s{.batch = 1,
                       .heads = 1,
                       .heads_kv = 1,
                       .len_q = 1 + static_cast<int>(random.below(700)),
                       .len_k = random.chance(0.5) ? 64 * (1 + static_cast<int>(random.below(12)))
                                                   : 1 + static_cast<int>(random.below(700)),
                       .right_offset = random.chance(0.5) ? 0 : static_cast<int>(random.below(500)) - 200};
    const Problem problem{.element = Element::fp16,
                          .head_dim = 64,
                          .mask = random.chance(0.5) ? MaskKind::causal : MaskKind::none,
                          .sizes = s,
                          .specialization = {.specialize = Specialize::shape, .prune = Prune::on}};
    const Config c = random_config(random, problem);
    const KnownParts known = known_parts(c, problem);
    leaner += known.some_are_longer && known.some_are_none && known.some_are_askew ? 0 : 1;
    for (int row = 0; row < s.len_q; ++row) {
      const int block_row = row / (c.m_warpgroups * kWarpgroupRows) * c.m_warpgroups * kWarpgroupRows;
      const int end = std::min(block_row + c.m_warpgroups * kWarpgroupRows, s.len_q);
      const int keys = visible_keys(problem.mask, end - 1, s.right_offset, s.len_k);
      ASSERT_TRUE(known.some_are_askew || is_lined_up(c, block_row, s.len_q, s.len_k, s.right_offset));
      for (int part = 0; part < num_splits(c); ++part) {
        const Range chunks = n_blocks_of_split(c, keys, part);
        const int segments = iterations_of(c, chunks);
        ASSERT_TRUE(known.some_are_none || segments > 0);
        ASSERT_TRUE(known.some_are_longer || segments <= 1);
        const int sees = std::min(visible_keys(problem.mask, row, s.right_offset, s.len_k), chunks.end * c.block_n);
        ASSERT_TRUE(known.some_are_masked || sees >= (chunks.first + segments * c.n_blocks_per_stage) * c.block_n);
      }
    }
  }
  EXPECT_GT(leaner, 10'000);
  Problem problem = kPlain;
  problem.sizes = kSizes;
  problem.specialization = {.specialize = Specialize::shape, .prune = Prune::on};
  EXPECT_EQ(known_parts({}, problem), KnownParts{}) << "whole parts of one segment, and no mask";
  problem.specialization.prune = Prune::off;
  EXPECT_EQ(known_parts({}, problem), (KnownParts{true, true, true, true}));
}

// Where outputs lie is known with the sizes or not at all, and to whom it makes a difference.
TEST(Split, DenseOutputsGoWithFixedSizes) {
  constexpr Problem kKnown{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none, .sizes = kSizes};
  const auto specialized = [](const Config& c, const Problem& problem, const Specialization& wanted) {
    return canonical(wanted, specializations_of(canonical(c, problem), problem));
  };
  constexpr Specialization kFixed{.specialize = Specialize::shape};
  constexpr Specialization kDense{.specialize = Specialize::shape, .o_layout = OutputLayout::dense};
  constexpr Specialization kDenseAlone{.o_layout = OutputLayout::dense};
  for (const Specialization& wanted : {Specialization{}, kFixed, kDense})
    EXPECT_EQ(specialized({}, kKnown, wanted), wanted);
  EXPECT_EQ(specialized({}, kKnown, kDenseAlone), kDense);
  EXPECT_EQ(specialized({}, kKnown, {.specialize = Specialize::whole_tiles}), kFixed) << "it has no code for that";
  for (const Specialization& wanted : {kFixed, kDense, kDenseAlone})
    EXPECT_EQ(specialized({}, kPlain, wanted), Specialization{});
  // Boxes go where a map says; where there are none after all, rows do not.
  Config boxes{.epilogue = EpilogueStore::tma};
  EXPECT_EQ(specialized(boxes, kKnown, kDense), kFixed);
  EXPECT_EQ(specialized(boxes, kKnown, kDenseAlone), Specialization{}) << "they ask for no sizes either";
  boxes.cluster = 4;  // a slice of 16 columns
  EXPECT_EQ(canonical(boxes, kKnown).epilogue, EpilogueStore::st_b128);
  EXPECT_EQ(specialized(boxes, kKnown, kDenseAlone), kDense);
}

// By how many query heads a key head is shared is one of the sizes.
TEST(Split, KeyHeadsOfFixedSizesHaveOneName) {
  Problem known{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none, .sizes = kSizes};
  constexpr Config kOwn{.gqa = Gqa::off};
  EXPECT_EQ(canonical(kOwn, known), kOwn) << "they may be known, and are not asked for";
  EXPECT_EQ(canonical(kOwn, kPlain), kOwn);
  known.specialization.specialize = Specialize::shape;
  EXPECT_EQ(canonical(kOwn, known).gqa, Gqa::on);
  EXPECT_EQ(is_legal(kOwn, known, 227 * 1024, 228 * 1024), Illegal::same_program);
}

// Regions of shared memory follow each other without overlap, operands on whole swizzle atoms.
TEST(Split, SharedMemoryIsLaidOutWithoutOverlap) {
  Random random(4);
  for (const int dim : {64, 96, 256}) {
    const Problem problem{.element = Element::fp16, .head_dim = dim, .mask = MaskKind::none};
    for (int i = 0; i < 5000; ++i) {
      const Config c = random_config(random, problem);
      const SharedPlan p = shared_plan(c, dim);
      const int boxes = padded_dim(dim) / 64;
      ASSERT_EQ(p.ring, c.m_warpgroups * boxes * 8192);
      ASSERT_EQ(p.operand_bytes, boxes * c.n_blocks_per_stage * p.key_box);
      ASSERT_EQ(p.operand_bytes, boxes * c.v_barriers * p.value_box);
      ASSERT_EQ(p.ones, p.ring + c.kv_groups * c.stages * 2 * p.operand_bytes);
      ASSERT_LE(p.ones, p.mailbox);
      ASSERT_LE(p.ones, p.rows);
      const int row_groups = c.epilogue == EpilogueStore::tma ? c.kv_groups * c.m_warpgroups : 0;
      ASSERT_EQ(p.mailbox, p.rows + row_groups * 64 * 2 * padded_dim(dim) / num_splits(c));
      ASSERT_EQ(p.barriers, p.mailbox + c.kv_groups * c.m_warpgroups * p.mailbox_bytes);
      ASSERT_EQ(p.rows % 512, 0) << "the swizzle of 64 bytes repeats";
      ASSERT_EQ(query_box_rows(c) * (c.tma_multicast == TmaMulticast::q ? c.cluster : 1), 64);
      ASSERT_EQ(query_box_rows(c) % 8, 0) << "rows of a swizzle atom";
      ASSERT_EQ(p.total, p.barriers + 8 * barrier_plan(c).count);
      for (const int offset : {p.q, p.ring, p.ones, p.key_box, p.value_box, p.operand_bytes})
        ASSERT_EQ(offset % tile::kSwizzleAtomBytes, 0);
      ASSERT_EQ(p.mailbox % 16, 0);
      ASSERT_EQ(p.mailbox_bytes % 16, 0);
      ASSERT_EQ(p.barriers % 8, 0);
      ASSERT_LE(p.value_box / 128, 256) << "a box has at most 256 rows";
      const BarrierPlan b = barrier_plan(c);
      ASSERT_EQ(b.values - b.keys, c.kv_groups * c.stages * c.n_blocks_per_stage);
      ASSERT_EQ(b.sums - b.mailbox, c.kv_groups * c.m_warpgroups);
      ASSERT_EQ(b.count - b.sums, c.lse_first == LseFirst::on ? c.kv_groups * c.m_warpgroups : 0);
      ASSERT_EQ(p.sums_bytes > 0, c.lse_first == LseFirst::on);
    }
  }
}

// ---- operand tiles: what the loads write, the descriptors find

// A bulk tensor copy with the 128-byte swizzle: element (row, column) of a box at `base`.
int copied_to(int base, int row, int column) {
  return base + row * 128 + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
}

// Shared-memory address of a matrix element by the manual's definition of a descriptor: the offset in the unswizzled
// layout, then address bits 4 to 6 exclusive-or bits 7 to 9.
int swizzled(int address) {
  return address ^ ((address >> 7 & 7) << 4);
}
struct Decoded {
  int address;
  int leading;
  int stride;
};
Decoded decode(unsigned long long descriptor) {
  EXPECT_EQ(descriptor >> 62, 1U) << "128-byte swizzle";
  return {static_cast<int>(descriptor & 0x3FFF) << 4, static_cast<int>(descriptor >> 16 & 0x3FFF) << 4,
          static_cast<int>(descriptor >> 32 & 0x3FFF) << 4};
}

TEST(MatrixDescriptor, FindsQueriesAndKeys) {
  constexpr int kBase = 40 * 1024;
  for (const int rows : {32, 64, 128})
    for (const int boxes : {1, 2, 4})
      for (int step = 0; step < boxes * 4; ++step) {
        const int box_bytes = rows * 128;
        const Decoded d =
            decode(tile::matrix_descriptor(kBase, 16) + tile::descriptor_advance(step / 4 * box_bytes + step % 4 * 32));
        for (int row = 0; row < rows; ++row)
          for (int k = 0; k < 16; ++k) {
            const int found = swizzled(d.address + row / 8 * d.stride + row % 8 * 128 + k * 2);
            const int column = step * 16 + k;
            ASSERT_EQ(found, copied_to(kBase + column / 64 * box_bytes, row, column % 64));
          }
      }
}

TEST(MatrixDescriptor, FindsValues) {
  constexpr int kBase = 64 * 1024;
  for (const int keys : {32, 64, 256})
    for (const int boxes : {1, 2, 4})
      for (int step = 0; step < keys / 16; ++step) {
        const int box_bytes = keys * 128;
        const Decoded d = decode(tile::matrix_descriptor(kBase, box_bytes) + tile::descriptor_advance(step * 2048));
        for (int key = 0; key < 16; ++key)
          for (int column = 0; column < boxes * 64; ++column) {
            const int found =
                swizzled(d.address + column / 64 * d.leading + key / 8 * d.stride + key % 8 * 128 + column % 64 * 2);
            ASSERT_EQ(found, copied_to(kBase + column / 64 * box_bytes, step * 16 + key, column % 64));
          }
      }
}

TEST(MatrixDescriptor, FindsOnesBehindAnyStepOfTheValues) {
  const Config c;
  const SharedPlan p = shared_plan(c, 64);
  const int values = p.ring + p.operand_bytes;
  for (int step = 0; step < iteration_steps(c); ++step) {
    const int offset = step * 2048;
    const Decoded d = decode(tile::matrix_descriptor(values, p.ones - values) - tile::descriptor_box_stride(offset) +
                             tile::descriptor_advance(offset));
    for (int key = 0; key < 16; ++key)
      for (int column = 64; column < 72; ++column) {
        const int found = swizzled(d.address + d.leading + key / 8 * d.stride + key % 8 * 128 + (column - 64) * 2);
        ASSERT_GE(found, p.ones);
        ASSERT_LT(found, p.mailbox);
      }
    ASSERT_EQ(d.address, values + offset);
  }
}

// Consumers would get enough registers from the producers, but ptxas counts those a thread has at launch (C7602).
TEST(Split, ProductsNameRegistersOfTheLaunch) {
  const Config c{.cluster = 1,
                 .block_n = 32,
                 .n_blocks_per_stage = 1,
                 .stages = 2,
                 .qk_in_flight = 1,
                 .v_barriers = 1,
                 .pv_start_step = 0,
                 .rowsum = Rowsum::fadd,
                 .overflow_check = OverflowCheck::before_merge,
                 .producer = Producer::warpgroup,
                 .min_blocks = 3};
  const Problem wide{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
  EXPECT_LE(registers_needed(c, 128), registers_allowed(c));
  EXPECT_EQ(is_legal(c, wide, 227 * 1024, 228 * 1024), Illegal::operands);
  Config two = c;
  two.min_blocks = 2;
  EXPECT_EQ(is_legal(two, wide, 227 * 1024, 228 * 1024), Illegal::no);
}

TEST(Split, RegistersOfAMultiprocessorAreShared) {
  Config c;
  EXPECT_EQ(registers_allowed(c), 255);
  c.m_warpgroups = 2;
  EXPECT_EQ(registers_allowed(c), 255);
  c.producer = Producer::warp;  // 9 warps take the room of 12
  EXPECT_EQ(registers_allowed(c), 168);
  c.producer = Producer::warpgroup;
  EXPECT_EQ(launch_registers(c), 168);
  EXPECT_EQ(registers_allowed(c), 240);
  c.m_warpgroups = 3;
  EXPECT_EQ(registers_allowed(c), 160);
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    const Config any = random_config(random, kPlain);
    if (threads(any) > 1024) continue;
    const int warps_a_quarter = (threads(any) / 32 * any.min_blocks + 3) / 4;
    ASSERT_LE(launch_registers(any) * 32 * warps_a_quarter, 16384);
    if (moves_registers(any)) {
      ASSERT_LE(registers_allowed(any) * consumer_threads(any) + tile::kProducerRegisters * kWarpgroupThreads,
                launch_registers(any) * threads(any));
      ASSERT_EQ(registers_allowed(any) % 8, 0);
      ASSERT_GE(registers_allowed(any), launch_registers(any));
    }
  }
}

}  // namespace
}  // namespace heed::sm90_split
