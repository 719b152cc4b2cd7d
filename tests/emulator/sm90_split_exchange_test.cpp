// fwd_sm90_split on the emulated GPU: partial outputs that travel between parts in other forms than the type of O and
// fp32.
#include <cmath>
#include <limits>

#include "sm90_split_case.hpp"

namespace heed::sm90_split {
namespace {

constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};

// Runs and accumulators, two parts and four, by way of other blocks' shared memory and the own; sums first; columns
// kept for later; parts without keys; parts computed again.
template <MergeDtype kSent>
void every_way_of_merging() {
  constexpr Config kRuns{.merge_dtype = kSent};
  run_case<kRuns, kHalf64>({.heads = 2, .len_q = 70, .len_k = 512}, 400);
  run_case<kRuns, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 401);
  run_case<kRuns, kHalf64>({.len_q = 40, .len_k = 20}, 402);
  constexpr Config kAsTheyLie{.merge_dtype = kSent, .lse_first = LseFirst::on, .epilogue = EpilogueStore::st_b32};
  run_case<kAsTheyLie, kHalf64Causal>({.len_q = 150, .len_k = 200, .causal_offset = 50}, 403);
  constexpr Config kBoxes{.merge_dtype = kSent, .epilogue = EpilogueStore::tma};
  run_case<kBoxes, kHalf64>({.len_q = 64, .len_k = 300}, 404);
  constexpr Config kFour{.kv_groups = 2,
                         .block_n = 32,
                         .n_blocks_per_stage = 2,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .rowsum = Rowsum::fadd,
                         .merge_dtype = kSent};
  run_case<kFour, kBrain128Causal>({.len_q = 90, .len_k = 300, .causal_offset = 210}, 405);
  constexpr Config kOneBlock{.kv_groups = 2,
                             .cluster = 1,
                             .n_blocks_per_stage = 2,
                             .qk_in_flight = 1,
                             .v_barriers = 1,
                             .pv_start_step = 0,
                             .merge_dtype = kSent};
  run_case<kOneBlock, kHalf64>({.len_q = 70, .len_k = 300}, 406);
  constexpr Config kLater{.n_blocks_per_stage = 2,
                          .qk_in_flight = 1,
                          .pv_start_step = 0,
                          .rowsum = Rowsum::fadd,
                          .merge_dtype = kSent,
                          .lse_first = LseFirst::on,
                          .pv_split_n = PvSplitN::on};
  run_case<kLater, kHalf128>({.heads = 2, .len_q = 130, .len_k = 256}, 407);
}

TEST(EmulatedSplit, SendsPartsAsWholeNumbersOfSteps) {
  every_way_of_merging<MergeDtype::fixed16>();
  // Parts of two tiles.
  constexpr Config kNarrow{
      .cluster = 4, .n_blocks_per_stage = 2, .pv_start_step = 0, .merge_dtype = MergeDtype::fixed16};
  run_case<kNarrow, kHalf64>({.len_q = 64, .len_k = 400}, 408);
}

// Beside the largest value of a row every other is off by half a step at most, 2^-15 of the largest; the largest itself
// keeps its sign and does not run over, wherever it lies between two powers of two.
TEST(EmulatedSplit, StepsHoldWhatIsNoLargerThanTheirExponentSays) {
  for (const int power : {-110, -14, 0, 15, 100})
    for (const float mantissa : {1.0F, 1.5F, 2.0F - 0x1p-23F}) {
      const float most = std::ldexp(mantissa, power);
      const unsigned exponent = __float_as_uint(most) & kNotFixed;
      for (float share = -1; share <= 1; share += 0x1p-6F) {
        float two[2];
        of_steps_x2(two, steps_x2(most, most * share, steps_a_unit(exponent)), exponent);
        ASSERT_LE(std::abs(two[0] - most), 0x1p-15F * most) << most;
        ASSERT_LE(std::abs(two[1] - most * share), 0x1p-15F * most) << most << " times " << share;
      }
    }
}

TEST(EmulatedSplit, BytesAreFp32WithoutTheLast) {
  const float x[4] = {1.0F / 3, -1e30F, 0, -0x1p-126F};
  for (int h = 0; h < 2; ++h) {
    float two[2];
    of_bytes(two, first_halves(x[2 * h], x[2 * h + 1]), last_bytes(x[0], x[1], x[2], x[3]), h);
    for (int i = 0; i < 2; ++i) EXPECT_NEAR(two[i], x[2 * h + i], 0x1p-15F * std::abs(x[2 * h + i]));
  }
}

TEST(EmulatedSplit, SendsPartsWithoutTheirLastByte) {
  every_way_of_merging<MergeDtype::bits24>();
}

// An infinity or NaN is its column's alone, whichever part has it. Runs are weighed by differences, so that an infinity
// of the part that keeps them is NaN.
template <MergeDtype kSent>
void columns_of_no_number() {
  constexpr Config kRuns{.merge_dtype = kSent};
  constexpr Config kAsTheyLie{.merge_dtype = kSent, .epilogue = EpilogueStore::st_b32};
  for (const int key : {3, 500})
    for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const auto set = [&](AttentionCase& problem) {
        problem.set(AttentionCase::Tensor::v, 0, 0, key, 5, x);
        problem.set(AttentionCase::Tensor::v, 0, 0, key, 60, -x);
      };
      if (std::isnan(x)) run_case<kRuns, kHalf64>({.len_q = 64, .len_k = 512}, 411, true, set);
      run_case<kAsTheyLie, kHalf64>({.len_q = 64, .len_k = 512}, 412, true, set);
    }
}

TEST(EmulatedSplit, PartsWithInfinitiesAndNan) {
  columns_of_no_number<MergeDtype::bits16>();
  columns_of_no_number<MergeDtype::fixed16>();
  columns_of_no_number<MergeDtype::bits24>();
}

}  // namespace
}  // namespace heed::sm90_split
