// What fwd_sm90_persistent computes at compile time, checked on the host: what lies where, which configs are one
// program, which are refused.
#include "kernels/sm90/persistent/legality.hpp"

#include "sm90_persistent_configs.hpp"
#include "testing.hpp"

namespace heed::sm90_persistent {
namespace {

// A Q tile a block: what it begins with is all there is.
TEST(Persistent, OpeningsAreOfBlocksThatStay) {
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

TEST(Persistent, WholeRowTilesWantRowsAndKeys) {
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
TEST(Persistent, DenseOutputsGoWithKnownSizes) {
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
TEST(Persistent, PairsHoldTwoTurns) {
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

// A consumer warpgroup that waits for its start frees no stage, so that consumer warpgroups which share rings start
// together; a block that stays starts once.
TEST(Persistent, OnlyKeyGroupsOfOneRowTileStartInTurn) {
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
TEST(Persistent, WhatIsDoneAheadFitsTheBlock) {
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

TEST(Persistent, CanonicalConfigsAreTheirOwnName) {
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
TEST(Persistent, SharedMemoryIsLaidOutWithoutOverlap) {
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
      ASSERT_EQ(b.mailbox, b.ring + 2 * c.kv_groups * c.stages);
      ASSERT_EQ(b.count, b.mailbox + (c.cluster > 1 ? c.m_warpgroups : 0));
    }
  }
}

TEST(Persistent, RegistersOfAMultiprocessorAreShared) {
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
