// fwd_sm90_stream on the emulated GPU: what a block does while its first copies are on their way.
#include "stream_case.hpp"

namespace heed::stream {
namespace {

// Blocks that stay: only the first row tile is known before its queries have come.
TEST(EmulatedStream, BlocksThatStayKnowTheirFirstShareAhead) {
  constexpr Config kSmall{.row_groups = 1,
                          .stages = 2,
                          .query_stages = 2,
                          .schedule = Schedule::persistent,
                          .product_order = ProductOrder::alternating,
                          .reference = Reference::first_keys,
                          .producer = Producer::own_group,
                          .release = Release::after_copies,
                          .shares = Shares::ahead,
                          .store = Store::boxes,
                          .sums = Sums::beside_values,
                          .min_blocks = 3};
  run_case<kSmall, kHalf64>({.batch = 2, .heads = 5, .len_q = 128, .len_k = 128}, 401, {.blocks = 3});
  run_case<kSmall, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 100, .heads_inner = true}, 402);
  run_case<kSmall, kHalf64>({.len_q = 40, .len_k = 128}, 403, {.with_lse = false});
  run_case<kSmall, kHalf64Causal>({.heads = 4, .len_q = 190, .len_k = 150, .causal_offset = -40}, 404, {.blocks = 2});
  constexpr Config kDrawn{.row_groups = 2,
                          .stages = 3,
                          .query_stages = 1,
                          .schedule = Schedule::dynamic,
                          .overlap = Overlap::products,
                          .shares = Shares::ahead,
                          .tile_order = TileOrder::heads_first};
  run_case<kDrawn, kHalf64Causal>({.heads = 4, .len_q = 300, .len_k = 300}, 405, {.blocks = 3});
  constexpr Config kPairs{.row_groups = 2,
                          .stages = 3,
                          .query_stages = 2,
                          .schedule = Schedule::persistent,
                          .producer = Producer::own_group,
                          .release = Release::after_copies,
                          .shares = Shares::ahead,
                          .tile_order = TileOrder::mirrored,
                          .pairs = Pairs::together};
  run_case<kPairs, kHalf64Causal>({.heads = 3, .len_q = 500, .len_k = 500}, 406, {.blocks = 2});
}

// A block of one row tile, whose key groups, pairs or cluster share its keys; rows without a key among them.
TEST(EmulatedStream, OneRowTileIsSharedOutAhead) {
  constexpr Config kPairs{.row_groups = 2,
                          .key_groups = 2,
                          .stages = 4,
                          .product_order = ProductOrder::scores_first,
                          .reference = Reference::first_keys,
                          .producer = Producer::own_group,
                          .shares = Shares::ahead,
                          .store = Store::rows,
                          .tile_order = TileOrder::mirrored,
                          .pairs = Pairs::together,
                          .arrival = Arrival::ahead,
                          .upkeep = Upkeep::conditions};
  run_case<kPairs, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 411);
  run_case<kPairs, kHalf64Causal>({.len_q = 450, .len_k = 300, .causal_offset = -150}, 412);
  constexpr Config kSplit{.row_groups = 1,
                          .cluster = 2,
                          .stages = 3,
                          .overlap = Overlap::products,
                          .vote = Vote::after_products,
                          .masking = Masking::apart,
                          .shares = Shares::ahead,
                          .store = Store::rows,
                          .tile_order = TileOrder::folded,
                          .min_blocks = 2};
  run_case<kSplit, kHalf64Causal>({.heads = 2, .len_q = 320, .len_k = 320}, 413);
  run_case<kSplit, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 200, .causal_offset = -120}, 414);
  constexpr Config kGroups{.row_groups = 1,
                           .key_groups = 2,
                           .stages = 2,
                           .overlap = Overlap::products,
                           .producer = Producer::own_group,
                           .release = Release::after_copies,
                           .shares = Shares::ahead};
  run_case<kGroups, kBrain128Causal>({.heads = 2, .len_q = 100, .len_k = 400, .causal_offset = 300}, 415);
}

}  // namespace
}  // namespace heed::stream
