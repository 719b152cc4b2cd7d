// Errors as multiples of the unfused computation's.
#include "verify/against_unfused.hpp"

#include "testing.hpp"

namespace heed::verify {
namespace {

CheckResult check_of(const std::string& name, double max_abs, double rel_rms) {
  CheckResult check;
  check.name = name;
  check.has_errors = true;
  check.error.max_abs = max_abs;
  check.error.rel_rms = rel_rms;
  check.unfused.max_abs = 1e-3;
  check.unfused.rel_rms = 2e-4;
  return check;
}

TEST(AgainstUnfused, IsOfInputsAsModelsSendThem) {
  const Workload w = parse_workload("b1h2l64d64:fp16");
  for (const char* name : {"peaked", "attention_sink", "own_key", "the given tensors",
                           "the given tensors, no log-sum-exp asked for", "peaked, no log-sum-exp asked for"}) {
    const auto times = against_unfused(w, check_of(name, 1.2e-3, 2.1e-4));
    ASSERT_TRUE(times) << name;
    EXPECT_NEAR(times->max_abs, 1.2, 1e-9);
    EXPECT_NEAR(times->rel_rms, 1.05, 1e-9);
    EXPECT_TRUE(times->is_within());
  }
  for (const char* name : {"normal", "peaked_late", "large_logits", "neighbour b1h1l8d64:fp16", ""})
    EXPECT_FALSE(against_unfused(w, check_of(name, 1e-3, 2e-4))) << name;
  EXPECT_FALSE(against_unfused(parse_workload("b1h2l64d64:fp32"), check_of("peaked", 1e-3, 2e-4)));
  EXPECT_FALSE(against_unfused(parse_workload("b1h2l64d64:quantised=qk/int8/token"), check_of("peaked", 1e-3, 2e-4)));
  CheckResult exact = check_of("peaked", 1e-3, 2e-4);
  exact.unfused = {};
  EXPECT_FALSE(against_unfused(w, exact)) << "nothing to be a multiple of";
  CheckResult repeated = check_of("peaked", 1e-3, 2e-4);
  repeated.has_errors = false;
  EXPECT_FALSE(against_unfused(w, repeated));
}

TEST(AgainstUnfused, EitherMeasureAloneIsOverTheBar) {
  const Workload w = parse_workload("b1h2l64d64:bf16");
  EXPECT_TRUE(against_unfused(w, check_of("peaked", 1.25e-3, 2.2e-4))->max_abs <= kMostTimesMaxAbs + 1e-9);
  EXPECT_FALSE(against_unfused(w, check_of("peaked", 1.26e-3, 2e-4))->is_within());
  EXPECT_FALSE(against_unfused(w, check_of("peaked", 1e-3, 2.21e-4))->is_within());
}

}  // namespace
}  // namespace heed::verify
