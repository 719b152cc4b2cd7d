#include "verify/random_workload.hpp"

#include <set>

#include "testing.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

TEST(RandomWorkload, CoversWhatFamiliesClaimAndStaysSmall) {
  Random random(3);
  std::set<std::string> seen;
  Features features{};
  bool window = false, hides_all = false, single_query = false, many_queries = false, fp32 = false, blhd = false,
       grouped = false;
  for (int i = 0; i < 3000; ++i) {
    const Workload w =
        random_workload(random, i % 2 == 0 ? std::vector{Dtype::fp16, Dtype::bf16} : std::vector{Dtype::fp32});
    EXPECT_NO_THROW(validate(w));
    EXPECT_EQ(parse_workload(to_string(w)), w);
    EXPECT_LE(w.flops(), 2e9);
    if (i % 2 == 0) {
      EXPECT_NE(w.dtype, Dtype::fp32);
    }
    seen.insert(to_string(w));
    window = window || w.has_left_bound();
    for (const std::int64_t row : {std::int64_t{0}, w.len_q - 1}) hides_all = hides_all || w.keys_of(row).is_empty();
    single_query = single_query || w.len_q == 1;
    many_queries = many_queries || w.len_q > 500;
    fp32 = fp32 || w.dtype == Dtype::fp32;
    blhd = blhd || w.layout == Layout::blhd;
    const Features own = features_of(w);
    for (const FeatureName& f : kFeatureNames) features.*(f.member) = features.*(f.member) || own.*(f.member);
    grouped = grouped || w.heads / w.heads_kv == 8;
  }
  EXPECT_GT(seen.size(), 2900U);
  EXPECT_TRUE(window && hides_all && single_query && many_queries && fp32 && blhd && grouped);
  EXPECT_EQ(features, kAllFeatures);
  Random again(3);
  EXPECT_EQ(seen.count(to_string(random_workload(again, {Dtype::fp16, Dtype::bf16}))), 1U);
}

}  // namespace
}  // namespace heed
