// fwd_sm90_stream on the emulated GPU: key groups that start one after the other.
#include "stream_case.hpp"

namespace heed::stream {
namespace {

constexpr Config kTwo{.row_groups = 1,
                      .key_groups = 2,
                      .stages = 2,
                      .overlap = Overlap::products,
                      .product_order = ProductOrder::alternating,
                      .reference = Reference::first_keys,
                      .starts = Starts::in_turn,
                      .vote = Vote::after_products,
                      .store = Store::rows,
                      .arrival = Arrival::ahead,
                      .upkeep = Upkeep::conditions,
                      .packing = Packing::at_end};

// As many tiles for both, one more for the first, and none for the second: it waits for a group that is soon done.
TEST(EmulatedStream, KeyGroupsStartInTurn) {
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 128, .len_k = 512}, 301);
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 100, .len_k = 300, .heads_inner = true}, 302);
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 64}, 303, {.with_lse = false});
  run_case<kTwo, kHalf64>({.heads = 4, .heads_kv = 2, .len_q = 90, .len_k = 1}, 304);
  // Warps that are misled while the next group waits to start.
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 640, .score_scale = 30}, 305);
}

// Rows that see no key of one group, or of none: who has nothing to multiply lets the next one start all the same.
TEST(EmulatedStream, KeyGroupsWithoutKeysLetOthersStart) {
  constexpr Config kMasked{
      .row_groups = 1, .key_groups = 2, .stages = 3, .overlap = Overlap::products, .starts = Starts::in_turn};
  run_case<kMasked, kHalf64Causal>({.len_q = 256, .len_k = 256}, 306);
  run_case<kMasked, kHalf64Causal>({.heads = 2, .len_q = 300, .len_k = 200, .causal_offset = -120}, 307);
  constexpr Config kFour{
      .row_groups = 1, .key_groups = 4, .stages = 2, .starts = Starts::in_turn, .producer = Producer::own_group};
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 200}, 308);
  run_case<kFour, kHalf64>({.len_q = 64, .len_k = 700}, 309);
}

// Rings of one stage, which nobody refills for who has not started; and bf16 at head dim 128.
TEST(EmulatedStream, KeyGroupsThatWaitKeepTheirStages) {
  constexpr Config kOne{
      .row_groups = 1, .key_groups = 4, .stages = 1, .starts = Starts::in_turn, .producer = Producer::own_group};
  run_case<kOne, kHalf64>({.heads = 2, .len_q = 64, .len_k = 1100}, 310);
  constexpr Config kWide{.row_groups = 1,
                         .key_groups = 2,
                         .stages = 2,
                         .overlap = Overlap::products,
                         .starts = Starts::in_turn,
                         .producer = Producer::own_group,
                         .store = Store::aimed_rows};
  run_case<kWide, kBrain128Causal>({.heads = 2, .len_q = 100, .len_k = 400}, 312);
}

}  // namespace
}  // namespace heed::stream
