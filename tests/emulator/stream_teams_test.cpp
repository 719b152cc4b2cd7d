// fwd_sm90_stream on the emulated GPU: teams, which are blocks of their own within a block.
#include "stream_case.hpp"

namespace heed::stream {
namespace {

constexpr Config kFour{.row_groups = 1,
                       .stages = 2,
                       .query_stages = 2,
                       .schedule = Schedule::persistent,
                       .product_order = ProductOrder::alternating,
                       .reference = Reference::first_keys,
                       .producer = Producer::own_group,
                       .store = Store::boxes,
                       .sums = Sums::beside_values,
                       .teams = 4};

// More row tiles than teams, as many, and so few that some team, or every team but one, has none.
TEST(EmulatedStream, TeamsHaveRowTilesOfTheirOwn) {
  run_case<kFour, kHalf64>({.batch = 2, .heads = 5, .len_q = 128, .len_k = 128}, 201);
  run_case<kFour, kHalf64>({.heads = 4, .len_q = 128, .len_k = 100}, 202);
  run_case<kFour, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 128, .heads_inner = true}, 203);
  run_case<kFour, kHalf64>({.len_q = 40, .len_k = 128}, 204, {.with_lse = false});
  run_case<kFour, kHalf64>({.batch = 3, .heads = 3, .len_q = 128, .len_k = 200, .padding_rows = 2}, 205, {.blocks = 3});
}

TEST(EmulatedStream, TeamsUnderAMask) {
  run_case<kFour, kHalf64Causal>({.heads = 9, .len_q = 128, .len_k = 128}, 206);
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 190, .len_k = 150, .causal_offset = -40}, 207);
  constexpr Config kPieces{.row_groups = 1,
                           .tile_keys = 32,
                           .stages = 3,
                           .schedule = Schedule::dynamic,
                           .overlap = Overlap::values,
                           .product_order = ProductOrder::scores_first,
                           .tile_order = TileOrder::heads_first,
                           .teams = 3};
  // Warps that are misled, and a counter that is back at zero.
  run_case<kPieces, kHalf64Causal>({.heads = 4, .len_q = 200, .len_k = 260, .causal_offset = 60, .score_scale = 30},
                                   208);
  run_case<kPieces, kHalf64Causal>({.heads = 2, .len_q = 60, .len_k = 60}, 209);
}

// Row groups of a team share its ring and take turns among themselves.
TEST(EmulatedStream, TeamsOfSeveralRowGroups) {
  constexpr Config kTwo{.row_groups = 2,
                        .stages = 3,
                        .query_stages = 2,
                        .schedule = Schedule::persistent,
                        .turns = Turns::in_order,
                        .producer = Producer::own_group,
                        .store = Store::rows,
                        .teams = 2};
  run_case<kTwo, kHalf64>({.heads = 5, .len_q = 128, .len_k = 300}, 210);
  run_case<kTwo, kHalf64Causal>({.heads = 3, .len_q = 300, .len_k = 300}, 211);
  constexpr Config kWide{.row_groups = 1,
                         .tile_keys = 48,
                         .stages = 2,
                         .schedule = Schedule::persistent,
                         .overlap = Overlap::products,
                         .teams = 2};
  run_case<kWide, kBrain128Causal>({.heads = 3, .len_q = 200, .len_k = 200}, 212);
}

}  // namespace
}  // namespace heed::stream
