// fwd_sm90_fp8 with features on the emulated GPU: lengths of batch entries, keys and values in pages, sinks, softcap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sm90_fp8_features_case.hpp"

namespace heed::sm90_fp8 {
namespace {

constexpr Features kLengths{.lengths = true};
constexpr Features kPages{.lengths = true, .pages = true};
constexpr Config kSmall{.m_warpgroups = 1, .block_n = 64, .stages = 2};

// Entries of any lengths, none among them, in one tensor; and programs with lengths where a launch has none.
TEST(EmulatedSm90Fp8Features, RaggedBatches) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 128, MaskKind::none, kLengths);
  constexpr Problem kCausal = featured_fp8(Element::bf16, 64, MaskKind::causal, kLengths);
  const FeatureShape ragged{.batch = 5,
                            .heads = 2,
                            .heads_kv = 1,
                            .len_q = 140,
                            .len_k = 270,
                            .to_the_end = true,
                            .cu_q = {0, 140, 140, 141, 200, 230},
                            .cu_k = {0, 0, 40, 310, 437, 445}};
  run_features<Config{}, kNone>(ragged, 1);
  FeatureShape causal = ragged;
  causal.right_offset = 270 - 140;
  constexpr Config kTurns{
      .block_n = 96, .stages = 2, .q_stages = 2, .pingpong = Pingpong::on, .tile_order = TileOrder::lpt_l2};
  run_features<kTurns, kCausal>(causal, 2);
  causal.right_offset = 0;
  causal.to_the_end = false;
  run_features<Config{.promote_every = 1}, kCausal>(causal, 3);
  run_features<kSmall, kCausal>({.batch = 2, .heads = 2, .heads_kv = 2, .len_q = 90, .len_k = 130, .right_offset = 40},
                                4);
}

// Keys in use of a cache, and rows that see none of them.
TEST(EmulatedSm90Fp8Features, KeysInUse) {
  constexpr Problem kCausal = featured_fp8(Element::fp16, 128, MaskKind::causal, kLengths);
  const FeatureShape cache{.batch = 4,
                           .heads = 2,
                           .heads_kv = 1,
                           .len_q = 70,
                           .len_k = 300,
                           .right_offset = 230,
                           .to_the_end = true,
                           .used_k = {300, 0, 33, 900}};
  run_features<kSmall, kCausal>(cache, 5);
  FeatureShape queries = cache;
  queries.cu_q = {0, 70, 71, 71, 100};
  run_features<Config{.block_n = 192, .stages = 1}, kCausal>(queries, 6);
  queries.used_k = {0, -5, 0, 0};
  run_features<kSmall, kCausal>(queries, 22);
}

// What is in front of a window is not read, and need not be a number.
TEST(EmulatedSm90Fp8Features, Windows) {
  constexpr Problem kWindow = featured_fp8(Element::bf16, 64, MaskKind::window, kPages);
  FeatureShape window{.batch = 3,
                      .heads = 2,
                      .heads_kv = 2,
                      .len_q = 80,
                      .len_k = 400,
                      .right_offset = 320,
                      .left_offset = 290,
                      .to_the_end = true,
                      .used_k = {400, 130, 20}};
  run_features<kSmall, kWindow>(window, 7);
  window.page_size = 24;
  run_features<kSmall, kWindow>(window, 8);
}

// Pages of any multiple of 8 keys, in either order of dimensions, with entries' lengths and without.
TEST(EmulatedSm90Fp8Features, Pages) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 128, MaskKind::none, kPages);
  constexpr Problem kCausal = featured_fp8(Element::bf16, 256, MaskKind::causal, kPages);
  constexpr Problem kAlone = featured_fp8(Element::fp16, 64, MaskKind::none, {.pages = true});
  for (const int page_size : {8, 16, 64, 80, 256})
    run_features<kSmall, kNone>({.batch = 3,
                                 .heads = 2,
                                 .heads_kv = 2,
                                 .len_q = 20,
                                 .len_k = 200,
                                 .used_k = {200, 71, 8},
                                 .page_size = page_size,
                                 .heads_first = page_size % 32 != 0},
                                9 + static_cast<std::uint64_t>(page_size));
  run_features<Config{.block_n = 96}, kCausal>({.batch = 2,
                                                .heads = 2,
                                                .heads_kv = 1,
                                                .len_q = 130,
                                                .len_k = 250,
                                                .right_offset = 120,
                                                .to_the_end = true,
                                                .cu_q = {0, 130, 133},
                                                .used_k = {250, 100},
                                                .page_size = 32},
                                               10);
  run_features<Config{.block_n = 224}, kAlone>({.len_q = 70, .len_k = 300, .page_size = 64}, 11);
  run_features<kSmall, kAlone>({.len_q = 70, .len_k = 100}, 12);
}

// More entries than a warp looks at at once.
TEST(EmulatedSm90Fp8Features, ManyEntries) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 64, MaskKind::none, kLengths);
  FeatureShape many{.batch = 70, .len_q = 3, .len_k = 100, .cu_q = {0}, .cu_k = {0}};
  for (int b = 0; b < many.batch; ++b) {
    many.cu_q.push_back(many.cu_q.back() + (b % 5 == 0 ? 0 : 1 + b % 3));
    many.cu_k.push_back(many.cu_k.back() + b * 37 % 101);
  }
  run_features<kSmall, kNone>(many, 13);
}

// A sink is a score of each row, those that see no key among them.
TEST(EmulatedSm90Fp8Features, Sinks) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 64, MaskKind::none, {.sinks = true});
  constexpr Problem kCausal = featured_fp8(Element::bf16, 128, MaskKind::causal, {.sinks = true, .lengths = true});
  run_features<Config{}, kNone>({.heads = 4, .heads_kv = 2, .len_q = 100, .len_k = 200, .sinks = {0, 3, -INFINITY, 40}},
                                15);
  run_features<kSmall, kCausal>({.batch = 2,
                                 .heads = 2,
                                 .heads_kv = 2,
                                 .len_q = 90,
                                 .len_k = 70,
                                 .right_offset = -20,
                                 .to_the_end = true,
                                 .sinks = {1, -2},
                                 .used_k = {70, 30}},
                                16);
  run_features<kSmall, kNone>({.len_q = 70, .len_k = 100}, 17);
}

// Small scores, which a polynomial caps, and large ones; with all other features, and without any.
TEST(EmulatedSm90Fp8Features, Softcap) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 64, MaskKind::none, {.softcap = true});
  constexpr Problem kAll = featured_fp8(Element::bf16, 128, MaskKind::causal,
                                        {.softcap = true, .sinks = true, .lengths = true, .pages = true});
  for (const float cap : {0.0F, 1.5F, 50.0F})
    run_features<Config{}, kNone>(
        {.heads = 2, .heads_kv = 1, .len_q = 100, .len_k = 200, .score_scale = 4, .softcap = cap}, 18);
  FeatureShape all{.batch = 2,
                   .heads = 2,
                   .heads_kv = 1,
                   .len_q = 100,
                   .len_k = 150,
                   .right_offset = 50,
                   .to_the_end = true,
                   .score_scale = 3,
                   .softcap = 2,
                   .sinks = {1, -1},
                   .cu_q = {0, 100, 130},
                   .used_k = {150, 20},
                   .page_size = 16};
  run_features<Config{.block_n = 64, .promote_every = 1}, kAll>(all, 19);
  all.softcap = 30;
  run_features<kSmall, kAll>(all, 20);
}

// The case tells a sink and a cap that are not those of the launch.
TEST(EmulatedSm90Fp8Features, WrongSinksAndSoftcapsShow) {
  constexpr Problem kBoth = featured_fp8(Element::fp16, 64, MaskKind::none, {.softcap = true, .sinks = true});
  const FeatureShape shape{.heads = 2, .heads_kv = 2, .len_k = 130, .score_scale = 3, .softcap = 2, .sinks = {2, 3}};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of_features<kSmall, kBoth>(shape, 21, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.softcap = 2.2F; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.sinks = nullptr; }), "");
}

// The case tells lengths and pages that are not those of the launch.
TEST(EmulatedSm90Fp8Features, WrongLengthsShow) {
  constexpr Problem kNone = featured_fp8(Element::fp16, 64, MaskKind::none, kPages);
  const FeatureShape shape{.batch = 2, .len_q = 20, .len_k = 130, .used_k = {100, 70}, .page_size = 16};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of_features<kSmall, kNone>(shape, 14, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) {
              static const int used[] = {100, 69};
              p.seqused_k = used;
            }),
            "");
  EXPECT_NE(said([](FeatureParams& p) { p.page_table += 1; }), "");
}

}  // namespace
}  // namespace heed::sm90_fp8
