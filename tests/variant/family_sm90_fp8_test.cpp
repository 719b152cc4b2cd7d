// What fwd_sm90_fp8 takes and refuses, when it comes first, and how it is launched.
#include <fmt/format.h>

#include "device/device.hpp"
#include "kernels/sm90/fp8/config.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

DeviceFacts gpu_of_fp8(const char* arch) {
  DeviceFacts facts = gpu_limits(arch);
  facts.processors = 132;
  return facts;
}
std::string fp8_refusal(const std::string& shape, const char* arch = "sm_90a") {
  return find_family("fwd_sm90_fp8").refuses(parse_workload(shape), gpu_of_fp8(arch)).value_or("");
}
std::string fp8_config_refusal(const std::string& variant, const std::string& shape) {
  const Workload workload = parse_workload(shape);
  return parse_variant(variant, workload, gpu_of_fp8("sm_90a")).is_illegal(workload, gpu_of_fp8("sm_90a")).value_or("");
}

TEST(Sm90Fp8, TakesQKAndVInE4m3) {
  for (const char* shape :
       {"b2h8hkv2l300k500d64:quantised=qkv/e4m3/head",
        "b2h8l300d128:bf16:causal_bottom_right:quantised=qkv/e4m3/tensor",
        "h2l64d256:blhd:quantised=q/e4m3/token+k/e4m3/block64+v/e4m3/channel",
        "h2l300d128:window=40/3:quantised=q/e4m3/block48+kv/e4m3/head", "h1l1k1d64:quantised=qkv/e4m3/head"})
    EXPECT_EQ(fp8_refusal(shape), "") << shape;
  EXPECT_THAT(fp8_refusal("h2l64d64"), HasSubstr("quantised inputs alone"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qkv/e4m3/head", "sm_89"), HasSubstr("8.9"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qkv/e5m2/head"), HasSubstr("it reads Q, K and V in e4m3"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qk/e4m3/head"), HasSubstr("it reads Q, K and V in e4m3"));
  EXPECT_THAT(fp8_refusal("h2l64d96:quantised=qkv/e4m3/head"), HasSubstr("head dim 96"));
  EXPECT_THAT(fp8_refusal("h2l64d64:fp32:quantised=qkv/e4m3/head"), HasSubstr("fp32"));
  EXPECT_THAT(fp8_refusal("h2l64d64:alibi:sinks:quantised=qkv/e4m3/head"), HasSubstr("ALiBi slopes"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qkv/e4m3/token"), HasSubstr("single keys of K"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qk/e4m3/block48+v/e4m3/head"), HasSubstr("48 keys of K"));
  EXPECT_THAT(fp8_refusal("h2l64d64:quantised=qk/e4m3/head+v/e4m3/token"), HasSubstr("factors of V"));
  EXPECT_THAT(fp8_refusal("h2l64k300d64:window=40/3:quantised=qk/e4m3/block64+v/e4m3/head"), HasSubstr("window"));
}

TEST(Sm90Fp8, TakesLengthsPagesSinksAndASoftcap) {
  for (const char* shape :
       {"b3h8hkv2l300k500d64:causal_bottom_right:ragged:quantised=qkv/e4m3/head",
        "b2h8l300d128:bf16:key_lengths:quantised=q/e4m3/block48+k/e4m3/block64+v/e4m3/channel",
        "b2h8l300d128:page=8:quantised=qkv/e4m3/tensor",
        "b2h8l300d256:window=40/3:ragged:page=24:quantised=q/e4m3/token+kv/e4m3/head",
        "b2h8l300d64:softcap=50:sinks:quantised=qkv/e4m3/head",
        "b2h8l300d256:bf16:causal_bottom_right:softcap=30:sinks:ragged:page=16:quantised=qkv/e4m3/head"}) {
    EXPECT_EQ(fp8_refusal(shape), "") << shape;
    EXPECT_EQ(default_family(parse_workload(shape), gpu_of_fp8("sm_90a")).name(), "fwd_sm90_fp8") << shape;
  }
  // Refused workloads are those of fwd_sm80.
  for (const auto& [shape, reason] :
       {std::pair{"h2l64d64:page=12:quantised=qkv/e4m3/head", "12 keys is no multiple of"},
        {"h2l64d64:page=64:quantised=q/e4m3/head+k/e4m3/block64+v/e4m3/head", "in pages"},
        {"b64h8l64k131072d128:key_lengths:quantised=qkv/e4m3/head",
         "8589934592 bytes where each of 64 entries may have 131072 keys"}}) {
    EXPECT_THAT(fp8_refusal(shape), HasSubstr(reason)) << shape;
    EXPECT_EQ(default_family(parse_workload(shape), gpu_of_fp8("sm_90a")).name(), "fwd_sm80") << shape;
  }
  EXPECT_EQ(fp8_refusal("b64h8l64k131072d128:quantised=qkv/e4m3/head"), "");
}

TEST(Sm90Fp8, ComesFirstForE4m3OnHopper) {
  const Workload workload = parse_workload("b2h8l300d128:quantised=qkv/e4m3/head");
  EXPECT_EQ(default_family(workload, gpu_of_fp8("sm_90a")).name(), "fwd_sm90_fp8");
}

TEST(Sm90Fp8, TilesLieInBlocksOfFactors) {
  const std::string shape = "h2l512d128:quantised=q/e4m3/head+k/e4m3/block128+v/e4m3/head";
  EXPECT_EQ(fp8_config_refusal("fwd_sm90_fp8", shape), "");
  EXPECT_THAT(fp8_config_refusal("fwd_sm90_fp8:block_n=96", shape), HasSubstr("96 keys does not divide the 128"));
  const std::string head = "h2l512d256:quantised=qkv/e4m3/head";
  EXPECT_THAT(fp8_config_refusal("fwd_sm90_fp8:block_n=224,stages=1", head), HasSubstr("registers"));
  EXPECT_THAT(fp8_config_refusal("fwd_sm90_fp8:block_n=128,stages=6", head), HasSubstr("shared memory"));
  EXPECT_THAT(fp8_config_refusal("fwd_sm90_fp8:m_warpgroups=1,block_n=64,pingpong=on", head), HasSubstr("no turns"));
  EXPECT_EQ(fp8_config_refusal("fwd_sm90_fp8:m_warpgroups=4,block_n=64", "h2l512d64:quantised=qkv/e4m3/head"), "");
}

// Short rows have smaller tiles and more warpgroups; factors of 64 keys leave tiles of 64.
TEST(Sm90Fp8, DefaultsFollowLengths) {
  const auto tile_of = [](const std::string& shape) {
    const Workload workload = parse_workload(shape);
    const Config config = find_family("fwd_sm90_fp8").default_config(workload, gpu_of_fp8("sm_90a"));
    const auto& knobs = find_family("fwd_sm90_fp8").knobs();
    std::string text;
    for (std::size_t i = 0; i < knobs.size(); ++i)
      if (knobs[i].name == "m_warpgroups" || knobs[i].name == "block_n" || knobs[i].name == "promote_every")
        text += fmt::format("{} ", config.at(i));
    return text;
  };
  EXPECT_EQ(tile_of("b32h32l512d64:quantised=qkv/e4m3/head"), "4 64 16 ");
  EXPECT_EQ(tile_of("h32l16384d64:quantised=qkv/e4m3/head"), "3 128 8 ");
  EXPECT_EQ(tile_of("h32l16384d64:quantised=q/e4m3/head+k/e4m3/block64+v/e4m3/head"), "2 64 16 ");
  EXPECT_EQ(tile_of("h32l512d64:causal_top_left:quantised=qkv/e4m3/head"), "4 64 16 ");
  EXPECT_EQ(tile_of("h32l512d128:quantised=qkv/e4m3/head"), "2 128 8 ");
  EXPECT_EQ(tile_of("h32l16384d128:quantised=qkv/e4m3/head"), "2 192 4 ");
  EXPECT_EQ(tile_of("h32l16384d256:quantised=qkv/e4m3/head"), "2 128 8 ");
  // Capped scores take registers, and so do windows of entries.
  EXPECT_EQ(tile_of("b32h32l512d64:sinks:ragged:quantised=qkv/e4m3/head"), "4 64 16 ");
  EXPECT_EQ(tile_of("b32h32l512d64:softcap=50:quantised=qkv/e4m3/head"), "3 128 8 ");
  EXPECT_EQ(tile_of("h32l16384d128:softcap=50:quantised=qkv/e4m3/head"), "2 192 4 ");
  EXPECT_EQ(tile_of("h32l16384d256:softcap=50:quantised=qkv/e4m3/head"), "2 96 8 ");
  EXPECT_EQ(tile_of("h32l16384d256:causal_top_left:ragged:quantised=qkv/e4m3/head"), "2 128 8 ");
  EXPECT_EQ(tile_of("h32l16384d256:window=99:ragged:quantised=qkv/e4m3/head"), "2 96 8 ");
}

// Room for V transposed, whole tiles of keys, and no more CTAs than fit at once.
TEST(Sm90Fp8, LaunchesHaveRoomForValues) {
  const Workload workload = parse_workload("b2h8hkv2l3000k500d128:quantised=qkv/e4m3/head");
  const DeviceFacts device = gpu_of_fp8("sm_90a");
  const LaunchPlan plan = parse_variant("fwd_sm90_fp8:block_n=128,stages=2", workload, device).plan(workload, device);
  EXPECT_EQ(plan.workspace_bytes, 512 * 128 * 2 * 2);
  EXPECT_EQ(plan.semaphores, static_cast<int>(sm90_fp8::kSemaphores));
  EXPECT_EQ(plan.grid[0], 132U);
  ASSERT_TRUE(plan.tensor_maps);
  EXPECT_EQ(plan.tensor_maps->columns, 128);
  EXPECT_EQ(plan.tensor_maps->k_rows, 128);
}

// Boxes of keys in pages lie in one page and in one tile.
TEST(Sm90Fp8, BoxesOfPages) {
  const auto rows_of = [](const std::string& variant, int page) {
    const Workload workload = parse_workload(fmt::format("h2l300d64:page={}:quantised=qkv/e4m3/head", page));
    const DeviceFacts device = gpu_of_fp8("sm_90a");
    return parse_variant(variant, workload, device).plan(workload, device).tensor_maps->k_rows;
  };
  EXPECT_EQ(rows_of("fwd_sm90_fp8:block_n=128,stages=2", 16), 16);
  EXPECT_EQ(rows_of("fwd_sm90_fp8:block_n=128,stages=2", 24), 8);
  EXPECT_EQ(rows_of("fwd_sm90_fp8:block_n=128,stages=2", 256), 128);
  EXPECT_EQ(rows_of("fwd_sm90_fp8:block_n=96,stages=2", 256), 32);
  EXPECT_EQ(rows_of("fwd_sm90_fp8:block_n=192,stages=2", 96), 32);
}

}  // namespace
}  // namespace heed
