// What fwd_sm90_persistent says of features: which it has, for which launches it comes first, and what they do to its
// programs.
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

const Family& family() {
  return find_family("fwd_sm90_persistent");
}
DeviceFacts hopper() {
  DeviceFacts facts = gpu_limits("sm_90a");
  facts.processors = 132;
  return facts;
}

TEST(Sm90PersistentFeatures, ChangedScoresAndSinksAreItsOwn) {
  const auto refusal = [](const char* shape) { return family().refuses(parse_workload(shape), hopper()).value_or(""); };
  EXPECT_EQ(refusal("b1h32l1024d128:softcap=30:bias=fp16:alibi:sinks"), "");
  EXPECT_EQ(refusal("b1h32l1024d128:window=100:bias=bool/bk"), "");
  EXPECT_THAT(refusal("b2h32l1024d128:sinks:key_lengths"), HasSubstr("lengths of batch entries is not supported"));
  EXPECT_THAT(refusal("b2h32l1024d128:ragged"), HasSubstr("it computes a softcap"));
  EXPECT_THAT(refusal("b2h32l1024d128:page=16"), HasSubstr("paged keys and values"));
}

TEST(Sm90PersistentFeatures, ComesFirstForManyRows) {
  const auto chosen = [](const std::string& shape) { return default_family(parse_workload(shape), hopper()).name(); };
  for (const char* feature : {":softcap=30", ":bias=bool", ":alibi", ":sinks"}) {
    EXPECT_EQ(chosen(std::string("b1h32l1024d128") + feature), "fwd_sm90_persistent");
    EXPECT_EQ(chosen(std::string("b4h16l512d64:causal_top_left") + feature), "fwd_sm90_persistent");
    // What fwd_sm90_split takes without them: it has no features.
    EXPECT_EQ(chosen("b4h8l256d64:causal_top_left"), "fwd_sm90_split");
    EXPECT_EQ(chosen(std::string("b4h8l256d64:causal_top_left") + feature), "fwd_sm90_persistent");
    // A row or two, and what it has no code for.
    EXPECT_EQ(chosen(std::string("b1h32l1k1024d128") + feature), "fwd_sm90_decode");
    EXPECT_EQ(chosen(std::string("b4h32l1024d128:key_lengths") + feature), "fwd_sm80");
  }
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
             {"", ":softcap=30", ":bias=fp16", ":alibi", ":sinks", ":softcap=30:bias=fp16:alibi:sinks"}) {
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
  EXPECT_THAT(default_of("b4h16l512d64:bias=fp16"), HasSubstr("m_warpgroups=2,kv_groups=1"));
  EXPECT_THAT(default_of("b4h16l512d64:causal_top_left:softcap=30"), HasSubstr("softmax_overlap=none"));
  EXPECT_THAT(default_of("b4h16l4096d128:softcap=30"), HasSubstr("block_n=96"));
  EXPECT_THAT(default_of("b4h16l4096d128:bias=fp16"), HasSubstr("block_n=64"));
  const Workload biased = parse_workload("b4h16l512d64:bias=fp16");
  EXPECT_THAT(
      parse_variant("fwd_sm90_persistent:m_warpgroups=4", biased, hopper()).is_illegal(biased, hopper()).value_or(""),
      HasSubstr("128 registers a thread, 112"));
}

}  // namespace
}  // namespace heed
