// What the families for few queries say of features: which they have, for which launches they come first, and what they
// do to their programs.
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

DeviceFacts gpu(const char* arch) {
  DeviceFacts facts = gpu_limits(arch);
  facts.processors = 132;
  return facts;
}
std::string refusal(const char* family, const std::string& shape, const char* arch = "sm_90a") {
  return find_family(family).refuses(parse_workload(shape), gpu(arch)).value_or("");
}

TEST(DecodeFeatures, NormsAndGatesOfRowsWhosePartsMeetInMemoryAreRefused) {
  for (const char* family : {"fwd_sm80_decode", "fwd_sm90_decode", "fwd_sm90_split", "fwd_sm90_fp8"}) {
    EXPECT_THAT(refusal(family, "b8h32hkv4l1k8192d128:out_norm=1e-05"), HasSubstr("norms of output rows")) << family;
    EXPECT_THAT(refusal(family, "b8h32hkv4l1k8192d128:out_gate=head"), HasSubstr("output gates")) << family;
  }
  EXPECT_EQ(default_family(parse_workload("b8h32hkv4l1k8192d128:out_gate=head"), gpu("sm_80")).name(), "fwd_sm80");
}

TEST(Sm80DecodeFeatures, TakesWhatServersSend) {
  for (const char* feature : {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":ragged", ":page=1",
                              ":page=16", ":page=256", ":softcap=30:bias=bool/bk:alibi:sinks:key_lengths:page=64"})
    for (const char* arch : {"sm_80", "sm_89", "sm_90a"})
      EXPECT_EQ(refusal("fwd_sm80_decode", std::string("b8h32hkv4l1k8192d128:blhd") + feature, arch), "") << feature;
  EXPECT_THAT(refusal("fwd_sm80_decode", "b8h32hkv4l1k8192d128:blocks=64/stride2"), HasSubstr("lists of blocks"));
  EXPECT_THAT(refusal("fwd_sm80_decode", "b8h32hkv4l1k8192d128:causal_top_left:prefix=40"), HasSubstr("prefixes"));
  EXPECT_THAT(refusal("fwd_sm80_decode", "b8h32hkv4l65k8192d128:sinks"), HasSubstr("520 packed rows"));
  for (const char* family : {"fwd_sm80_decode", "fwd_sm90_decode"})
    EXPECT_THAT(refusal(family, "b8h32hkv4l1k8192d128:dropout=0.1"), HasSubstr("dropout"));
}

TEST(Sm80DecodeFeatures, ComesFirstForFewQueries) {
  const auto chosen = [](const std::string& shape, const char* arch) {
    return default_family(parse_workload(shape), gpu(arch)).name();
  };
  for (const char* feature :
       {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":page=1", ":relative=32/128"}) {
    EXPECT_EQ(chosen(std::string("b8h32hkv4l1k8192d128") + feature, "sm_80"), "fwd_sm80_decode") << feature;
    EXPECT_EQ(chosen(std::string("b8h32hkv4l100k8192d64") + feature, "sm_80"), "fwd_sm80") << feature;
  }
  for (const char* feature : {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":key_lengths:page=16",
                              ":ragged:blhd", ":ragged:page=64:blhd"}) {
    EXPECT_EQ(chosen(std::string("b8h32hkv4l1k8192d128") + feature, "sm_90a"), "fwd_sm90_decode") << feature;
    EXPECT_NE(chosen(std::string("b8h32hkv4l100k8192d64") + feature, "sm_90a"), "fwd_sm90_decode") << feature;
  }
  for (const char* feature : {":page=1", ":page=20"})  // what copies by boxes do not reach
    EXPECT_EQ(chosen(std::string("b8h32hkv4l1k8192d128") + feature, "sm_90a"), "fwd_sm80_decode") << feature;
  for (const char* feature : {":blocks=64/stride2", ":dropout=0.1"})  // what they do not compute
    EXPECT_EQ(chosen(std::string("b8h32hkv4l1k8192d128") + feature, "sm_80"), "fwd_sm80") << feature;
}

// Every default is legal with every feature; biases and pages take the registers of queries.
TEST(Sm80DecodeFeatures, DefaultsFitTheRegisters) {
  const Family& family = find_family("fwd_sm80_decode");
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"})
    for (const char* shape : {"b8h32hkv4l1k8192d", "b8h32hkv4l4k8192d", "b1h8hkv1l64k100000d", "b64h32hkv8l1k64d"})
      for (const char* dim : {"64", "128", "256"})
        for (const char* mask : {"", ":causal_bottom_right", ":window=128"})
          for (const char* feature : {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":page=16",
                                      ":softcap=30:bias=fp16:alibi:sinks:key_lengths:page=16"}) {
            const Workload w = parse_workload(std::string(shape) + dim + mask + feature);
            const Config config = family.default_config(w, gpu(arch));
            EXPECT_EQ(family.is_illegal(config, w, gpu(arch)).value_or(""), "") << arch << " " << to_string(w);
          }
  const auto default_of = [](const char* shape) {
    return describe(parse_variant("fwd_sm80_decode", parse_workload(shape), gpu("sm_90a")));
  };
  EXPECT_THAT(default_of("b8h32hkv4l4k8192d128:sinks"), HasSubstr("q_in_registers=on"));
  EXPECT_THAT(default_of("b8h32hkv4l4k8192d128:page=16"), HasSubstr("q_in_registers=off"));
  EXPECT_THAT(default_of("b8h32hkv4l1k8192d128:page=16"), HasSubstr("q_in_registers=on"));
  const Workload biased = parse_workload("b8h32hkv4l4k8192d128:bias=fp16");
  EXPECT_THAT(parse_variant("fwd_sm80_decode:q_in_registers=on", biased, gpu("sm_90a"))
                  .is_illegal(biased, gpu("sm_90a"))
                  .value_or(""),
              HasSubstr("registers a thread"));
}

TEST(Sm90DecodeFeatures, TakesWhatServersSend) {
  for (const char* feature :
       {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":page=8", ":page=16", ":page=256", ":ragged",
        ":ragged:page=16", ":softcap=30:bias=bool/bk:alibi:sinks:key_lengths:page=64"})
    EXPECT_EQ(refusal("fwd_sm90_decode", std::string("b8h32hkv4l1k8192d128:blhd") + feature), "") << feature;
  EXPECT_THAT(refusal("fwd_sm90_decode", "b8h32hkv4l1k8192d128:page=1"),
              HasSubstr("a page of 1 keys is no multiple of the 8 that its bulk copies take at once: use"));
  EXPECT_THAT(refusal("fwd_sm90_decode", "b8h32hkv4l1k8192d128:page=20"), HasSubstr("a page of 20 keys"));
  EXPECT_THAT(refusal("fwd_sm90_decode", "b8h32hkv4l1k8192d128:blocks=64/stride2"), HasSubstr("lists of blocks"));
}

// Boxes are as many keys as lie in one page wherever a tile begins.
TEST(Sm90DecodeFeatures, BoxesLieInPages) {
  const Family& family = find_family("fwd_sm90_decode");
  for (const auto& [page, rows] : {std::pair{"", 128},
                                   {":page=8", 8},
                                   {":page=16", 16},
                                   {":page=24", 8},
                                   {":page=64", 64},
                                   {":page=256", 128},
                                   {":page=320", 64}}) {
    const Workload w = parse_workload(std::string("b8h32hkv4l1k8192d128") + page);
    const Variant variant =
        parse_variant("fwd_sm90_decode:group_split=columns,kv_groups=8,block_n=128,stages=2", w, gpu("sm_90a"));
    const LaunchPlan plan = family.plan(variant.config, w, gpu("sm_90a"));
    ASSERT_TRUE(plan.tensor_maps);
    EXPECT_EQ(plan.tensor_maps->k_rows, rows) << page;
    EXPECT_EQ(plan.tensor_maps->v_rows, rows) << page;
  }
}

// A program that could read pages waits for whole tiles where it has none: boxes of a page would leave it waiting for
// ever.
TEST(SpareFeatures, BoxesAreThoseOfTheLaunch) {
  const DeviceFacts device = gpu("sm_90a");
  for (const char* name : {"fwd_sm90_decode", "fwd_sm90_persistent"})
    for (const char* shape : {"b1h1l1d64:bf16", "b8h32hkv4l1k8192d128", "b8h32l1024d64", "b8h32l1024d128",
                              "b1h1l1d64:bf16:page=16", "b8h32l1024d64:page=128"}) {
      const Family& family = find_family(name);
      const Workload own = parse_workload(shape);
      if (family.refuses(own, device)) continue;
      const Workload all = with_features(own, family.features());
      const Variant variant = make_variant(family, family.default_config(all, device), all);
      const LaunchPlan plan = variant.plan(own, device);
      const LaunchPlan exact = family.plan(variant.config, own, device);
      ASSERT_TRUE(plan.tensor_maps && exact.tensor_maps);
      EXPECT_EQ(plan.tensor_maps->k_rows, exact.tensor_maps->k_rows) << name << " " << shape;
      EXPECT_EQ(plan.tensor_maps->v_rows, exact.tensor_maps->v_rows) << name << " " << shape;
      if (own.page_size == 0) {
        const LaunchPlan paged = family.plan(variant.config, all, device);
        EXPECT_GE(plan.tensor_maps->k_rows, paged.tensor_maps->k_rows) << name << " " << shape;
      }
    }
  const Family& decode = find_family("fwd_sm90_decode");
  const Workload all = with_features(parse_workload("b1h1l1d64:bf16"), decode.features());
  const Variant variant = parse_variant("fwd_sm90_decode:group_split=columns,block_n=128,stages=4", all, device);
  EXPECT_EQ(variant.plan(all, device).tensor_maps->k_rows, 64) << "a page";
  EXPECT_EQ(variant.plan(parse_workload("b1h1l1d64:bf16"), device).tensor_maps->k_rows, 128) << "a tile";
}

TEST(Sm90DecodeFeatures, DefaultsFitTheRegisters) {
  const Family& family = find_family("fwd_sm90_decode");
  for (const char* shape : {"b8h32hkv4l1k8192d", "b8h32hkv4l2k8192d", "b8h32hkv4l4k8192d", "b8h32hkv4l12k8192d",
                            "b1h8hkv1l64k100000d", "b64h32hkv8l1k64d", "b1h1l1k1d"})
    for (const char* dim : {"64", "128", "256"})
      for (const char* mask : {"", ":causal_bottom_right", ":window=128"})
        for (const char* feature :
             {":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":key_lengths", ":page=16", ":bias=fp16:key_lengths",
              ":softcap=30:bias=fp16:alibi:sinks:key_lengths:page=16"}) {
          const Workload w = parse_workload(std::string(shape) + dim + mask + feature);
          if (family.refuses(w, gpu("sm_90a"))) continue;
          const Config config = family.default_config(w, gpu("sm_90a"));
          EXPECT_EQ(family.is_illegal(config, w, gpu("sm_90a")).value_or(""), "") << to_string(w);
        }
  const auto default_of = [](const char* shape) {
    return describe(parse_variant("fwd_sm90_decode", parse_workload(shape), gpu("sm_90a")));
  };
  EXPECT_THAT(default_of("b8h32hkv4l2k8192d128:sinks:key_lengths:page=16"), HasSubstr("kv_groups=8"));
  const Workload biased = parse_workload("b8h32hkv4l2k8192d128:bias=fp16");
  EXPECT_THAT(parse_variant("fwd_sm90_decode:block_m=16,kv_groups=8,block_n=128", biased, gpu("sm_90a"))
                  .is_illegal(biased, gpu("sm_90a"))
                  .value_or(""),
              HasSubstr("registers a thread"));
  const Workload paged = parse_workload("b8h8l1k8192d64:page=16");
  EXPECT_THAT(parse_variant("fwd_sm90_decode:group_split=kv_tiles,producer_warp=off", paged, gpu("sm_90a"))
                  .is_illegal(paged, gpu("sm_90a"))
                  .value_or(""),
              HasSubstr("want producer_warp=on"));
}

// Of head dim 256 Hopper's is by columns alone.
TEST(DecodeHeadDims, OfTwoHundredAndFiftySix) {
  const auto chosen = [](const char* shape, const char* arch) {
    return default_family(parse_workload(shape), gpu(arch)).name();
  };
  EXPECT_EQ(chosen("b1h40hkv8l1k512d256", "sm_90a"), "fwd_sm90_decode");
  EXPECT_EQ(chosen("b1h40hkv8l8k512d256", "sm_90a"), "fwd_sm90_decode");
  EXPECT_EQ(chosen("b1h40hkv8l1k512d256:key_lengths:page=16", "sm_90a"), "fwd_sm90_decode");
  EXPECT_EQ(chosen("b1h40hkv8l1k512d256", "sm_89"), "fwd_sm80_decode");
  const Workload w = parse_workload("b1h40hkv8l1k512d256");
  EXPECT_THAT(
      parse_variant("fwd_sm90_decode:group_split=kv_tiles", w, gpu("sm_90a")).is_illegal(w, gpu("sm_90a")).value_or(""),
      HasSubstr("head dims up to 128, not 256: write group_split=columns"));
}

TEST(Sm80DecodeFeatures, ProgramsTakeWhatTheProblemAsksFor) {
  const Variant variant =
      parse_variant("fwd_sm80_decode", parse_workload("b8h32hkv4l1k8192d128:key_lengths:page=16"), gpu("sm_80"));
  EXPECT_THAT(variant.unit(), HasSubstr(".features = {.lengths = true, .pages = true}"));
  EXPECT_THAT(variant.unit(), HasSubstr("const __grid_constant__ heed::Params<kProblem> params"));
}

}  // namespace
}  // namespace heed
