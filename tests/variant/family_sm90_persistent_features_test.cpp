// What fwd_sm90_persistent says of features: which it has, for which launches it comes first, and what they do to its
// programs.
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Family& family() {
  return find_family("fwd_sm90_persistent");
}
DeviceFacts hopper() {
  DeviceFacts facts = gpu_limits("sm_90a");
  facts.processors = 132;
  return facts;
}

TEST(Sm90PersistentFeatures, AllAreItsOwn) {
  EXPECT_EQ(family().features(), kAllFeatures);
  const auto refusal = [](const char* shape) { return family().refuses(parse_workload(shape), hopper()).value_or(""); };
  EXPECT_EQ(refusal("b1h32l1024d128:softcap=30:bias=fp16:alibi:sinks"), "");
  EXPECT_EQ(refusal("b1h32l1024d128:window=100:bias=bool/bk"), "");
  EXPECT_EQ(refusal("b1h32l1024d128:causal_top_left:dropout=0.1"), "");
  EXPECT_EQ(refusal("b2h32l1024d128:sinks:key_lengths"), "");
  EXPECT_EQ(refusal("b2h32l1024d128:ragged:causal_bottom_right"), "");
  EXPECT_EQ(refusal("b2h32l1024d128:window=100:page=16:prefix=50"), "");
  EXPECT_EQ(refusal("b2h32l1024d128:window=100:blocks=64/window1:softcap=3"), "");
  EXPECT_EQ(refusal("b2h32l1024d128:ragged:out_norm=1e-05/h:out_gate=element"), "");
  for (const char* size : {"8", "16", "24", "64", "256"})
    EXPECT_EQ(refusal((std::string("b2h32l1024d128:page=") + size).c_str()), "");
  for (const char* size : {"1", "4", "12", "257"})
    EXPECT_THAT(refusal((std::string("b2h32l1024d128:page=") + size).c_str()),
                HasSubstr(std::string("a page of ") + size + " keys is no multiple of the 8"));
}

// Boxes are as many rows as divide a page and a tile, whose keys are a power of two.
TEST(Sm90PersistentFeatures, BoxesOfPages) {
  const auto rows = [](const char* shape, const char* variant) {
    const Workload w = parse_workload(shape);
    const LaunchPlan plan = parse_variant(variant, w, hopper()).plan(w, hopper());
    EXPECT_EQ(plan.tensor_maps->k_rows, plan.tensor_maps->v_rows);
    return plan.tensor_maps->k_rows;
  };
  EXPECT_EQ(rows("b2h32l1024d128:page=16", "fwd_sm90_persistent:block_n=64"), 16);
  EXPECT_EQ(rows("b2h32l1024d128:page=24", "fwd_sm90_persistent:block_n=64"), 8);
  EXPECT_EQ(rows("b2h32l1024d128:page=256", "fwd_sm90_persistent:block_n=64"), 64);
  EXPECT_EQ(rows("b2h32l1024d128:key_lengths", "fwd_sm90_persistent:block_n=64"), 64);
  const Workload paged = parse_workload("b2h32l1024d128:page=16");
  EXPECT_THAT(parse_variant("fwd_sm90_persistent:block_n=96,stages=2", paged, hopper())
                  .is_illegal(paged, hopper())
                  .value_or(""),
              HasSubstr("block_n=64"));
}

// What entries with lengths of their own do not have is taken back, with its one name.
TEST(Sm90PersistentFeatures, ConfigsOfEntriesWithLengths) {
  const Workload ragged = parse_workload("b4h16l512d64:causal_bottom_right:ragged");
  for (const auto& [knob, instead] :
       {std::pair{"epilogue=tma", "epilogue=smem_b128"},
        std::pair{"epilogue=smem_b128_preaddressed", "epilogue=smem_b128"}, std::pair{"cluster=2", "cluster=1"},
        std::pair{"tile_setup=early", "tile_setup=lazy"}}) {
    const Variant asked = parse_variant(
        std::string("fwd_sm90_persistent:m_warpgroups=1,kv_groups=1,stages=2,softmax_overlap=none,") + knob, ragged,
        hopper());
    EXPECT_THAT(asked.is_illegal(ragged, hopper()).value_or(""), HasSubstr(instead)) << knob;
  }
}

TEST(Sm90PersistentFeatures, ComesFirstForManyRows) {
  const auto chosen = [](const std::string& shape) { return default_family(parse_workload(shape), hopper()).name(); };
  for (const char* feature : {":softcap=30", ":bias=bool", ":alibi", ":sinks", ":key_lengths", ":ragged", ":page=64"}) {
    EXPECT_EQ(chosen(std::string("b1h32l1024d128") + feature), "fwd_sm90_persistent");
    EXPECT_EQ(chosen(std::string("b4h16l512d64:causal_top_left") + feature), "fwd_sm90_persistent");
    // What fwd_sm90_split takes without them.
    EXPECT_EQ(chosen("b4h8l256d64:causal_top_left"), "fwd_sm90_split");
    EXPECT_EQ(chosen(std::string("b4h8l256d64:causal_top_left") + feature), "fwd_sm90_persistent");
    // A row or two.
    EXPECT_EQ(chosen(std::string("b1h32l1k1024d128") + feature), "fwd_sm90_decode");
  }
  EXPECT_EQ(chosen("b4h32l1024d128:causal_top_left:prefix=100"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b4h32l1024d128:blocks=64/window1"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b4h32l1024d128:page=1"), "fwd_sm80");
  EXPECT_EQ(chosen("b4h32l1024d128:causal_top_left:dropout=0.1"), "fwd_sm90_persistent");
  EXPECT_EQ(chosen("b4h32l1024d96:causal_top_left:dropout=0.1"), "fwd_sm90_persistent");
}

TEST(Sm90PersistentFeatures, ProgramsAreForAllLaunches) {
  const Workload workload = parse_workload("b4h16l512d64:sinks");
  const Variant variant = parse_variant("fwd_sm90_persistent", workload, hopper());
  EXPECT_EQ(to_string(variant.problem), "fp16_d64_sinks");
  EXPECT_THAT(variant.unit(), HasSubstr(".features = {.sinks = true}"));
  EXPECT_THAT(variant.unit(), HasSubstr("const __grid_constant__ heed::Params<kProblem> params"));
  const Variant sized = parse_variant("fwd_sm90_persistent:specialize=shape", workload, hopper());
  EXPECT_THAT(sized.is_illegal(workload, hopper()).value_or(""), HasSubstr("have no features"));
  // Neither for those of a few bytes, of which it would be known, nor for those of many.
  const Workload large = parse_workload("b8h16l4096d128:sinks");
  EXPECT_THAT(
      parse_variant("fwd_sm90_persistent:specialize=shape", large, hopper()).is_illegal(large, hopper()).value_or(""),
      HasSubstr("have no features"));
  EXPECT_EQ(known_problem(workload).sizes, FixedSizes{});
  EXPECT_EQ(canonical(sized, workload).specialization, Specialization{});
}

// Every default is legal with every feature, and gives way where biases would spill.
TEST(Sm90PersistentFeatures, DefaultsFitTheRegisters) {
  for (const int processors : {132, 114, 78})
    for (const char* shape : {"b1h8l1024d64", "b1h8l2048d64", "b4h16l512d64", "b32h32l512d64", "b64h12l128d64",
                              "b8h100l64d64", "b2h16l1000d96", "b1h32l1024d128", "b4h16l4096d128", "b1h8l1024d128",
                              "b4h8l2048d192", "b4h8l2048d256", "b1h8l512d256", "b4h32hkv8l333k777d40"})
      for (const char* mask : {"", ":causal_bottom_right", ":window=128"})
        for (const char* feature :
             {"", ":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":softcap=30:bias=fp16:alibi:sinks", ":ragged",
              ":dropout=0.1", ":softcap=30:bias=fp16:alibi:sinks:dropout=0.1", ":key_lengths:page=16",
              ":blocks=64/window1", ":blocks=128/stride2:ragged:bias=fp16:softcap=3",
              ":softcap=30:bias=fp16:alibi:sinks:ragged:page=24"}) {
          DeviceFacts device = hopper();
          device.processors = processors;
          const Workload workload = parse_workload(shape + std::string(mask) + feature);
          const Config config = family().default_config(workload, device);
          EXPECT_EQ(family().is_illegal(config, workload, device).value_or(""), "") << to_string(workload);
        }
  const auto default_of = [](const char* shape) {
    return describe(parse_variant("fwd_sm90_persistent", parse_workload(shape), hopper()));
  };
  EXPECT_THAT(default_of("b4h16l512d64"), HasSubstr("m_warpgroups=4"));
  EXPECT_THAT(default_of("b4h16l512d64:sinks"), HasSubstr("m_warpgroups=4"));
  EXPECT_THAT(default_of("b4h16l512d64:softcap=30"), HasSubstr("m_warpgroups=4"));
  EXPECT_THAT(default_of("b4h16l512d64:bias=fp16"), HasSubstr("m_warpgroups=3,kv_groups=1"));
  // A third of the rows of three would not be there.
  EXPECT_THAT(default_of("b8h16l256k512d64:bias=fp16"), HasSubstr("m_warpgroups=2,kv_groups=1"));
  EXPECT_THAT(default_of("b4h16l512d64:causal_top_left:softcap=30"), HasSubstr("softmax_overlap=none"));
  EXPECT_THAT(default_of("b4h16l4096d128:softcap=30"), HasSubstr("block_n=96"));
  EXPECT_THAT(default_of("b4h16l4096d128:bias=fp16"), HasSubstr("block_n=64"));
  // Of long entries at head dim 128 Q tiles behind the end of one are passed over without an atomic each.
  EXPECT_THAT(default_of("b4h16l2048d128:causal_bottom_right:ragged"),
              AllOf(HasSubstr("scheduler=static_persistent,grid=full"), HasSubstr("tile_order=lpt_l2")));
  EXPECT_THAT(default_of("b4h16l2048d64:causal_bottom_right:ragged"),
              AllOf(HasSubstr("scheduler=dynamic_persistent,grid=full"), HasSubstr("tile_order=lpt_l2")));
  EXPECT_THAT(default_of("b64h16l512d128:ragged"),
              AllOf(HasSubstr("scheduler=dynamic_persistent,grid=full"), HasSubstr("tile_order=row_major")));
  EXPECT_THAT(default_of("b4h16l2048d64:causal_bottom_right:key_lengths"), HasSubstr("scheduler=dynamic_persistent"));
  // A Q tile has one list, of as many rows.
  EXPECT_THAT(default_of("b4h16l4096d128:blocks=64/window1"),
              HasSubstr("m_warpgroups=1,kv_groups=1,cluster=1,block_n=64"));
  EXPECT_THAT(default_of("b4h16l60k4096d128:blocks=128/window1"), HasSubstr("m_warpgroups=1,"));
  EXPECT_THAT(default_of("b4h16l512d64:blocks=128/window1"),
              AllOf(HasSubstr("m_warpgroups=2,kv_groups=1,cluster=1,block_n=64"), HasSubstr("virtual_ctas=2")));
  EXPECT_THAT(default_of("b4h8l2048d256:blocks=128/window1"),
              HasSubstr("m_warpgroups=2,kv_groups=1,cluster=1,block_n=64"));
  const Workload blocks = parse_workload("b4h16l4096d128:blocks=64/window1");
  EXPECT_THAT(
      parse_variant("fwd_sm90_persistent:m_warpgroups=2", blocks, hopper()).is_illegal(blocks, hopper()).value_or(""),
      HasSubstr("the 128 rows of a Q tile walk one list, of 64 rows here; write m_warpgroups=1"));
  const Workload biased = parse_workload("b4h16l512d64:bias=fp16");
  EXPECT_THAT(parse_variant("fwd_sm90_persistent:m_warpgroups=4,stages=5", biased, hopper())
                  .is_illegal(biased, hopper())
                  .value_or(""),
              HasSubstr("116 registers a thread, 112"));
}

}  // namespace
}  // namespace heed
