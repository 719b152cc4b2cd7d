// fwd_sm80 with row sums by the tensor cores, on the emulated GPU: V with columns of ones, whatever else a program does
// with rows, their sums and their ends. What it is for is in sm80_minilm_test.cpp.
#include "sm80_case.hpp"
#include "sm80_features_case.hpp"

namespace heed::sm80 {
namespace {

constexpr auto kMma = attention::Rowsum::mma;
constexpr Problem kHalf{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr Problem kHalfCausal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};

// Rescaled at every tile, or taken again: sums are rescaled with the outputs they lie behind. Some rows see no key.
TEST(EmulatedSm80Rowsum, FollowsOutputsThatAreRescaled) {
  constexpr Config kAlways{.block_n = 32, .rowsum = kMma};
  run_dense_case<kAlways, kHalfCausal>({.len_q = 130, .len_k = 90, .causal_offset = -40, .score_scale = 30}, 1);
  constexpr Config kStale{.block_n = 32, .rescale = kStaleTile, .rowsum = kMma};
  run_dense_case<kStale, kHalf>({.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 200, .score_scale = 30}, 2);
  constexpr Config kBeside{.block_m = 32, .block_n = 32, .overlap = true, .rescale = kStaleTile, .rowsum = kMma};
  run_dense_case<kBeside, kHalfCausal>({.len_q = 70, .len_k = 200, .causal_offset = 130, .score_scale = 30}, 3);
}

// Groups' sums meet as ever; fragments of a warp have one each.
TEST(EmulatedSm80Rowsum, MeetsInSplitsOfKeys) {
  constexpr Config kSplit{.block_m = 32,
                          .block_n = 32,
                          .warp_rows = 32,
                          .kv_groups = 2,
                          .stages = 3,
                          .q_in_registers = false,
                          .rescale = kStaleTile,
                          .rowsum = kMma};
  run_dense_case<kSplit, kBrain128Causal>({.len_q = 40, .len_k = 200, .causal_offset = 160, .score_scale = 30}, 4);
}

TEST(EmulatedSm80Rowsum, TakesSinksNormsAndGates) {
  static constexpr Problem kProblem = [] {
    Problem p = kHalfCausal;
    p.features = {.sinks = true, .out_norm = true, .out_gate = true};
    return p;
  }();
  FeatureShape shape{.heads = 2, .len_q = 40, .len_k = 60, .right_offset = 20, .sinks = {0.5F, 4.0F}};
  shape.norm = 1;
  shape.gate = 1;
  run_case<Config{.block_n = 32, .rescale = kStaleTile, .rowsum = kMma}, kProblem>(shape, 5);
  run_case<Config{.block_n = 32, .rowsum = kMma, .epilogue = Epilogue::direct}, kProblem>(shape, 6);
}

TEST(Sm80Rowsum, IsRefusedWithoutRoundedProbabilities) {
  static constexpr Config kSums{.block_n = 32, .rowsum = kMma};
  constexpr Problem kSingle{.element = Element::fp32, .head_dim = 64, .mask = MaskKind::none};
  constexpr Problem kDropout = [] {
    Problem p = kHalf;
    p.features = {.dropout = true};
    return p;
  }();
  constexpr auto verdict = [](const Problem& p) { return is_legal(kSums, p, 227 << 10, 228 << 10); };
  EXPECT_EQ(verdict(kHalf), Illegal::no);
  EXPECT_EQ(verdict(kSingle), Illegal::rowsum_fp32);
  EXPECT_EQ(verdict(kDropout), Illegal::rowsum_dropout);
}

}  // namespace
}  // namespace heed::sm80
