// The knob that says of which probabilities row sums are: who has it, where it has no effect, what is refused.
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

std::string refusal_of(const std::string& text, const char* workload) {
  const DeviceFacts device = gpu_limits("sm_90a");
  const Workload w = parse_workload(workload);
  return parse_variant(text, w, device).is_illegal(w, device).value_or("legal");
}

TEST(Rowsum, OfRoundedProbabilitiesRunsWhereTheseAre) {
  for (const char* workload : {"b1h8l2048d64", "b1h8l512d128:bf16", "b1h8l512d256:bf16:causal_top_left"})
    EXPECT_EQ(refusal_of("fwd_sm80:rowsum=mma", workload), "legal") << workload;
  EXPECT_EQ(refusal_of("fwd_sm90_persistent:rowsum=fadd_rounded", "b1h8l2048d128"), "legal");
}

TEST(Rowsum, OfRoundedProbabilitiesIsRefusedWhereThereAreNone) {
  EXPECT_THAT(refusal_of("fwd_sm80:rowsum=mma", "b4h16l2048d64:fp32"), ::testing::HasSubstr("in fp32 none are"));
  EXPECT_THAT(refusal_of("fwd_sm80:rowsum=mma", "b1h8l512d64:dropout=0.5"),
              ::testing::HasSubstr("probabilities that are kept"));
}

// In bf16 fwd_sm90_persistent sums rounded ones always: both values would be one program.
TEST(Rowsum, OfBf16HasOneName) {
  EXPECT_THAT(refusal_of("fwd_sm90_persistent:rowsum=fadd_rounded", "b1h8l2048d128:bf16"),
              ::testing::HasSubstr("rowsum=fadd"));
}

TEST(Rowsum, NoFamilyChoosesItAndBothCountItToAccuracy) {
  const DeviceFacts device = gpu_limits("sm_90a");
  for (const char* name : {"fwd_sm80", "fwd_sm90_persistent"}) {
    const Family& family = find_family(name);
    int of_accuracy = 0;
    for (std::size_t i = 0; i < family.knobs().size(); ++i) {
      if (!family.knobs()[i].of_accuracy) continue;
      ++of_accuracy;
      EXPECT_EQ(family.knobs()[i].name, "rowsum");
      for (const char* workload : {"b1h8l2048d64", "b1h8l512d64", "b4h16l4096d128:bf16"})
        EXPECT_EQ(family.default_config(parse_workload(workload), device).at(i), family.knobs()[i].standard);
    }
    EXPECT_EQ(of_accuracy, 1) << name;
  }
}

}  // namespace
}  // namespace heed
