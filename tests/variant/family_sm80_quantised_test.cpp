// fwd_sm80 with inputs of 8 bits: what it reads where, that defaults are legal, and which family comes first.
#include <fmt/format.h>

#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

std::string sm80_refusal(const std::string& shape, const char* arch = "sm_89") {
  return find_family("fwd_sm80").refuses(parse_workload(shape), gpu_limits(arch)).value_or("");
}

TEST(Sm80Quantised, ReadsE4m3FromAdaOnAndInt8FromAmpereOn) {
  for (const char* quantised : {"qkv/e4m3/head", "qk/e4m3/token+v/e4m3/channel", "qk/e4m3/block48",
                                "q/e4m3/block64+k/e4m3/block128+v/e4m3/tensor"})
    for (const char* rest : {"b2h8hkv2l300k500d64:", "h2l64d128:bf16:causal_bottom_right:", "h1l9k70d256:window=40/3:",
                             "b2h4l60k200d64:bf16:blhd:key_lengths:page=16:softcap=20:alibi:"}) {
      const std::string shape = std::string(rest) + "quantised=" + quantised;
      for (const char* arch : {"sm_89", "sm_90", "sm_90a"}) EXPECT_EQ(sm80_refusal(shape, arch), "") << shape;
      for (const char* arch : {"sm_80", "sm_86"})
        EXPECT_THAT(sm80_refusal(shape, arch), HasSubstr("e4m3 need compute capability 8.9 or newer")) << shape;
    }
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a"})
    for (const char* quantised : {"qk/int8/token", "q/int8/block32+k/int8/block64+v/e4m3/channel"})
      EXPECT_EQ(sm80_refusal(std::string("h2l64d128:quantised=") + quantised, arch), "") << arch << quantised;
}

TEST(Sm80Quantised, RefusesTheRestByName) {
  const auto refused = [](const char* quantised) {
    return sm80_refusal(std::string("b2h4l64k99d64:quantised=") + quantised);
  };
  for (const char* quantised : {"qkv/e5m2/head", "q/int8/head+k/e4m3/head", "kv/e4m3/head", "qkv/int8/head",
                                "qk/e4m3/head+v/e5m2/head", "v/e4m3/head"})
    EXPECT_THAT(refused(quantised), HasSubstr("it reads Q and K in int8 or e4m3")) << quantised;
  for (const char* by : {"token", "block64"})
    EXPECT_THAT(refused((std::string("qk/e4m3/head+v/e4m3/") + by).c_str()), HasSubstr("factors of V differ"));
  EXPECT_THAT(sm80_refusal("l64d64:fp32:quantised=qkv/e4m3/head"), HasSubstr("O and V in fp32"));
  EXPECT_THAT(sm80_refusal("l64d96:quantised=qkv/e4m3/head"), HasSubstr("head dim 96"));
  testing_support::expect_error(ErrorCode::unsupported, "e4m3 need compute capability 8.9 or newer; sm_80 has 8.0", [] {
    (void)default_family(parse_workload("b1h8l512d64:quantised=qkv/e4m3/head"), gpu_limits("sm_80"));
  });
}

TEST(Sm80Quantised, DefaultsAreLegalForAllSizesAndMasks) {
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"})
    for (const char* quantised : {"qkv/e4m3/head", "qk/int8/token+v/e4m3/channel"})
      for (const int dim : {64, 128, 256})
        for (const char* mask : {"", ":causal_bottom_right", ":causal_bottom_right:window=100"})
          for (const char* sizes : {"b1h1l1", "b1h8l512", "b1h8l1024", "b1h8l2048", "b64h12l128", "b1h32l1k9000"}) {
            const DeviceFacts device = gpu_limits(arch);
            const Workload w = parse_workload(fmt::format("{}d{}{}:quantised={}", sizes, dim, mask, quantised));
            const Family& family = find_family("fwd_sm80");
            if (family.refuses(w, device)) continue;
            EXPECT_EQ(family.is_illegal(family.default_config(w, device), w, device), std::nullopt)
                << arch << " " << to_string(w);
          }
}

TEST(Sm80Quantised, ComesFirstForE4m3OnAdaAndSecondOnHopper) {
  const Workload w = parse_workload("b1h8l2048d64:quantised=qkv/e4m3/head");
  EXPECT_EQ(default_family(w, gpu_limits("sm_89")).name(), "fwd_sm80");
  EXPECT_EQ(default_family(w, gpu_limits("sm_90a")).name(), "fwd_sm90_fp8");
  // What the family for Hopper does not take.
  for (const char* shape : {"b1h8l2048d64:alibi:quantised=qkv/e4m3/head", "b1h8l2048d64:quantised=qk/e4m3/head",
                            "b1h8l2048d64:quantised=qk/e4m3/token+v/e4m3/head",
                            // Too few rows for V to be transposed for them.
                            "b8h8l16k4096d64:key_lengths:page=16:quantised=qkv/e4m3/head"})
    EXPECT_EQ(default_family(parse_workload(shape), gpu_limits("sm_90a")).name(), "fwd_sm80") << shape;
  EXPECT_EQ(default_family(parse_workload("b8h32hkv4l16k4096d64:key_lengths:page=16:quantised=qkv/e4m3/head"),
                           gpu_limits("sm_90a"))
                .name(),
            "fwd_sm90_fp8");
}

}  // namespace
}  // namespace heed
