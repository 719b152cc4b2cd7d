// What the families for few queries say of K and V in 8 bits: which they read, when they come first, how they are
// launched.
#include "device/device.hpp"
#include "kernels/sm90/decode/legality.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

DeviceFacts gpu_of_cache(const char* arch) {
  DeviceFacts facts = gpu_limits(arch);
  facts.processors = 132;
  return facts;
}
std::string cache_refusal(const std::string& shape, const char* arch = "sm_90a",
                          const char* family = "fwd_sm90_decode") {
  return find_family(family).refuses(parse_workload(shape), gpu_of_cache(arch)).value_or("");
}
const Family& first_for(const std::string& shape, const char* arch = "sm_90a") {
  return default_family(parse_workload(shape), gpu_of_cache(arch));
}

TEST(Sm90DecodeQuantised, ReadsKAndVIn8Bits) {
  for (const char* quantised :
       {"kv/e4m3/tensor", "kv/e4m3/head", "kv/e5m2/head", "kv/int8/head", "k/int8/token+v/e4m3/channel",
        "k/e4m3/block64+v/e4m3/tensor", "k/int8/block48+v/int8/channel"})
    for (const char* feature : {"", ":key_lengths", ":page=16", ":ragged:page=64", ":softcap=20:sinks", ":window=900"})
      EXPECT_EQ(cache_refusal(std::string("b8h32hkv4l1k8192d128:bf16:blhd") + feature + ":quantised=" + quantised), "")
          << quantised << feature;
  for (const char* dim : {"16", "64", "80", "192", "256"})
    EXPECT_EQ(cache_refusal(std::string("b8h32hkv4l1k8192d") + dim + ":quantised=kv/e4m3/tensor"), "") << dim;
  const auto refused = [](const char* quantised) {
    return cache_refusal(std::string("b8h32hkv4l1k8192d128:quantised=") + quantised);
  };
  EXPECT_THAT(refused("qkv/e4m3/head"), HasSubstr("it reads K and V, each in e4m3, e5m2 or int8"));
  EXPECT_THAT(refused("k/e4m3/head"), HasSubstr("it reads K and V"));
  EXPECT_THAT(refused("v/int8/head"), HasSubstr("it reads K and V"));
  for (const char* by : {"token", "block64"})
    EXPECT_THAT(refused((std::string("k/e4m3/head+v/e4m3/") + by).c_str()), HasSubstr("factors of V differ"));
  EXPECT_THAT(cache_refusal("l1k99d72:quantised=kv/e4m3/tensor"), HasSubstr("head dim 72 of K and V in 8 bits"));
  EXPECT_THAT(cache_refusal("l1k99d64:fp32:quantised=kv/e4m3/tensor"), HasSubstr("fp32"));
  EXPECT_THAT(cache_refusal("l1k99d64:quantised=kv/e4m3/tensor", "sm_89"), HasSubstr("8.9"));
  EXPECT_THAT(cache_refusal("b8h32hkv4l65k8192d128:quantised=kv/e4m3/tensor"), HasSubstr("packed rows"));
  const std::string page = cache_refusal("l1k99d64:page=20:quantised=kv/e4m3/tensor");
  EXPECT_THAT(page, HasSubstr("a page of 20 keys"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("fwd_sm80_decode")));
}

// However many queries it takes: only families for few queries read such a cache on a GPU.
TEST(Sm90DecodeQuantised, ComesFirstOnHopper) {
  for (const char* lengths : {"l1", "l17", "l64"})
    EXPECT_EQ(first_for(std::string("b8h32hkv4") + lengths + "k8192d128:quantised=kv/e4m3/tensor").name(),
              "fwd_sm90_decode");
  try {
    (void)first_for("b8h32hkv4l1k8192d128:quantised=kv/e4m3/token");
    ADD_FAILURE() << "factors of V of tokens are refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("fwd_sm90_decode, fwd_sm80_decode: factors of V differ"));
  }
}

TEST(Sm80DecodeQuantised, ReadsKAndVIn8BitsFromAmpereOn) {
  const auto refused = [](const std::string& shape) { return cache_refusal(shape, "sm_80", "fwd_sm80_decode"); };
  for (const char* quantised :
       {"kv/e4m3/tensor", "kv/e5m2/head", "kv/int8/head", "k/int8/token+v/e4m3/channel", "k/e4m3/token+v/int8/head"})
    for (const char* feature :
         {"", ":key_lengths", ":page=1", ":page=20", ":ragged", ":softcap=20:sinks", ":window=900"})
      for (const char* dim : {"64", "128", "256"})
        EXPECT_EQ(refused(std::string("b8h32hkv4l1k8192d") + dim + ":bf16:blhd" + feature + ":quantised=" + quantised),
                  "")
            << quantised << feature;
  EXPECT_EQ(refused("b2h4l1k99d64:quantised=k/e4m3/block48+v/int8/head"), "");
  EXPECT_THAT(refused("l1k99d64:quantised=k/e4m3/head+v/e4m3/token"), HasSubstr("factors of V differ"));
  EXPECT_THAT(refused("l1k99d64:quantised=qk/int8/head"), HasSubstr("it reads K and V"));
  EXPECT_THAT(refused("l1k99d80:quantised=kv/e4m3/head"), HasSubstr("head dim 80"));
  for (const char* arch : {"sm_80", "sm_89"})
    for (const char* lengths : {"l1", "l64"})
      EXPECT_EQ(first_for(std::string("b8h32hkv4") + lengths + "k8192d128:quantised=kv/int8/tensor", arch).name(),
                "fwd_sm80_decode");
  EXPECT_EQ(first_for("b8h32hkv4l1k8192d128:page=20:quantised=kv/e4m3/tensor").name(), "fwd_sm80_decode");
}

TEST(Sm80DecodeQuantised, DefaultsFitAndTilesAreHalf) {
  const Family& family = find_family("fwd_sm80_decode");
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"})
    for (const char* shape : {"b8h32hkv4l1k8192d", "b8h32hkv4l4k8192d", "b1h8hkv1l64k100000d", "b64h32hkv8l1k64d"})
      for (const char* dim : {"64", "128", "256"})
        for (const char* feature :
             {"", ":bias=fp16", ":page=16", ":softcap=30:bias=fp16:alibi:sinks:key_lengths:page=16"})
          for (const char* element : {"", ":bf16"}) {
            const Workload w =
                parse_workload(std::string(shape) + dim + element + feature + ":quantised=k/int8/token+v/e4m3/channel");
            const Config config = family.default_config(w, gpu_of_cache(arch));
            EXPECT_EQ(family.is_illegal(config, w, gpu_of_cache(arch)).value_or(""), "") << arch << " " << to_string(w);
          }
  const DeviceFacts device = gpu_of_cache("sm_80");
  const Workload half = parse_workload("b8h32hkv4l1k8192d128:quantised=kv/int8/head");
  const Workload whole = parse_workload("b8h32hkv4l1k8192d128");
  const auto variant_of = [&](const std::string& knobs, const Workload& w) {
    return parse_variant("fwd_sm80_decode:" + knobs, w, device);
  };
  const char* knobs = "block_m=16,block_n=32,warp_rows=16,kv_groups=4,stages=3,min_blocks=1,smem_layout=swizzled";
  EXPECT_EQ(variant_of(knobs, whole).plan(whole, device).shared_bytes -
                variant_of(knobs, half).plan(half, device).shared_bytes,
            4 * 3 * 2 * 32 * 128);
  const Workload narrow = parse_workload("b8h64hkv1l1k8192d64:quantised=kv/int8/head");
  EXPECT_THAT(
      variant_of("block_m=64,warp_rows=16,block_n=16,kv_groups=1", narrow).is_illegal(narrow, device).value_or(""),
      HasSubstr("128 threads of a group cannot share the 64 chunks"));
}

TEST(Sm90DecodeQuantised, BoxesAreOf128BytesAndTilesOfHalf) {
  const auto plan_of = [](const std::string& shape) {
    const Workload w = parse_workload(shape);
    return parse_variant("fwd_sm90_decode:group_split=columns,kv_groups=4,block_n=64,stages=4", w,
                         gpu_of_cache("sm_90a"))
        .plan(w, gpu_of_cache("sm_90a"));
  };
  for (const auto& [dim, columns] : {std::pair{"64", 64}, {"80", 128}, {"128", 128}, {"256", 128}}) {
    const LaunchPlan plan = plan_of(std::string("b8h32hkv4l1k8192d") + dim + ":quantised=kv/e4m3/tensor");
    ASSERT_TRUE(plan.tensor_maps);
    EXPECT_EQ(plan.tensor_maps->columns, columns) << dim;
  }
  const LaunchPlan half = plan_of("b8h32hkv4l1k8192d128:quantised=kv/int8/tensor");
  const LaunchPlan whole = plan_of("b8h32hkv4l1k8192d128");
  EXPECT_EQ(whole.shared_bytes - half.shared_bytes, 4 * 2 * 64 * 128);
  EXPECT_EQ(whole.threads, half.threads);
}

TEST(Sm90DecodeQuantised, DefaultsFitTheRegisters) {
  const Family& family = find_family("fwd_sm90_decode");
  const DeviceFacts device = gpu_of_cache("sm_90a");
  for (const char* shape : {"b8h32hkv4l1k8192d", "b8h32hkv4l4k8192d", "b1h8hkv1l64k100000d", "b64h32hkv8l1k64d"})
    for (const char* dim : {"64", "128", "256"})
      for (const char* mask : {"", ":causal_bottom_right", ":window=128"})
        for (const char* feature :
             {"", ":bias=fp16", ":key_lengths:page=16", ":softcap=30:bias=fp16:alibi:sinks:key_lengths:page=16"})
          for (const char* element : {"", ":bf16"}) {
            const Workload w = parse_workload(std::string(shape) + dim + element + mask + feature +
                                              ":quantised=k/int8/token+v/e4m3/channel");
            const Config config = family.default_config(w, device);
            EXPECT_EQ(family.is_illegal(config, w, device).value_or(""), "") << to_string(w);
          }
}

}  // namespace
}  // namespace heed
