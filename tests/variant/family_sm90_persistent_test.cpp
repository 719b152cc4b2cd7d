#include <array>

#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

TEST(Families, StreamSaysWhatItCannotDo) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Family& family = find_family("fwd_sm90_persistent");
  EXPECT_THAT(*family.refuses(parse_workload("b60000h60000l1k1d64"), hopper),
              ::testing::HasSubstr("3600000000 tiles of 64 rows exceed"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64"), gpu_limits("sm_89")), ::testing::HasSubstr("sm_90a"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d68"), hopper), ::testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64:fp32"), hopper), ::testing::HasSubstr("fp32"));
  const auto reason = [&](const std::string& knobs, const char* shape = "b4h16l512d64") {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant("fwd_sm90_persistent:" + knobs, workload, hopper);
    return variant.is_illegal(workload, hopper).value_or("legal");
  };
  EXPECT_EQ(reason("m_warpgroups=4"), "legal");
  EXPECT_THAT(reason("kv_groups=2"), ::testing::HasSubstr("1152 threads"));
  EXPECT_THAT(reason("softmax_overlap=qk_pv,row_max=online"), ::testing::HasSubstr("softmax_overlap=none"));
  EXPECT_THAT(reason("softmax_overlap=pv,row_max=online"), ::testing::HasSubstr("softmax_overlap=none"));
  EXPECT_THAT(reason("softmax_overlap=pv,gemm_order=interleaved,stage_release=branch"),
              ::testing::HasSubstr("gemm_order=qk_first"));
  EXPECT_THAT(reason("m_warpgroups=2,kv_groups=2,pingpong=on,scale_placement=step_ahead"),
              ::testing::HasSubstr("116 registers a thread, 112"));
  EXPECT_THAT(reason("softmax_overlap=qk_pv,block_n=32,convert_placement=step_later", "b4h8l2048d256"),
              ::testing::HasSubstr("convert_placement=at_once"));
  EXPECT_EQ(reason("stagger_splits=off", "b1h8l1024d64"), "legal");
  EXPECT_THAT(reason("stagger_splits=on"), ::testing::HasSubstr("stagger_splits=off"));
  EXPECT_EQ(reason("specialize=whole_tiles"), "legal");
  EXPECT_EQ(reason("specialize=shape", "b4h16l500d64"), "legal");
  EXPECT_THAT(reason("specialize=whole_tiles", "b4h16l500d64"), ::testing::HasSubstr("specialize=shape"));
  EXPECT_THAT(reason("specialize=shape", "b8h16l2048d128"), ::testing::HasSubstr("take 268 MB"));
  EXPECT_EQ(reason("specialize=shape,o_layout=dense"), "legal");
  EXPECT_EQ(reason("specialize=whole_tiles,o_layout=dense,epilogue=st_b128"), "legal");
  EXPECT_THAT(reason("o_layout=dense"), ::testing::HasSubstr("specialize=shape,prune=off,o_layout=dense"));
  EXPECT_THAT(reason("specialize=shape,o_layout=dense,epilogue=tma"),
              ::testing::HasSubstr("specialize=shape,prune=off,o_layout=strided"));
  EXPECT_THAT(reason("specialize=shape,prune=off,o_layout=dense", "b8h16l2048d128"),
              ::testing::HasSubstr("write specialize=none"));
  EXPECT_THAT(reason("o_layout=dense", "b8h16l2048d128"),
              ::testing::HasSubstr("specialize=none,prune=off,o_layout=strided"));
  // What sizes need is known with them, and what a block begins with where it goes on.
  EXPECT_EQ(reason("specialize=shape,prune=on"), "legal");
  EXPECT_THAT(reason("prune=on"), ::testing::HasSubstr("prune=off"));
  EXPECT_THAT(reason("evict_first=all_but_first_q_k"), ::testing::HasSubstr("evict_first=v_o"));
  // Virtual CTAs are blocks that stay, whose keys no one else shares.
  EXPECT_THAT(reason("m_warpgroups=1,virtual_ctas=2"), ::testing::HasSubstr("virtual_ctas=1"));
  EXPECT_THAT(reason("m_warpgroups=1,kv_groups=2,scheduler=dynamic_persistent,stages=1,virtual_ctas=2"),
              ::testing::HasSubstr("virtual_ctas=1"));
  EXPECT_EQ(reason("virtual_ctas=4,min_blocks=1,tile_setup=lazy", "b64h12l128d64"), "legal");
  EXPECT_THAT(reason("virtual_ctas=4,min_blocks=1", "b64h12l128d64"), ::testing::HasSubstr("tile_setup=lazy"));
  // What a search makes of virtual CTAs where there are small blocks.
  const Workload small = parse_workload("b64h12l128d64");
  const Variant three = parse_variant("fwd_sm90_persistent:virtual_ctas=3", small, hopper);
  EXPECT_THAT(describe(canonical(three, small)), ::testing::HasSubstr("virtual_ctas=3,min_blocks=1"));
  EXPECT_THAT(reason("virtual_ctas=4,min_blocks=1,stages=3", "b64h12l128d64"),
              ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("virtual_ctas=4,min_blocks=1,producer=warp", "b64h12l128d64"),
              ::testing::HasSubstr("108 registers a thread, 96"));
  // Blocks of a cluster have a Q tile each, and no KV groups besides.
  const char* const causal = "b1h8l1024d64:causal_top_left";
  EXPECT_EQ(reason("m_warpgroups=1,cluster=2,rowsum_reduce=at_end", causal), "legal");
  EXPECT_THAT(reason("m_warpgroups=1,kv_groups=2,cluster=2", "b1h8l1024d64"), ::testing::HasSubstr("cluster=1"));
  EXPECT_THAT(reason("cluster=2,scheduler=static_persistent,epilogue=smem_b128"), ::testing::HasSubstr("cluster=1"));
  EXPECT_EQ(reason("m_warpgroups=1,kv_groups=1,cluster=2,softmax_overlap=pv,gemm_order=qk_first,overflow_check=inlined,"
                   "mask_path=branch,scale_placement=at_use,convert_placement=at_once,rowsum_placement=at_once,barrier_"
                   "wait=at_use,min_blocks=1",
                   causal),
            "legal");
  // Only masks make Q tiles differ, and only beside products have masked tiles a way of their own.
  EXPECT_THAT(reason("m_warpgroups=1,kv_groups=1,cluster=2,tile_order=lpt_then_spt", "b1h8l1024d64"),
              ::testing::HasSubstr("tile_order=row_major"));
  EXPECT_THAT(reason("mask_path=separate_loop", "b1h8l1024d64"), ::testing::HasSubstr("mask_path=branch"));
  EXPECT_THAT(reason("softmax_overlap=none,overflow_check=inlined,mask_path=redo", causal),
              ::testing::HasSubstr("mask_path=branch"));
  EXPECT_THAT(reason("m_warpgroups=1,scheduler=single_tile,tile_order=lpt_l2", "b1h1l4200000d64"),
              ::testing::HasSubstr("65625 row tiles a head exceed the grid limit of 65535"));
  // Where KV groups meet and blocks stay, nothing is left for boxes to wait in.
  EXPECT_THAT(reason("m_warpgroups=1,kv_groups=2,scheduler=static_persistent,epilogue=tma"),
              ::testing::HasSubstr("epilogue=smem_b128"));
  // One consumer warpgroup has nobody to wait for.
  EXPECT_THAT(reason("m_warpgroups=1,pingpong=on"), ::testing::HasSubstr("pingpong=off"));
  // Only exponentials beside products have any to wait for before they vote.
  EXPECT_THAT(reason("softmax_overlap=none,overflow_check=deferred"), ::testing::HasSubstr("overflow_check=inlined"));
  EXPECT_EQ(reason("m_warpgroups=2,softmax_overlap=qk_pv,stages=1,overflow_check=deferred"), "legal");
  EXPECT_EQ(reason("softmax_overlap=pv,gemm_order=qk_first,stage_release=branch,scale_placement=at_use"), "legal");
  EXPECT_THAT(reason("softmax_overlap=pv,gemm_order=qk_first,stage_release=predicated"),
              ::testing::HasSubstr("116 registers a thread, 112"));
  EXPECT_THAT(reason("m_warpgroups=2,softmax_overlap=pv,gemm_order=qk_first,barrier_wait=try_wait_early"),
              ::testing::HasSubstr("barrier_wait=at_use"));
  EXPECT_EQ(reason("m_warpgroups=2,softmax_overlap=qk_pv,stages=1"), "legal");
  EXPECT_THAT(reason("stages=16"), ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("min_blocks=4"), ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason("block_n=96,stages=4"), ::testing::HasSubstr("registers a thread, 112 fit"));
  EXPECT_THAT(
      reason("m_warpgroups=1,block_n=32,stages=1,softmax_overlap=none,min_blocks=3,q_stages=1", "b4h16l512d128"),
      ::testing::HasSubstr("name 94 registers; at launch a thread has 80"));
  EXPECT_THAT(reason("q_stages=2"), ::testing::HasSubstr("q_stages=1"));
  // Where no mask makes rows differ, and with one consumer warpgroup, there is nothing to pair.
  EXPECT_THAT(reason("tile_order=paired"), ::testing::HasSubstr("tile_order=row_major"));
  EXPECT_EQ(reason("tile_order=paired", "b4h16l512d64:causal_top_left"), "legal");
  EXPECT_EQ(reason("tile_order=paired,share_causal_tail=on", "b4h16l512d64:causal_top_left"), "legal");
  EXPECT_THAT(reason("share_causal_tail=on", "b4h16l512d64"), ::testing::HasSubstr("share_causal_tail=off"));
  EXPECT_THAT(reason("tile_order=paired,share_causal_tail=on,stages=1", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("share_causal_tail=off"));
  // Only blocks that take Q tiles by their index make waves.
  EXPECT_THAT(reason("grid=balanced"), ::testing::HasSubstr("grid=full"));
  EXPECT_THAT(reason("scheduler=dynamic_persistent,grid=balanced"), ::testing::HasSubstr("grid=full"));
  EXPECT_EQ(reason("scheduler=static_persistent,grid=balanced"), "legal");
  // Lists alone are divided, by one KV group, after which the producer gives its registers away.
  EXPECT_THAT(reason("scheduler=stream_k"), ::testing::HasSubstr("scheduler=static_persistent"));
  const char* const lists = "b4h16l512d64:blocks=128/window1+global1";
  EXPECT_EQ(reason("m_warpgroups=2,virtual_ctas=1,scheduler=stream_k,producer=warp", lists), "legal");
  EXPECT_THAT(reason("m_warpgroups=2,scheduler=stream_k,producer=warpgroup,virtual_ctas=2", lists),
              ::testing::HasSubstr("setmaxnreg=after_loads"));
  EXPECT_THAT(reason("m_warpgroups=2,virtual_ctas=1,scheduler=stream_k,producer=warp",
                     "b4h16l512d64:key_lengths:blocks=128/window1+global1"),
              ::testing::HasSubstr("scheduler=static_persistent"));
  EXPECT_THAT(reason("m_warpgroups=2,virtual_ctas=1,scheduler=stream_k,producer=warp,tile_order=lpt_l2", lists),
              ::testing::HasSubstr("tile_order=row_major"));
  // Blocks that stay have no start of every Q tile to themselves.
  EXPECT_THAT(reason("scheduler=static_persistent,epilogue=smem_b128_preaddressed"),
              ::testing::HasSubstr("epilogue=smem_b128"));
  EXPECT_THAT(reason("m_warpgroups=3,share_causal_tail=on", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("share_causal_tail=off"));
  EXPECT_THAT(reason("m_warpgroups=1,tile_order=paired", "b4h16l512d64:causal_top_left"),
              ::testing::HasSubstr("tile_order=row_major"));
}

// Whoever asks for a launch of other sizes than a program is for would get a wrong output.
TEST(Families, ProgramsForFixedSizesRunNoOthers) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload own = parse_workload("b2h8hkv2l512k700d64:causal_bottom_right");
  const Variant any = parse_variant("fwd_sm90_persistent", own, hopper);
  const Variant fixed = parse_variant("fwd_sm90_persistent:specialize=shape", own, hopper);
  EXPECT_EQ(to_string(any.problem), "fp16_d64_causal");
  EXPECT_EQ(to_string(fixed.problem), "fp16_d64_causal_b2h8hkv2l512k700o188");
  EXPECT_THAT(fixed.unit(), ::testing::HasSubstr(".sizes = {.batch = 2, .heads = 8, .heads_kv = 2, "
                                                 ".len_q = 512, .len_k = 700, .right_offset = 188, .left_offset = 0}"));
  EXPECT_THAT(any.unit(), ::testing::Not(::testing::HasSubstr(".sizes = {")));
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
  EXPECT_NE(parse_variant("fwd_sm90_persistent:specialize=shape",
                          parse_workload("b2h8hkv2l512k701d64:causal_bottom_right"), hopper)
                .id(),
            fixed.id());
}

// Nor one for dense outputs any others, which it would write as if they were; their order is the workload's.
TEST(Families, ProgramsForDenseOutputsWriteNoOthers) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload bhld = parse_workload("b2h8hkv2l512k700d64:causal_bottom_right");
  Workload blhd = bhld;
  blhd.layout = Layout::blhd;
  for (const std::string family : {"fwd_sm90_persistent:", "fwd_sm90_split:gqa=on,"}) {
    const auto variant = [&](const char* knobs, const Workload& workload) {
      return parse_variant(family + knobs, workload, hopper);
    };
    const Variant dense = variant("specialize=shape,o_layout=dense", bhld);
    const Variant inner = variant("specialize=shape,o_layout=dense", blhd);
    const Variant fixed = variant("specialize=shape", bhld);
    const Variant any = variant("specialize=none", bhld);
    const std::string sizes = "fp16_d64_causal_b2h8hkv2l512k700o188";
    EXPECT_EQ(to_string(dense.problem), sizes + "_bhld");
    EXPECT_EQ(to_string(inner.problem), sizes + "_blhd");
    EXPECT_EQ(to_string(fixed.problem), sizes);
    EXPECT_EQ(to_string(any.problem), "fp16_d64_causal");
    EXPECT_NE(dense.id(), inner.id());
    EXPECT_NE(dense.id(), fixed.id());
    const auto says = [](const std::string& strides) {
      return ::testing::HasSubstr(", .right_offset = 188, .left_offset = 0" + strides + "}");
    };
    EXPECT_THAT(dense.unit(), says(", .o_strides = {262144, 32768, 64}"));
    EXPECT_THAT(inner.unit(), says(", .o_strides = {262144, 64, 512}"));
    EXPECT_THAT(fixed.unit(), says(""));
    EXPECT_THAT(any.unit(), ::testing::Not(::testing::HasSubstr(".sizes = {")));
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
      const Variant a = variant("specialize=shape,o_layout=dense", outer);
      const Variant b = variant("specialize=shape,o_layout=dense", of_heads);
      EXPECT_EQ(a.id() == b.id(), a.problem == b.problem) << a.id();
    }
  }
}

// Blocks, semaphores and schedule of what fwd_sm90_persistent does on an H200 where nothing is said.
TEST(Families, StreamPlansByTheRowsThereAre) {
  const Family& family = find_family("fwd_sm90_persistent");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  using Grid = std::array<std::uint32_t, 3>;
  const auto default_of = [&](const char* shape) {
    return make_variant(family, family.default_config(parse_workload(shape), hopper), parse_workload(shape));
  };
  const auto plan_of = [&](const char* shape) { return default_of(shape).plan(parse_workload(shape), hopper); };
  // One wave: as few consumer warpgroups a block as fit the chip, KV groups for the rest.
  EXPECT_EQ(plan_of("b1h8l1024d64").grid, (Grid{16, 8, 1}));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("m_warpgroups=1,kv_groups=2,"));
  EXPECT_EQ(plan_of("b4h8l400d64").grid, (Grid{4, 8, 4}));
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("m_warpgroups=2,kv_groups=2,"));
  // With more keys four consumer warpgroups, and two blocks that share the keys of their rows, where that is one wave
  // as well.
  EXPECT_EQ(plan_of("b1h8l2048d64").grid, (Grid{16, 8, 1}));
  EXPECT_EQ(plan_of("b1h8l2048d64").cluster, 2U);
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("m_warpgroups=4,kv_groups=1,cluster=2,"));
  EXPECT_THAT(describe(default_of("b4h8l512d64")), ::testing::HasSubstr("barrier_wait=at_use,stage_release=branch"));
  EXPECT_THAT(describe(default_of("b16h8l128k2048d64")), ::testing::HasSubstr("m_warpgroups=2,kv_groups=2,"));
  // Under a causal mask its blocks are equal.
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("tile_order=row_major"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("tile_order=paired"));
  // And where Q tiles of one wave would be too long, two blocks share the keys of each, two of them a multiprocessor.
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("cluster=2,"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("tile_order=lpt_then_spt"));
  EXPECT_EQ(plan_of("b1h8l1024d64:causal_top_left").grid, (Grid{16, 16, 1}));
  EXPECT_EQ(plan_of("b1h8l1024d64:causal_top_left").cluster, 2U);
  EXPECT_EQ(plan_of("b1h4l2048d64:causal_bottom_right").grid, (Grid{8, 32, 1}));
  EXPECT_THAT(describe(default_of("b4h8l256d64:causal_top_left")), ::testing::HasSubstr("cluster=1,"));
  // Virtual CTAs count as blocks that stay: the last block may have fewer.
  const auto teams_of = [&](const char* knobs, const char* shape) {
    const Variant variant = parse_variant(knobs, parse_workload(shape), hopper);
    return variant.plan(parse_workload(shape), hopper);
  };
  EXPECT_EQ(plan_of("b64h12l128d64").grid, (Grid{384, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_persistent:virtual_ctas=3,min_blocks=1", "b64h12l128d64").grid, (Grid{128, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_persistent:virtual_ctas=4,min_blocks=1,grid=full", "b64h12l128d64").grid,
            (Grid{132, 1, 1}));
  EXPECT_EQ(teams_of("fwd_sm90_persistent:virtual_ctas=4,min_blocks=1", "b64h12l128d64").threads, 640U);
  EXPECT_EQ(teams_of("fwd_sm90_persistent:virtual_ctas=4,min_blocks=1,grid=balanced", "b7h91l128d64").grid,
            (Grid{107, 1, 1}));
  // In order where consumer warpgroups would fall into step.
  EXPECT_THAT(describe(default_of("b4h8l400d64")), ::testing::HasSubstr("row_max=stale_tile,rowsum=fadd,pingpong=on"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("row_max=stale_16,rowsum=fadd,pingpong=on"));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("row_max=stale_16,rowsum=fadd,pingpong=off"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("pingpong=off"));
  EXPECT_THAT(describe(default_of("b4h8l2048d256")), ::testing::HasSubstr("pingpong=on"));
  // What shortens the way from exponentials to products, where it was measured to pay.
  EXPECT_THAT(describe(default_of("b1h8l2048d64")),
              ::testing::HasSubstr("barrier_wait=at_use,stage_release=predicated"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")),
              ::testing::HasSubstr("barrier_wait=try_wait_early,stage_release=predicated"));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("barrier_wait=at_use,stage_release=branch"));
  // Rows leave as lines where there is room, aimed at the start where a launch is over soon.
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("epilogue=smem_b128"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")),
              ::testing::HasSubstr("epilogue=smem_b128_preaddressed"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("epilogue=smem_b128"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128")), ::testing::HasSubstr("epilogue=smem_b128_preaddressed"));
  // Two KV groups keep out of step where that was measured.
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("stagger_splits=on,overflow_check=deferred"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("barrier_wait=try_wait_early"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:bf16")), ::testing::HasSubstr("barrier_wait=at_use"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128")), ::testing::HasSubstr("stagger_splits=on"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128:causal_top_left")), ::testing::HasSubstr("stagger_splits=off"));
  EXPECT_THAT(describe(default_of("b8h100l64d64")), ::testing::HasSubstr("stagger_splits=off"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")), ::testing::HasSubstr("stagger_splits=off"));
  // What need not wait for the first loads comes beside them where that was measured.
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("setmaxnreg=after_loads,tile_setup=early"));
  EXPECT_THAT(describe(default_of("b40h12l128d64")), ::testing::HasSubstr("setmaxnreg=early,tile_setup=lazy"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64")), ::testing::HasSubstr("tile_setup=lazy"));
  EXPECT_THAT(describe(default_of("b1h8l1024d64:causal_top_left")), ::testing::HasSubstr("tile_setup=early"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")),
              ::testing::HasSubstr("setmaxnreg=early,tile_setup=early"));
  EXPECT_THAT(describe(default_of("b1h4l4096d64:causal_top_left")), ::testing::HasSubstr("tile_setup=lazy"));
  EXPECT_THAT(describe(default_of("b1h8l1024d128:causal_top_left")), ::testing::HasSubstr("tile_setup=early"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("tile_setup=early"));
  EXPECT_THAT(describe(default_of("b2h16l1024d64:causal_top_left")), ::testing::HasSubstr("tile_setup=lazy"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("stages=4,"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("epilogue=smem_b128"));
  EXPECT_THAT(describe(default_of("b2h16l4096d128")), ::testing::HasSubstr("epilogue=st_b128"));
  // Or as boxes.
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("epilogue=tma"));
  // Where two sets of tensors do not fit the L2, a part of them makes room for the rest, if that fits.
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("evict_first=none"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128:causal_top_left")),
              ::testing::HasSubstr("evict_first=all_but_first_q_k"));
  EXPECT_THAT(describe(default_of("b8h16l512d64")), ::testing::HasSubstr("evict_first=all_but_first_q_k"));
  EXPECT_THAT(describe(default_of("b4h8l512d256")), ::testing::HasSubstr("evict_first=v_o"));
  EXPECT_THAT(describe(default_of("b32h12l128d64")), ::testing::HasSubstr("evict_first=v_o"));
  EXPECT_THAT(describe(default_of("b64h12l128d64")), ::testing::HasSubstr("evict_first=q_v_o"));
  EXPECT_THAT(describe(default_of("b128h12l128d64")), ::testing::HasSubstr("evict_first=none"));
  EXPECT_THAT(describe(default_of("b2h32l1024d128")), ::testing::HasSubstr("evict_first=all_but_first_q_k"));
  EXPECT_THAT(describe(default_of("b3h32l1024d128")), ::testing::HasSubstr("evict_first=none"));
  // In the order that was measured to be the fastest.
  EXPECT_THAT(describe(default_of("b1h32l1024d128")),
              ::testing::HasSubstr("scale_placement=tile_ahead,convert_placement=at_once"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64")),
              ::testing::HasSubstr("scale_placement=at_use,convert_placement=step_later"));
  // Under a mask few consumer warpgroups are busy at a time: exponentials beside values, and help where rows are long.
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("softmax_overlap=pv"));
  EXPECT_THAT(describe(default_of("b4h16l512d64:causal_top_left")), ::testing::HasSubstr("share_causal_tail=off"));
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("share_causal_tail=on"));
  // KV groups that have work to the end hide each other's; four consumer warpgroups without any their own.
  EXPECT_THAT(describe(default_of("b1h8l2048d64:causal_top_left")), ::testing::HasSubstr("softmax_overlap=none"));
  EXPECT_THAT(describe(default_of("b2h8l2048d64:causal_top_left")), ::testing::HasSubstr("softmax_overlap=pv"));
  EXPECT_THAT(describe(default_of("b1h8l1900d64:causal_top_left")), ::testing::HasSubstr("softmax_overlap=pv"));
  EXPECT_THAT(describe(default_of("b1h32l1024d128")), ::testing::HasSubstr("barrier_wait=at_use,stage_release=branch"));
  EXPECT_EQ(plan_of("b4h16l512d64").grid, (Grid{2, 16, 4}));
  EXPECT_THAT(describe(default_of("b4h16l512d64")), ::testing::HasSubstr("m_warpgroups=4,kv_groups=1,"));
  // More: blocks stay, and share out a causal mask's uneven tiles by a counter.
  EXPECT_EQ(plan_of("b1h32l1024d128").semaphores, 0);
  EXPECT_EQ(plan_of("b4h32l1024d128:causal_top_left").semaphores, 1);
  // Two waves: the second goes backwards.
  EXPECT_EQ(plan_of("b1h32l1024d128:causal_top_left").semaphores, 0);
  EXPECT_THAT(describe(default_of("b1h32l1024d128:causal_top_left")),
              ::testing::HasSubstr("tile_order=row_major,share_causal_tail=off"));
  // Where waves are few, as many blocks as make them even; loads alone want nearly all places.
  EXPECT_EQ(plan_of("b1h32l1024d128").grid, (Grid{128, 1, 1}));
  // 160 Q tiles, 1.2 waves: by the counter under a mask, which makes them differ; 224, 1.7 waves: evenly.
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
  // Without a mask four consumer warpgroups take the next Q tile as they finish; two waves and two consumer warpgroups
  // do not.
  EXPECT_EQ(plan_of("b8h16l1024d64").semaphores, 1);
  EXPECT_EQ(plan_of("b4h16l1024d64").semaphores, 0);
  EXPECT_EQ(plan_of("b16h16l1024d128").semaphores, 0);
  EXPECT_EQ(plan_of("b64h12l128d64:causal_top_left").semaphores, 0);  // all of them short
  EXPECT_EQ(plan_of("b2h8l4096k77d64").grid, (Grid{396, 1, 1}));
  EXPECT_EQ(plan_of("b64h12l256d64").grid, (Grid{132, 1, 1}));  // enough rows for consumer warpgroups that share keys
  EXPECT_TRUE(plan_of("b1h32l1024d128").supports_pdl);
  // Three consumer warpgroups leave no block half empty where four would.
  EXPECT_THAT(describe(default_of("b8h16l384d64")), ::testing::HasSubstr("m_warpgroups=3,"));
  // No consumer warpgroup without rows.
  EXPECT_THAT(describe(default_of("b64h32l33k2000d128")), ::testing::HasSubstr("m_warpgroups=1,kv_groups=2,"));
  hopper.processors = 0;
  EXPECT_EQ(plan_of("b64h12l128d64").grid, (Grid{384, 1, 1}));
}

}  // namespace
}  // namespace heed
