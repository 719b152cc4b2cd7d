// fwd_sm80 in fp32: the default of every GPU, what it refuses, and the family that computes fp32 on a GPU at all.
#include "device/device.hpp"
#include "kernels/sm80/forward/config.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

std::string reason(const std::string& text, const Workload& w, const DeviceFacts& device) {
  return parse_variant(text, w, device).is_illegal(w, device).value_or("legal");
}

TEST(Sm80Fp32, DefaultsAreLegalForAllSizesMasksAndFeatures) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a"})
    for (const int dim : {64, 128})
      for (const char* mask : {"", ":causal_bottom_right", ":causal_bottom_right:window=100"})
        for (const char* sizes : {"b1h1l1", "b1h8l512", "b1h8l1024", "b4h16l2048", "b64h12l128", "b1h32l1k9000"})
          for (const bool all : {false, true}) {
            const DeviceFacts device = gpu_limits(arch);
            Workload w = parse_workload(std::string(sizes) + "d" + std::to_string(dim) + ":fp32" + mask);
            if (all) w = with_features(w, kAllFeatures);
            const Family& family = default_family(w, device);
            EXPECT_EQ(family.name(), "fwd_sm80") << to_string(w);
            EXPECT_EQ(family.is_illegal(family.default_config(w, device), w, device), std::nullopt)
                << arch << " " << to_string(w);
          }
}

TEST(Sm80Fp32, OtherFamiliesOfGpusRefuse) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  for (const Family* family : families())
    if (family->device() == DeviceKind::cuda && family->name() != "fwd_sm80") {
      EXPECT_THAT(family->refuses(parse_workload("l1k64d64:fp32"), hopper).value_or(""), ::testing::HasSubstr("fp32"))
          << family->name();
    }
}

TEST(Sm80Fp32, PolynomialsAndConfigsThatDoNotFitAreRefused) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Workload w = parse_workload("b4h16l2048d64:fp32");
  EXPECT_EQ(reason("fwd_sm80", w, hopper), "legal");
  EXPECT_THAT(reason("fwd_sm80:exp2=poly_quarter", w, hopper),
              ::testing::HasSubstr("exp2=hardware alone has the digits"));
  EXPECT_THAT(reason("fwd_sm80:block_n=128,q_in_registers=on,min_blocks=1", w, hopper),
              ::testing::HasSubstr("registers a thread"));
  // Twice the bytes of 16 bits: 64 rows and four stages of 64 keys of 128 elements.
  EXPECT_THAT(reason("fwd_sm80:block_m=64,warp_rows=16,kv_groups=1,block_n=64,stages=4,min_blocks=1",
                     parse_workload("b4h16l2048d128:fp32"), hopper),
              ::testing::HasSubstr("needs 294912 bytes of shared memory"));
  EXPECT_THAT(find_family("fwd_sm80").refuses(parse_workload("b1h1l64d256:fp32"), hopper).value_or(""),
              ::testing::HasSubstr("head dim 256 in fp32 is not supported; it takes 64 and 128"));
  EXPECT_EQ(reason("fwd_sm80:rescale=stale_tile,overlap=on,block_m=64,warp_rows=16,min_blocks=1", w, hopper), "legal");
}

TEST(Sm80Fp32, RowsTakeTwiceTheRoom) {
  constexpr sm80::Config kConfig{};
  constexpr Problem kHalf{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
  constexpr Problem kSingle{.element = Element::fp32, .head_dim = 128, .mask = MaskKind::none};
  static_assert(sm80::shared_plan(kConfig, kSingle).total == 2 * sm80::shared_plan(kConfig, kHalf).total);
  static_assert(sm80::registers_needed(kConfig, kSingle) > sm80::registers_needed(kConfig, kHalf));
}

}  // namespace
}  // namespace heed
