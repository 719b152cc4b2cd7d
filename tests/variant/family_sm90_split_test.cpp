#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

TEST(Families, ShortLaunchesTakeFeatures) {
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const Family& family = find_family("fwd_sm90_split");
  EXPECT_EQ(default_family(parse_workload("b1h8l512d64"), hopper).name(), "fwd_sm90_split");
  for (const auto& [feature, member] : {std::pair{":sinks", ".sinks"},
                                        {":softcap=30", ".softcap"},
                                        {":key_lengths", ".lengths"},
                                        {":ragged", ".lengths"}}) {
    const Workload workload = parse_workload(std::string("b1h8l512d64:blhd") + feature);
    EXPECT_EQ(family.refuses(workload, hopper).value_or(""), "") << feature;
    EXPECT_EQ(default_family(workload, hopper).name(), "fwd_sm90_split") << feature;
    EXPECT_THAT(parse_variant("fwd_sm90_split", workload, hopper).unit(),
                ::testing::AllOf(::testing::HasSubstr(std::string(".features = {") + member + " = true}"),
                                 ::testing::HasSubstr("heed::Params<kProblem> params")));
  }
  EXPECT_EQ(*family.refuses(parse_workload("b1h8l512d64:softcap=30:alibi:sinks:key_lengths:page=16"), hopper),
            "ALiBi slopes and paged keys and values are not supported; it computes a softcap and attention sinks and "
            "lengths of batch entries");
}

// What entries with lengths of their own do not have is taken back, with its one name; no default has it.
TEST(Families, ShortLaunchesOfEntriesWithLengths) {
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  for (const auto& [knob, instead] : {std::pair{"epilogue=tma", "epilogue=st_b128"},
                                      {"prologue=q_first", "prologue=lengths_first"},
                                      {"mask_at=probabilities", "mask_at=scores"}}) {
    const Workload ragged = parse_workload("b4h8l512d64:causal_bottom_right:ragged");
    const Variant asked = parse_variant(std::string("fwd_sm90_split:") + knob, ragged, hopper);
    EXPECT_THAT(asked.is_illegal(ragged, hopper).value_or(""), ::testing::HasSubstr(instead)) << knob;
  }
  for (const char* shape : {"b1h8l512", "b2h8l256", "b8h16l1024", "b64h12l128"})
    for (const char* dim : {"d40", "d64", "d128", "d256"})
      for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right", ":window=100"}) {
        const Workload w = parse_workload(std::string(shape) + dim + mask + ":softcap=5:sinks:key_lengths");
        EXPECT_EQ(parse_variant("fwd_sm90_split", w, hopper).is_illegal(w, hopper).value_or(""), "") << to_string(w);
      }
}

TEST(Families, HopperSaysWhatItCannotDo) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Family& family = find_family("fwd_sm90_split");
  EXPECT_THAT(*family.refuses(parse_workload("l8d64"), gpu_limits("sm_89")), ::testing::HasSubstr("sm_90a"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64"), cpu_facts()), ::testing::HasSubstr("NVIDIA"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d68"), hopper), ::testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d264"), hopper), ::testing::HasSubstr("up to 256"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64:fp32"), hopper), ::testing::HasSubstr("fp32"));
  EXPECT_THAT(*family.refuses(parse_workload("l8d64dv128"), hopper), ::testing::HasSubstr("value dim"));
  const auto reason = [&](const std::string& text, const char* shape = "b1h8l512d64") {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant(text, workload, hopper);
    return variant.is_illegal(workload, hopper).value_or("legal");
  };
  EXPECT_EQ(reason("fwd_sm90_split"), "legal");
  EXPECT_THAT(reason("fwd_sm90_split:cluster=8"), ::testing::HasSubstr("each keeps 16"));
  EXPECT_THAT(reason("fwd_sm90_split:block_n=128"), ::testing::HasSubstr("512 keys exceeds"));
  EXPECT_THAT(reason("fwd_sm90_split:v_barriers=3"), ::testing::HasSubstr("do not divide"));
  EXPECT_THAT(reason("fwd_sm90_split:qk_in_flight=8"), ::testing::HasSubstr("fewer than qk_in_flight=8"));
  EXPECT_THAT(reason("fwd_sm90_split:rowsum=mma", "b1h8l512d128"), ::testing::HasSubstr("rowsum=fadd"));
  EXPECT_THAT(reason("fwd_sm90_split:prefetch_next_qk=on"), ::testing::HasSubstr("two stages"));
  // Half a box of columns cannot wait, and of two boxes each is a slice.
  EXPECT_THAT(reason("fwd_sm90_split:pv_split_n=on"), ::testing::HasSubstr("pv_split_n=off"));
  EXPECT_EQ(reason("fwd_sm90_split:pv_split_n=on", "b1h16l256d128"), "legal");
  EXPECT_THAT(reason("fwd_sm90_split:stages=4"), ::testing::HasSubstr("bytes of shared memory"));
  EXPECT_THAT(reason("fwd_sm90_split:min_blocks=4"), ::testing::HasSubstr("do not fit"));
  EXPECT_THAT(reason("fwd_sm90_split:m_warpgroups=4"), ::testing::HasSubstr("registers"));
  EXPECT_THAT(reason("fwd_sm90_split:cluster=1,merge_dtype=fp32"), ::testing::HasSubstr("merge_dtype=bits16"));
  // Parts of one block have no slices under way to wait for.
  EXPECT_THAT(reason("fwd_sm90_split:cluster=1,lse_first=on"), ::testing::HasSubstr("lse_first=off"));
  EXPECT_THAT(reason("fwd_sm90_split:pv_start_step=2"), ::testing::HasSubstr("pv_start_step=0"));
  EXPECT_THAT(reason("fwd_sm90_split:mask_at=probabilities"), ::testing::HasSubstr("mask_at=scores"));  // no mask
  EXPECT_THAT(reason("fwd_sm90_split:tile_order=lpt_then_spt"), ::testing::HasSubstr("tile_order=descending"));
  EXPECT_EQ(reason("fwd_sm90_split:mask_at=probabilities", "b1h8l512d64:causal_bottom_right"), "legal");
  EXPECT_THAT(reason("fwd_sm90_split:mask_at=probabilities", "b1h8l512d128:causal_top_left"),
              ::testing::HasSubstr("mask_at=scores"));  // sums by additions
  EXPECT_THAT(reason("fwd_sm90_split:gqa=off", "b1h8hkv2l512d64"),
              ::testing::HasSubstr("8 query heads share 2 key heads; write gqa=on"));
  // What a program knows of its launches, and what that makes of other knobs.
  EXPECT_EQ(reason("fwd_sm90_split:specialize=shape,gqa=on"), "legal");
  EXPECT_EQ(reason("fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on"), "legal");
  EXPECT_EQ(reason("fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on", "b1h8hkv2l512d64:blhd"), "legal");
  EXPECT_THAT(reason("fwd_sm90_split:specialize=shape,gqa=off"), ::testing::HasSubstr("gqa=on"));
  EXPECT_EQ(reason("fwd_sm90_split:specialize=shape,prune=on,gqa=on"), "legal");
  EXPECT_THAT(reason("fwd_sm90_split:prune=on"), ::testing::HasSubstr("prune=off"));
  EXPECT_THAT(reason("fwd_sm90_split:o_layout=dense,gqa=on"),
              ::testing::HasSubstr("specialize=shape,prune=off,o_layout=dense"));
  EXPECT_THAT(reason("fwd_sm90_split:o_layout=dense,gqa=off"),
              ::testing::AllOf(::testing::HasSubstr("gqa=on"),
                               ::testing::HasSubstr("specialize=shape,prune=off,o_layout=dense")));
  EXPECT_THAT(reason("fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on,epilogue=tma"),
              ::testing::HasSubstr("specialize=shape,prune=off,o_layout=strided"));
  EXPECT_EQ(reason("fwd_sm90_split:specialize=shape,gqa=on,epilogue=tma"), "legal");
  const char* const large = "b8h16l2048d128";
  EXPECT_EQ(reason("fwd_sm90_split", large), "legal");
  for (const char* knobs : {"fwd_sm90_split:specialize=shape,gqa=on", "fwd_sm90_split:specialize=shape,o_layout=dense"})
    EXPECT_EQ(reason(knobs, large),
              "its tensors take 268 MB; programs may know the sizes of up to 67 MB; write specialize=none");
  EXPECT_THAT(reason("fwd_sm90_split:o_layout=dense", large),
              ::testing::HasSubstr("specialize=none,prune=off,o_layout=strided"));
  EXPECT_THAT(reason("fwd_sm90_split:tile_order=lpt_then_spt,m_warpgroups=1", "b1h1l4200000d64:causal_top_left"),
              ::testing::HasSubstr("65625 row tiles a head exceed the grid limit of 65535"));
}

// What a search is given instead of a config that means nothing for the workload.
TEST(Families, HopperTakesKeyHeadsAsTheyAre) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const auto canonical = [&](const char* shape) {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant("fwd_sm90_split:gqa=off", workload, hopper);
    return describe(heed::canonical(variant, workload));
  };
  EXPECT_THAT(canonical("b1h8l512d64"), ::testing::HasSubstr("gqa=off"));
  EXPECT_THAT(canonical("b1h8hkv2l512d64"), ::testing::HasSubstr("gqa=on"));
}

// Where the mask's edge runs through corners of n-blocks of 64 keys, wherever it is aligned and however wide it is.
TEST(Families, ShortLaunchesMaskProbabilitiesAtCorners) {
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  for (const auto& [workload, mask_at] : {std::pair{"b1h8l512k700d64:causal_top_left", "probabilities"},
                                          {"b1h8l512k576d64:causal_bottom_right", "probabilities"},
                                          {"b1h8l512k700d64:causal_bottom_right", "scores"},
                                          {"b1h8l512k700d64:window_top_left=-1/64", "probabilities"},
                                          {"b1h8l512k700d64:window_top_left=-1/3", "scores"},
                                          {"b1h8l512d64:window=-1/128", "probabilities"},
                                          {"b1h8l512d64:window=-1/3", "scores"}})
    EXPECT_THAT(describe(parse_variant("fwd_sm90_split", parse_workload(workload), hopper)),
                ::testing::HasSubstr(std::string("mask_at=") + mask_at))
        << workload;
}

}  // namespace
}  // namespace heed
