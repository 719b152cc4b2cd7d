// Families for few queries: what they take, how they cut the keys, and how they fill a GPU.
#include <map>
#include <set>

#include "base/random.hpp"
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

TEST(Families, DecodeTakesFewRowsAndSaysWhoTakesMore) {
  const Family& family = find_family("fwd_sm80_decode");
  const DeviceFacts hopper = gpu_limits("sm_90a");
  EXPECT_EQ(family.refuses(parse_workload("b8h32hkv4l1k8192d128"), hopper), std::nullopt);
  EXPECT_EQ(family.refuses(parse_workload("b8h32hkv4l64k8192d128"), hopper), std::nullopt);
  EXPECT_THAT(*family.refuses(parse_workload("b8h32hkv4l65k8192d128"), hopper),
              ::testing::HasSubstr("520 packed rows; it takes 512: use fwd_sm80"));
  EXPECT_THAT(*family.refuses(parse_workload("l1k9d80"), hopper), ::testing::HasSubstr("head dim 80"));
  EXPECT_THAT(*family.refuses(parse_workload("l1k9d64:fp32"), hopper), ::testing::HasSubstr("fp32"));
  const Workload workload = parse_workload("b8h32hkv4l1k8192d128");
  const auto reason = [&](const std::string& text, const Workload& w, const char* arch) {
    const DeviceFacts device = gpu_limits(arch);
    const Variant variant = parse_variant(text, w, device);
    return variant.is_illegal(w, device).value_or("legal");
  };
  EXPECT_THAT(reason("fwd_sm80_decode:block_m=16,warp_rows=32", workload, "sm_90a"),
              ::testing::HasSubstr("no multiple"));
  EXPECT_THAT(reason("fwd_sm80_decode:block_m=64,warp_rows=16,kv_groups=16", workload, "sm_90a"),
              ::testing::HasSubstr("named barriers"));
  EXPECT_THAT(reason("fwd_sm80_decode:stages=8,kv_groups=8,block_n=64", workload, "sm_90a"),
              ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("fwd_sm80_decode:stages=5,min_blocks=2", workload, "sm_90a"), ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason("fwd_sm80_decode:kv_groups=8,stages=1,min_blocks=3", workload, "sm_90a"),
              ::testing::HasSubstr("registers a thread"));
  EXPECT_THAT(reason("fwd_sm80_decode:block_m=16,warp_rows=16", parse_workload("h60000l32k64d64"), "sm_90a"),
              ::testing::HasSubstr("grid limit"));
  EXPECT_EQ(reason("fwd_sm80_decode", parse_workload("h60000l32k64d64"), "sm_90a"), "legal");
  EXPECT_THAT(*family.refuses(parse_workload("h60000l65k64d64"), hopper),
              ::testing::HasSubstr("60000 key heads of 65 packed rows"));
}

TEST(Families, DecodeOnHopperSaysWhatItCannotTake) {
  const Family& family = find_family("fwd_sm90_decode");
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload workload = parse_workload("b8h32hkv4l1k8192d128");
  EXPECT_EQ(family.refuses(workload, hopper), std::nullopt);
  EXPECT_THAT(*family.refuses(workload, gpu_limits("sm_89")), ::testing::HasSubstr("compute capability 9.0"));
  EXPECT_THAT(*family.refuses(parse_workload("b8h32hkv4l65k8192d128"), hopper), ::testing::HasSubstr("packed rows"));
  EXPECT_EQ(family.refuses(parse_workload("l1k9d80"), hopper), std::nullopt);
  EXPECT_THAT(*family.refuses(parse_workload("l1k9d264"), hopper), ::testing::HasSubstr("head dim 264"));
  EXPECT_THAT(*family.refuses(parse_workload("b65000h60000l1k1d64"), hopper),
              ::testing::HasSubstr("tiles of keys exceed"));
  const auto reason = [&](const std::string& knobs, const char* shape) {
    const Workload w = parse_workload(shape);
    const Variant variant = parse_variant("fwd_sm90_decode:" + knobs, w, hopper);
    return family.is_illegal(variant.config, w, hopper).value_or("legal");
  };
  const char* shape = "b8h32hkv4l1k8192d128";
  const std::string tiles = "group_split=kv_tiles,";
  EXPECT_THAT(reason(tiles + "kv_groups=6,stages=8", shape), ::testing::HasSubstr("no multiple of 6 groups"));
  EXPECT_THAT(reason(tiles + "block_n=32,kv_groups=4,stages=24", shape),
              ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason(tiles + "block_n=32,kv_groups=4,stages=8,min_blocks=2", shape),
              ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason(tiles + "block_m=64,producer_warp=off", shape),
              ::testing::HasSubstr("groups of 4 warps cannot ask"));
  EXPECT_THAT(reason(tiles + "kv_groups=8,stages=8,block_n=16,block_m=64,producer_warp=on", shape),
              ::testing::HasSubstr("threads a block exceed"));
  EXPECT_THAT(reason(tiles + "kv_groups=4,stages=4,block_n=16,block_m=64,producer_warp=on", shape),
              ::testing::HasSubstr("registers a thread"));
  EXPECT_THAT(reason(tiles + "kv_groups=8,stages=8,block_n=32,merge_warps=4", shape),
              ::testing::HasSubstr("registers a thread"));
  const std::string columns = "group_split=columns,merge_warps=1,";
  EXPECT_EQ(reason(columns + "block_n=64,kv_groups=4,stages=3", shape), "legal");
  EXPECT_EQ(reason(columns + "block_n=128,kv_groups=4,stages=3", shape), "legal");
  EXPECT_THAT(reason(columns + "block_n=32,kv_groups=4", shape), ::testing::HasSubstr("4 warps cannot divide 32 keys"));
  EXPECT_THAT(reason(columns + "block_n=128,kv_groups=8", "b8h32hkv4l1k8192d64"),
              ::testing::HasSubstr("8 warps cannot divide 128 keys and 64 columns"));
  EXPECT_THAT(reason(columns + "block_n=64,kv_groups=6", shape), ::testing::HasSubstr("6 warps cannot divide"));
  EXPECT_THAT(reason(columns + "block_m=64", shape), ::testing::HasSubstr("at most 32 rows"));
  EXPECT_THAT(reason(columns + "producer_warp=off", shape), ::testing::HasSubstr("wants producer_warp=on"));
  EXPECT_THAT(reason("group_split=columns,merge_warps=2", shape), ::testing::HasSubstr("and merge_warps=1"));
  EXPECT_THAT(reason(columns + "block_m=32,block_n=128,kv_groups=8,stages=3", shape),
              ::testing::HasSubstr("registers a thread"));
  // What the estimate leaves out: these two spilled.
  EXPECT_THAT(reason(tiles + "block_m=64,block_n=32,kv_groups=2,stages=6,merge_warps=3", shape),
              ::testing::HasSubstr("at least 172 registers a thread, 168 fit"));
  EXPECT_THAT(
      reason(columns + "block_m=32,block_n=64,kv_groups=4,stages=3", "b8h32hkv4l4k8192d128:causal_bottom_right"),
      ::testing::HasSubstr("at least 256 registers a thread, 255 fit"));
  for (const char* any : {"h1l1k1d64", "b8h32hkv4l16k8192d128", "b3h6hkv2l7k100d64:bf16:causal_top_left",
                          "h64hkv1l8k5000d128:causal_bottom_right", "h512hkv1l1k70d64"})
    EXPECT_EQ(reason("", any), "legal") << any;
}

// Every multiprocessor gets the same number of tiles, and no block none.
TEST(Families, DecodeOnHopperPlansEqualShares) {
  const Family& family = find_family("fwd_sm90_decode");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const auto plan_of = [&](const std::string& shape, const std::string& knobs) {
    const Workload workload = parse_workload(shape);
    return family.plan(parse_variant("fwd_sm90_decode:" + knobs, workload, hopper).config, workload, hopper);
  };
  const auto blocks_of = [](const LaunchPlan& plan) { return plan.grid[0] * plan.grid[1] * plan.grid[2]; };
  const std::string tiles = "group_split=kv_tiles,kv_groups=4,stages=8,";
  const LaunchPlan grouped = plan_of("b8h32hkv4l1k8192d128", tiles + "block_m=8,block_n=32,l2_promotion=0");
  // Every job is cut into four: the grid says which job a block's is.
  EXPECT_EQ(grouped.grid, (std::array<std::uint32_t, 3>{4, 4, 8}));
  EXPECT_EQ(grouped.semaphores, 128 + 2 * 128 * 8 * (128 + 8));  // an arrival word a block, then two places each
  EXPECT_EQ(grouped.workspace_bytes, 0);
  ASSERT_TRUE(grouped.tensor_maps);
  EXPECT_EQ(grouped.tensor_maps->k_rows, 32);
  EXPECT_EQ(grouped.tensor_maps->l2_bytes, 0);
  EXPECT_TRUE(grouped.supports_pdl);
  EXPECT_FALSE(plan_of("b8h32hkv4l1k8192d128", "pdl=off").supports_pdl);
  EXPECT_EQ(
      blocks_of(plan_of("b8h32hkv4l1k8192d128", "group_split=kv_tiles,kv_groups=4,stages=4,block_n=32,min_blocks=2")),
      256U);                                                                    // 32 jobs in 8 parts each
  EXPECT_EQ(blocks_of(plan_of("h4hkv1l1k100d128", tiles + "block_n=32")), 4U);  // four tiles, four blocks
  EXPECT_EQ(blocks_of(plan_of("h4hkv1l4k100d128:causal_top_left", tiles + "block_m=8,block_n=32")),
            2U);  // one tile of keys each
  // By columns a place holds a warp's fragments of eight rows, and its references and sums.
  const LaunchPlan columns =
      plan_of("b8h32hkv4l1k8192d128", "group_split=columns,merge_warps=1,block_n=64,kv_groups=4,stages=4");
  EXPECT_EQ(columns.grid, (std::array<std::uint32_t, 3>{4, 4, 8}));
  EXPECT_EQ(columns.semaphores, 128 + 2 * 128 * 4 * (2 * 128 + 16));
  EXPECT_EQ(columns.tensor_maps->k_rows, 64);
  hopper.processors = 0;
  EXPECT_EQ(blocks_of(plan_of("b8h32hkv4l1k8192d128", "")), 128U);
  EXPECT_EQ(plan_of("b8h32hkv4l1k8192d128", "split_points=anywhere").grid, (std::array<std::uint32_t, 3>{132, 1, 1}));
}

// A launch under a window has the keys in front of the first visible one cut off: blocks are counted by what is left.
TEST(Families, DecodeOnHopperPlansBlocksForTheKeysOfAWindow) {
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const std::string knobs =
      "fwd_sm90_decode:group_split=kv_tiles,kv_groups=2,stages=4,block_m=8,block_n=16,split_points=anywhere,max_splits="
      "0";
  for (const auto& [shape, blocks] : std::map<std::string, unsigned>{
           {"h8hkv1l1k4096d64:window=63/0", 4},  // 64 of 4096 keys
           {"h8hkv1l1k4096d64:window=64/0", 5},
           {"h8hkv1l1k4096d64:causal_bottom_right", 132},
           {"h8hkv1l4k83d64:causal_bottom_right:window=3", 4}}) {  // four jobs, of 7 keys each
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant(knobs, workload, hopper);
    const LaunchPlan plan = variant.family->plan(variant.config, workload, hopper);
    EXPECT_EQ(plan.grid[0] * plan.grid[1] * plan.grid[2], blocks) << shape;
  }
}

// Enough bytes under way, and as wide tiles as leave every multiprocessor several.
TEST(Families, DecodeOnHopperKeepsTheMemoryBusy) {
  const Family& family = find_family("fwd_sm90_decode");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const auto chosen = [&](const char* shape) {
    const Workload workload = parse_workload(shape);
    return to_string(family.knobs(), family.default_config(workload, hopper));
  };
  using ::testing::HasSubstr;
  using ::testing::StartsWith;
  for (const char* suite : {"b8h32hkv4l1k8192d128", "h32hkv8l1k32768d128:bf16", "b64h32hkv8l1k2048d128"}) {
    const bool many_parts = std::string_view(suite).starts_with("h");
    EXPECT_THAT(chosen(suite),
                StartsWith(many_parts ? "block_m=8,block_n=64,kv_groups=4,stages=4,min_blocks=1,l2_promotion=0"
                                      : "block_m=8,block_n=128,kv_groups=8,stages=3,min_blocks=1,l2_promotion=0"))
        << suite;
    EXPECT_THAT(
        chosen(suite),
        HasSubstr("l2_prefetch_kib=64,merge_warps=1,group_split=columns,split_points=at_work_tiles,producer_warp=on"))
        << suite;
  }
  EXPECT_THAT(chosen("b8h32hkv4l1k8192d64"), StartsWith("block_m=8,block_n=128,kv_groups=4,stages=4,"));
  EXPECT_THAT(chosen("h8l1k1024d128"), StartsWith("block_m=8,block_n=128,kv_groups=8,stages=3,"));  // 64 tiles
  EXPECT_THAT(chosen("h1l1k1d64"), StartsWith("block_m=8,block_n=128,kv_groups=4,stages=4,"));
  // What a block reads decides how much of it is asked for twice.
  EXPECT_THAT(chosen("h8l1k1024d128"), HasSubstr("l2_prefetch_kib=0,"));
  EXPECT_THAT(chosen("h32hkv8l1k2048d128"), HasSubstr("l2_prefetch_kib=16,"));
  EXPECT_THAT(chosen("h32hkv8l1k8192d128"), HasSubstr("l2_prefetch_kib=64,"));
  EXPECT_THAT(chosen("h32hkv8l1k8192d128"), StartsWith("block_m=8,block_n=64,kv_groups=4,stages=4,"));
  // Tiles of few rows are merged soon; of many long keys each is read by few tiles.
  EXPECT_THAT(chosen("h128hkv1l1k4096d64"), StartsWith("block_m=8,"));
  EXPECT_THAT(chosen("h128hkv1l1k131072d64"), StartsWith("block_m=16,"));
  // More tiles than run side by side would each read keys from memory.
  EXPECT_THAT(chosen("b8h32hkv8l5k4096d128:causal_bottom_right"), StartsWith("block_m=16,"));
  // Parts that have little to read cost more than they bring.
  EXPECT_THAT(chosen("h4l1k3352d128"), HasSubstr("max_splits=16"));
  EXPECT_THAT(chosen("b8h32hkv4l1k8192d128"), HasSubstr("max_splits=0"));
  // Wide head dims by columns, too.
  EXPECT_THAT(chosen("h40hkv8l1k512d256"), HasSubstr("group_split=columns"));
  // Keys that the L2 does not hold leave it first.
  EXPECT_THAT(chosen("b8h32hkv4l1k8192d128"), HasSubstr("evict_first=on"));
  EXPECT_THAT(chosen("b4h8l1k2994d64"), HasSubstr("evict_first=off"));
}

// The plan's splits fill the chip: blocks, workspace and semaphores for the shapes of the decode suite on an H200.
TEST(Families, DecodePlansFillTheChip) {
  const Family& family = find_family("fwd_sm80_decode");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const auto plan_of = [&](const std::string& shape, const std::string& knobs) {
    const Workload workload = parse_workload(shape);
    return family.plan(parse_variant("fwd_sm80_decode:" + knobs, workload, hopper).config, workload, hopper);
  };
  const LaunchPlan grouped = plan_of("b8h32hkv4l1k8192d128", "stages=3,min_blocks=2");
  EXPECT_EQ(grouped.grid, (std::array<std::uint32_t, 3>{8, 4, 8}));
  EXPECT_EQ(grouped.semaphores, 32);
  EXPECT_EQ(grouped.workspace_bytes, 32 * 8 * 16 * (128 + 2) * 4);
  EXPECT_EQ(plan_of("b8h32hkv4l1k8192d128", "stages=3,min_blocks=1").grid[0], 4U);
  EXPECT_EQ(plan_of("b8h32hkv4l1k8192d128", "stages=3,min_blocks=1,waves=4").grid[0], 16U);
  EXPECT_EQ(plan_of("h32hkv8l1k32768d128", "stages=3,min_blocks=2").grid[0], 32U);
  const LaunchPlan many = plan_of("b64h32hkv8l1k2048d128", "stages=3,min_blocks=2");
  EXPECT_EQ(many.grid, (std::array<std::uint32_t, 3>{1, 8, 64}));
  EXPECT_EQ(many.semaphores, 0);
  EXPECT_EQ(many.workspace_bytes, 0);
  // 32 rows make two tiles of 16; a query that sees one key needs no split.
  EXPECT_EQ(plan_of("h8hkv1l4k64d64", "block_m=16,warp_rows=16").grid[1], 2U);
  EXPECT_EQ(plan_of("h8hkv1l1k8192d64:causal_top_left", "stages=2").grid[0], 1U);
  // A device whose processors are not known still gets a launch: 192 blocks on 108 processors.
  hopper.processors = 0;
  EXPECT_EQ(plan_of("b8h32hkv4l1k8192d128", "stages=3,min_blocks=2").grid[0], 6U);
}

}  // namespace
}  // namespace heed
