#include <array>

#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

TEST(Families, StreamSaysWhatItCannotDo) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Family& family = find_family("fwd_sm90_stream");
  EXPECT_THAT(*family.refuses(parse_workload("b60000h60000l1k1d64"), hopper),
              ::testing::HasSubstr("3600000000 tiles of 64 rows exceed"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64"), gpu_limits("sm_89")), ::testing::HasSubstr("sm_90a"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d68"), hopper), ::testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64:fp32"), hopper), ::testing::HasSubstr("fp32"));
  const auto reason = [&](const std::string& knobs, const char* shape = "b4h16l512d64") {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant("fwd_sm90_stream:" + knobs, workload, hopper);
    return variant.family->is_illegal(variant.config, workload, hopper).value_or("legal");
  };
  EXPECT_EQ(reason("row_groups=4"), "legal");
  EXPECT_THAT(reason("key_groups=2"), ::testing::HasSubstr("1152 threads"));
  EXPECT_THAT(reason("overlap=products,reference=exact"), ::testing::HasSubstr("overlap=nothing"));
  EXPECT_THAT(reason("overlap=values,reference=exact"), ::testing::HasSubstr("overlap=nothing"));
  EXPECT_THAT(reason("overlap=values,product_order=alternating,upkeep=branches"),
              ::testing::HasSubstr("product_order=scores_first"));
  EXPECT_THAT(reason("row_groups=2,key_groups=2,turns=in_order,scaling=step_ahead"),
              ::testing::HasSubstr("116 registers a thread, 112"));
  EXPECT_THAT(reason("overlap=products,tile_keys=32,packing=step_later", "b4h8l2048d256"),
              ::testing::HasSubstr("packing=at_once"));
  EXPECT_EQ(reason("starts=together", "b1h8l1024d64"), "legal");
  EXPECT_THAT(reason("starts=in_turn"), ::testing::HasSubstr("starts=together"));
  EXPECT_EQ(reason("sizes=whole"), "legal");
  EXPECT_EQ(reason("sizes=fixed", "b4h16l500d64"), "legal");
  EXPECT_THAT(reason("sizes=whole", "b4h16l500d64"), ::testing::HasSubstr("sizes=fixed"));
  EXPECT_THAT(reason("sizes=fixed", "b8h16l2048d128"), ::testing::HasSubstr("take 268 MB"));
  EXPECT_EQ(reason("sizes=fixed,outputs=dense"), "legal");
  EXPECT_EQ(reason("sizes=whole,outputs=dense,store=pieces"), "legal");
  EXPECT_THAT(reason("outputs=dense"), ::testing::HasSubstr("sizes=fixed,programs=all,outputs=dense"));
  EXPECT_THAT(reason("sizes=fixed,outputs=dense,store=boxes"),
              ::testing::HasSubstr("sizes=fixed,programs=all,outputs=any"));
  EXPECT_THAT(reason("sizes=fixed,programs=all,outputs=dense", "b8h16l2048d128"),
              ::testing::HasSubstr("write sizes=any"));
  EXPECT_THAT(reason("outputs=dense", "b8h16l2048d128"), ::testing::HasSubstr("sizes=any,programs=all,outputs=any"));
  // What sizes need is known with them, and what a block begins with where it goes on.
  EXPECT_EQ(reason("sizes=fixed,programs=needed"), "legal");
  EXPECT_THAT(reason("programs=needed"), ::testing::HasSubstr("programs=all"));
  EXPECT_THAT(reason("evict_first=but_first_keys"), ::testing::HasSubstr("evict_first=values"));
  // Teams are blocks that stay, whose keys no one else shares.
  EXPECT_THAT(reason("row_groups=1,teams=2"), ::testing::HasSubstr("teams=1"));
  EXPECT_THAT(reason("row_groups=1,key_groups=2,schedule=dynamic,stages=1,teams=2"), ::testing::HasSubstr("teams=1"));
  EXPECT_EQ(reason("teams=4,min_blocks=1,shares=when_due", "b64h12l128d64"), "legal");
  EXPECT_THAT(reason("teams=4,min_blocks=1", "b64h12l128d64"), ::testing::HasSubstr("shares=when_due"));
  // What a search makes of teams where there are small blocks.
  const Workload small = parse_workload("b64h12l128d64");
  const Variant three = parse_variant("fwd_sm90_stream:teams=3", small, hopper);
  EXPECT_THAT(to_string(family.knobs(), family.canonical(three.config, small)),
              ::testing::HasSubstr("teams=3,min_blocks=1"));
  EXPECT_THAT(reason("teams=4,min_blocks=1,stages=3", "b64h12l128d64"), ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("teams=4,min_blocks=1,producer=own_warp", "b64h12l128d64"),
              ::testing::HasSubstr("108 registers a thread, 96"));
  // Blocks of a cluster have a row tile each, and no key groups besides.
  const char* const causal = "b1h8l1024d64:causal_top_left";
  EXPECT_EQ(reason("row_groups=1,cluster=2,sums=at_end", causal), "legal");
  EXPECT_THAT(reason("row_groups=1,key_groups=2,cluster=2", "b1h8l1024d64"), ::testing::HasSubstr("cluster=1"));
  EXPECT_THAT(reason("cluster=2,schedule=persistent,store=rows"), ::testing::HasSubstr("cluster=1"));
  EXPECT_EQ(reason("row_groups=1,key_groups=1,cluster=2,overlap=values,product_order=scores_first,vote=at_once,"
                   "masking=ahead,scaling=at_use,packing=at_once,adding=at_once,arrival=at_use,min_blocks=1",
                   causal),
            "legal");
  // Only masks make row tiles differ, and only beside products have masked tiles a way of their own.
  EXPECT_THAT(reason("row_groups=1,key_groups=1,cluster=2,tile_order=folded", "b1h8l1024d64"),
              ::testing::HasSubstr("tile_order=rows_first"));
  EXPECT_THAT(reason("masking=apart", "b1h8l1024d64"), ::testing::HasSubstr("masking=ahead"));
  EXPECT_THAT(reason("overlap=nothing,vote=at_once,masking=with_vote", causal), ::testing::HasSubstr("masking=ahead"));
  EXPECT_THAT(reason("row_groups=1,schedule=one_tile,tile_order=heads_first", "b1h1l4200000d64"),
              ::testing::HasSubstr("65625 row tiles a head exceed the grid limit of 65535"));
  // Where key groups meet and blocks stay, nothing is left for boxes to wait in.
  EXPECT_THAT(reason("row_groups=1,key_groups=2,schedule=persistent,store=boxes"), ::testing::HasSubstr("store=rows"));
  // One row group has nobody to wait for.
  EXPECT_THAT(reason("row_groups=1,turns=in_order"), ::testing::HasSubstr("turns=any"));
  // Only exponentials beside products have any to wait for before they vote.
  EXPECT_THAT(reason("overlap=nothing,vote=after_products"), ::testing::HasSubstr("vote=at_once"));
  EXPECT_EQ(reason("row_groups=2,overlap=products,stages=1,vote=after_products"), "legal");
  EXPECT_EQ(reason("overlap=values,product_order=scores_first,upkeep=branches,scaling=at_use"), "legal");
  EXPECT_THAT(reason("overlap=values,product_order=scores_first,upkeep=conditions"),
              ::testing::HasSubstr("116 registers a thread, 112"));
  EXPECT_THAT(reason("row_groups=2,overlap=values,product_order=scores_first,arrival=ahead"),
              ::testing::HasSubstr("arrival=at_use"));
  EXPECT_EQ(reason("row_groups=2,overlap=products,stages=1"), "legal");
  EXPECT_THAT(reason("stages=16"), ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("min_blocks=4"), ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason("tile_keys=96,stages=4"), ::testing::HasSubstr("registers a thread, 112 fit"));
  EXPECT_THAT(reason("row_groups=1,tile_keys=32,stages=1,overlap=nothing,min_blocks=3,query_stages=1", "b4h16l512d128"),
              ::testing::HasSubstr("name 94 registers; at launch a thread has 80"));
  EXPECT_THAT(reason("query_stages=2"), ::testing::HasSubstr("query_stages=1"));
  // Where no mask makes rows differ, and with one row group, there is nothing to pair.
  EXPECT_THAT(reason("tile_order=mirrored"), ::testing::HasSubstr("tile_order=rows_first"));
  EXPECT_EQ(reason("tile_order=mirrored", "b4h16l512d64:causal_top_left"), "legal");
  EXPECT_EQ(reason("tile_order=mirrored,pairs=together", "b4h16l512d64:causal_top_left"), "legal");
  EXPECT_THAT(reason("pairs=together", "b4h16l512d64"), ::testing::HasSubstr("pairs=apart"));
  EXPECT_THAT(reason("tile_order=mirrored,pairs=together,stages=1", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("pairs=apart"));
  // Only blocks that take row tiles by their index make waves.
  EXPECT_THAT(reason("waves=even"), ::testing::HasSubstr("waves=filled"));
  EXPECT_THAT(reason("schedule=dynamic,waves=even"), ::testing::HasSubstr("waves=filled"));
  EXPECT_EQ(reason("schedule=persistent,waves=even"), "legal");
  // Blocks that stay have no start of every row tile to themselves.
  EXPECT_THAT(reason("schedule=persistent,store=aimed_rows"), ::testing::HasSubstr("store=rows"));
  EXPECT_THAT(reason("row_groups=3,pairs=together", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("pairs=apart"));
  EXPECT_THAT(reason("row_groups=1,tile_order=mirrored", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("tile_order=rows_first"));
}

// Whoever asks for a launch of other sizes than a program is for would get a wrong output.
TEST(Families, ProgramsForFixedSizesRunNoOthers) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload own = parse_workload("b2h8hkv2l512k700d64:causal_bottom_right");
  const Variant any = parse_variant("fwd_sm90_stream", own, hopper);
  const Variant fixed = parse_variant("fwd_sm90_stream:sizes=fixed", own, hopper);
  EXPECT_EQ(to_string(any.problem), "fp16_d64_causal");
  EXPECT_EQ(to_string(fixed.problem), "fp16_d64_causal_b2h8hkv2l512k700o188");
  EXPECT_THAT(fixed.source_for(own), ::testing::HasSubstr(".sizes = {.batch = 2, .heads = 8, .heads_kv = 2, "
                                                          ".len_q = 512, .len_k = 700, .causal_offset = 188}"));
  EXPECT_THAT(any.source_for(own), ::testing::Not(::testing::HasSubstr(".sizes = {")));
  Workload strided = own;
  strided.layout = Layout::blhd;
  strided.scale = 0.5;
  EXPECT_TRUE(fixed.runs(own) && fixed.runs(strided));
  for (const char* other :
       {"b1h8hkv2l512k700d64:causal_bottom_right", "b2h8hkv4l512k700d64:causal_bottom_right",
        "b2h4hkv2l512k700d64:causal_bottom_right", "b2h8hkv2l511k700d64:causal_bottom_right",
        "b2h8hkv2l512k699d64:causal_bottom_right", "b2h8hkv2l512k700d64:causal_top_left", "b2h8hkv2l512k700d64"}) {
    EXPECT_FALSE(fixed.runs(parse_workload(other))) << other;
    EXPECT_THROW((void)fixed.plan(parse_workload(other), hopper), Error) << other;
  }
  EXPECT_TRUE(any.runs(parse_workload("b1h8hkv2l511k699d64:causal_top_left")));
  // The same knobs for other sizes are another variant.
  EXPECT_NE(
      parse_variant("fwd_sm90_stream:sizes=fixed", parse_workload("b2h8hkv2l512k701d64:causal_bottom_right"), hopper)
          .id(),
      fixed.id());
}

// Nor one for dense outputs any others, which it would write as if they were; their order is the workload's.
TEST(Families, ProgramsForDenseOutputsWriteNoOthers) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload bhld = parse_workload("b2h8hkv2l512k700d64:causal_bottom_right");
  Workload blhd = bhld;
  blhd.layout = Layout::blhd;
  for (const std::string family : {"fwd_sm90_stream:", "fwd_sm90:key_heads=shared,"}) {
    const auto variant = [&](const char* knobs, const Workload& workload) {
      return parse_variant(family + knobs, workload, hopper);
    };
    const Variant dense = variant("sizes=fixed,outputs=dense", bhld);
    const Variant inner = variant("sizes=fixed,outputs=dense", blhd);
    const Variant fixed = variant("sizes=fixed", bhld);
    const Variant any = variant("sizes=any", bhld);
    const std::string sizes = "fp16_d64_causal_b2h8hkv2l512k700o188";
    EXPECT_EQ(to_string(dense.problem), sizes + "_bhld");
    EXPECT_EQ(to_string(inner.problem), sizes + "_blhd");
    EXPECT_EQ(to_string(fixed.problem), sizes);
    EXPECT_EQ(to_string(any.problem), "fp16_d64_causal");
    EXPECT_NE(dense.id(), inner.id());
    EXPECT_NE(dense.id(), fixed.id());
    const auto says = [](const std::string& strides) {
      return ::testing::HasSubstr(", .causal_offset = 188" + strides + "}}");
    };
    EXPECT_THAT(dense.source_for(bhld), says(", .o_strides = {262144, 32768, 64}"));
    EXPECT_THAT(inner.source_for(blhd), says(", .o_strides = {262144, 64, 512}"));
    EXPECT_THAT(fixed.source_for(bhld), says(""));
    EXPECT_THAT(any.source_for(bhld), ::testing::Not(::testing::HasSubstr(".sizes = {")));
    EXPECT_EQ(dense.plan(bhld, hopper).o_strides, (TensorStrides{8 * 512 * 64, 512 * 64, 64}));
    EXPECT_EQ(inner.plan(blhd, hopper).o_strides, (TensorStrides{512 * 8 * 64, 64, 8 * 64}));
    EXPECT_EQ(fixed.plan(bhld, hopper).o_strides, std::nullopt);
    EXPECT_EQ(any.plan(bhld, hopper).o_strides, std::nullopt);
    EXPECT_TRUE(dense.runs(bhld) && inner.runs(blhd) && fixed.runs(bhld) && fixed.runs(blhd) && any.runs(blhd));
    EXPECT_FALSE(dense.runs(blhd) || inner.runs(bhld));
    EXPECT_THROW((void)dense.plan(blhd, hopper), Error);
    EXPECT_THROW((void)inner.plan(bhld, hopper), Error);
    Workload steeper = bhld;
    steeper.scale = 0.5;
    EXPECT_TRUE(dense.runs(steeper));
    steeper.len_k = 699;
    EXPECT_FALSE(dense.runs(steeper));
    // One name for one program, whatever the sizes: of one head and of one query some strides of both layouts are
    // equal.
    for (const char* shape : {"b2h1l512d64", "b2h8l1k512d64", "b2h1l1k512d64", "b1h1l1k1d64"}) {
      const Workload outer = parse_workload(shape);
      const Workload of_heads = parse_workload(std::string(shape) + ":blhd");
      const Variant a = variant("sizes=fixed,outputs=dense", outer);
      const Variant b = variant("sizes=fixed,outputs=dense", of_heads);
      EXPECT_EQ(a.id() == b.id(), a.problem == b.problem) << a.id();
    }
  }
}

// Blocks, counters and schedule of what fwd_sm90_stream does on an H200 where nothing is said.
TEST(Families, StreamPlansByTheRowsThereAre) {
  const Family& family = find_family("fwd_sm90_stream");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  using Grid = std::array<std::uint32_t, 3>;
  const auto default_of = [&](const char* shape) {
    return make_variant(family, family.default_config(parse_workload(shape), hopper), parse_workload(shape));
  };
  const auto plan_of = [&](const char* shape) { return default_of(shape).plan(parse_workload(shape), hopper); };
  // One wave: as few row groups a block as fit the chip, key groups for the rest.
  EXPECT_EQ(plan_of("b1h8l1024d64").grid, (Grid{16, 8, 1}));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("row_groups=1,key_groups=2,"));
  EXPECT_EQ(plan_of("b4h8l400d64").grid, (Grid{4, 8, 4}));
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("row_groups=2,key_groups=2,"));
  // With more keys four row groups, and two blocks that share the keys of their rows, where that is one wave as well.
  EXPECT_EQ(plan_of("b1h8l2048d64").grid, (Grid{16, 8, 1}));
  EXPECT_EQ(plan_of("b1h8l2048d64").cluster, 2U);
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("row_groups=4,key_groups=1,cluster=2,"));
  EXPECT_THAT(describe(default_of("b4h8l512d64")), ::testing::HasSubstr("arrival=at_use,upkeep=branches"));
  EXPECT_THAT(describe(default_of("b16h8l128k2048d64")), ::testing::HasSubstr("row_groups=2,key_groups=2,"));
  // Under a causal mask its blocks are equal.
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("tile_order=rows_first"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("tile_order=mirrored"));
  // And where row tiles of one wave would be too long, two blocks share the keys of each, two of them a multiprocessor.
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("cluster=2,"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("tile_order=folded"));
  EXPECT_EQ(plan_of("b1h8l1024d64:causal_top_left").grid, (Grid{16, 16, 1}));
  EXPECT_EQ(plan_of("b1h8l1024d64:causal_top_left").cluster, 2U);
  EXPECT_EQ(plan_of("b1h4l2048d64:causal_bottom_right").grid, (Grid{8, 32, 1}));
  EXPECT_THAT(describe(default_of("b4h8l256d64:causal_top_left")), ::testing::HasSubstr("cluster=1,"));
  // Teams count as blocks that stay: the last block may have fewer.
  const auto teams_of = [&](const char* knobs, const char* shape) {
    const Variant variant = parse_variant(knobs, parse_workload(shape), hopper);
    return variant.plan(parse_workload(shape), hopper);
  };
  EXPECT_EQ(plan_of("b64h12l128d64").grid, (Grid{384, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_stream:teams=3,min_blocks=1", "b64h12l128d64").grid, (Grid{128, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_stream:teams=4,min_blocks=1,waves=filled", "b64h12l128d64").grid, (Grid{132, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_stream:teams=4,min_blocks=1", "b64h12l128d64").threads, 640U);
  EXPECT_EQ(teams_of("fwd_sm90_stream:teams=4,min_blocks=1,waves=even", "b7h91l128d64").grid, (Grid{107, 1, 1}));
  // In order where row groups would fall into step.
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("reference=first_tile,turns=in_order"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("reference=first_keys,turns=in_order"));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("reference=first_keys,turns=any"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("turns=any"));
  EXPECT_THAT(describe(default_of("b4h8l2048d256")), ::testing::HasSubstr("turns=in_order"));
  // What shortens the way from exponentials to products, where it was measured to pay.
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("arrival=at_use,upkeep=conditions"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")),
              ::testing::HasSubstr("arrival=ahead,upkeep=conditions"));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("arrival=at_use,upkeep=branches"));
  // Rows leave as lines where there is room, aimed at the start where a launch is over soon.
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("store=rows"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("store=aimed_rows"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("store=rows"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128")), ::testing::HasSubstr("store=aimed_rows"));
  // Two key groups keep out of step where that was measured.
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("starts=in_turn,vote=after_products"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("arrival=ahead"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:bf16")), ::testing::HasSubstr("arrival=at_use"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128")), ::testing::HasSubstr("starts=in_turn"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128:causal_top_left")), ::testing::HasSubstr("starts=together"));
  EXPECT_THAT(describe(default_of("b8h100l64d64")), ::testing::HasSubstr("starts=together"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("starts=together"));
  // What need not wait for the first copies comes beside them where that was measured.
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("release=after_copies,shares=ahead"));
  EXPECT_THAT(describe(default_of("b40h12l128d64")), ::testing::HasSubstr("release=at_once,shares=when_due"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("shares=when_due"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("shares=ahead"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")),
              ::testing::HasSubstr("release=at_once,shares=ahead"));
  EXPECT_THAT(describe(default_of("b1h4l4096d64:causal_top_left")), ::testing::HasSubstr("shares=when_due"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128:causal_top_left")), ::testing::HasSubstr("shares=ahead"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("shares=ahead"));
  EXPECT_THAT(describe(default_of("b2h16l1024d64:causal_top_left")), ::testing::HasSubstr("shares=when_due"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("stages=4,"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("store=rows"));
  EXPECT_THAT(describe(default_of("b2h16l4096d128")), ::testing::HasSubstr("store=pieces"));
  // Or as boxes.
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("store=boxes"));
  // Where two sets of tensors do not fit the L2, a part of them makes room for the rest, if that fits.
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("evict_first=none"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128:causal_top_left")),
              ::testing::HasSubstr("evict_first=but_first_keys"));
  EXPECT_THAT(describe(default_of("b8h16l512d64")), ::testing::HasSubstr("evict_first=but_first_keys"));
  EXPECT_THAT(describe(default_of("b4h8l512d256")), ::testing::HasSubstr("evict_first=values"));
  EXPECT_THAT(describe(default_of("b32h12l128d64")), ::testing::HasSubstr("evict_first=values"));
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("evict_first=but_keys"));
  EXPECT_THAT(describe(default_of("b128h12l128d64")), ::testing::HasSubstr("evict_first=none"));
  EXPECT_THAT(describe(default_of("b2h32l1024d128")), ::testing::HasSubstr("evict_first=but_first_keys"));
  EXPECT_THAT(describe(default_of("b3h32l1024d128")), ::testing::HasSubstr("evict_first=none"));
  // In the order that was measured to be the fastest.
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("scaling=tile_ahead,packing=at_once"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("scaling=at_use,packing=step_later"));
  // Under a mask few row groups are busy at a time: exponentials beside values, and help where rows are long.
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("overlap=values"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("pairs=apart"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("pairs=together"));
  // Key groups that have work to the end hide each other's; four row groups without any their own.
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("overlap=nothing"));
  EXPECT_THAT(describe(default_of("b2h8l2048d64:causal_top_left")), ::testing::HasSubstr("overlap=values"));
  EXPECT_THAT(describe(default_of("b1h8l1900d64:causal_top_left")), ::testing::HasSubstr("overlap=values"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("arrival=at_use,upkeep=branches"));
  EXPECT_EQ(plan_of("b4h16l512d64").grid, (Grid{2, 16, 4}));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("row_groups=4,key_groups=1,"));
  // More: blocks stay, and share out a causal mask's uneven tiles by a counter.
  EXPECT_EQ(plan_of("b1h32l1024d128").counters, 0);
  EXPECT_EQ(plan_of("b4h32l1024d128:causal_top_left").counters, 1);
  // Two waves: the second goes backwards.
  EXPECT_EQ(plan_of("b1h32l1024d128:causal_top_left").counters, 0);
  EXPECT_THAT(describe(default_of("b1h32l1024d128:causal_top_left")),
              ::testing::HasSubstr("tile_order=rows_first,pairs=apart"));
  // Where waves are few, as many blocks as make them even; copies alone want nearly all places.
  EXPECT_EQ(plan_of("b1h32l1024d128").grid, (Grid{128, 1, 1}));
  // 160 row tiles, 1.2 waves: by the counter under a mask, which makes them differ; 224, 1.7 waves: evenly.
  EXPECT_EQ(plan_of("b1h20l1024d128").grid, (Grid{80, 1, 1}));
  EXPECT_EQ(plan_of("b1h20l1024d128:causal_top_left").grid, (Grid{132, 1, 1}));
  EXPECT_EQ(plan_of("b1h28l1024d128:causal_top_left").grid, (Grid{112, 1, 1}));
  // Few keys: up to eight waves by index, evenly.
  EXPECT_EQ(plan_of("b8h16l512d128:causal_top_left").grid, (Grid{128, 1, 1}));
  EXPECT_EQ(plan_of("b32h16l512d128:causal_top_left").grid, (Grid{132, 1, 1}));
  EXPECT_EQ(plan_of("b3h16l2048d128").grid, (Grid{132, 1, 1}));
  EXPECT_EQ(plan_of("b4h16l1024d64").grid, (Grid{132, 1, 1}));
  EXPECT_EQ(plan_of("b64h12l128d64").grid, (Grid{384, 1, 1}));
  EXPECT_EQ(plan_of("b24h12l128d64").grid, (Grid{396, 1, 1}));
  // Without a mask four row groups take the next row tile as they finish; two waves and two row groups do not.
  EXPECT_EQ(plan_of("b8h16l1024d64").counters, 1);
  EXPECT_EQ(plan_of("b4h16l1024d64").counters, 0);
  EXPECT_EQ(plan_of("b16h16l1024d128").counters, 0);
  EXPECT_EQ(plan_of("b64h12l128d64:causal_top_left").counters, 0);  // all of them short
  EXPECT_EQ(plan_of("b2h8l4096k77d64").grid, (Grid{396, 1, 1}));
  EXPECT_EQ(plan_of("b64h12l256d64").grid, (Grid{132, 1, 1}));  // enough rows for row groups that share keys
  EXPECT_TRUE(plan_of("b1h32l1024d128").dependent);
  // Three row groups leave no block half empty where four would.
  EXPECT_THAT(describe(default_of("b8h16l384d64")), ::testing::HasSubstr("row_groups=3,"));
  // No row group without rows.
  EXPECT_THAT(describe(default_of("b64h32l33k2000d128")), ::testing::HasSubstr("row_groups=1,key_groups=2,"));
  hopper.processors = 0;
  EXPECT_EQ(plan_of("b64h12l128d64").grid, (Grid{384, 1, 1}));
}

}  // namespace
}  // namespace heed
