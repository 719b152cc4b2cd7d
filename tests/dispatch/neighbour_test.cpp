// Which workloads are near enough to share a champion.
#include "dispatch/neighbour.hpp"

#include <cmath>

#include "testing.hpp"

namespace heed::dispatch {
namespace {

std::optional<double> distance(const std::string& a, const std::string& b) {
  const auto there = neighbour_distance(parse_workload(a), parse_workload(b));
  const auto back = neighbour_distance(parse_workload(b), parse_workload(a));
  EXPECT_EQ(there.has_value(), back.has_value()) << a << ' ' << b;
  EXPECT_NEAR(there.value_or(0), back.value_or(0), 1e-12) << a << " " << b;
  return there;
}

TEST(Neighbour, LimitsAreTheRulesOnBothSides) {
  EXPECT_EQ(distance("b1h8l512d64:fp16", "b1h8l512d64:fp16"), 0);
  EXPECT_NEAR(distance("b4h8l512d64:fp16", "b5h8l512d64:fp16").value(), std::log2(1.25), 1e-9) << "just 1.25";
  EXPECT_FALSE(distance("b3h8l512d64:fp16", "b4h8l512d64:fp16")) << "1.33 tiles";
  EXPECT_NEAR(distance("b1h8l400k512d64:fp16", "b1h8l500k512d64:fp16").value(), std::log2(1.25), 1e-9);
  EXPECT_FALSE(distance("b1h8l400k512d64:fp16", "b1h8l501k512d64:fp16"));
  EXPECT_FALSE(distance("b4h8l500k512d64:fp16", "b5h8l600k512d64:fp16")) << "both together";
  EXPECT_NEAR(distance("b1h8l512k512d64:fp16", "b1h8l512k1024d64:fp16").value(), 1, 1e-9) << "just 2";
  EXPECT_FALSE(distance("b1h8l512k512d64:fp16", "b1h8l512k1025d64:fp16"));
}

TEST(Neighbour, ClassesShareNothing) {
  const Workload one = parse_workload("b1h8l512d64:fp16");
  for (const char* other : {"b1h8l512d64:bf16", "b1h8l512d128:fp16", "b1h8l512d64:fp16:causal_top_left"})
    EXPECT_FALSE(is_same_class(one, parse_workload(other))) << other;
  for (const char* features : {":softcap=30", ":sinks", ":ragged", ":page=16", ":bias=fp16/hlk"})
    EXPECT_FALSE(is_same_class(one, parse_workload(std::string("b1h8l512d64:fp16") + features))) << features;
  const auto has_same = [](const char* a, const char* b) {
    return is_same_class(parse_workload(std::string("b1h8l512d64:fp16") + a),
                         parse_workload(std::string("b1h8l512d64:fp16") + b));
  };
  EXPECT_TRUE(has_same(":softcap=30:bias=fp16/hlk", ":softcap=50:bias=bool/bk"));
  EXPECT_FALSE(has_same(":key_lengths", ":ragged"));
  EXPECT_FALSE(has_same(":page=16", ":page=64"));
  Workload grouped = one;
  grouped.heads = 16;
  EXPECT_FALSE(is_same_class(one, grouped)) << "query heads a key head";
  EXPECT_TRUE(is_same_class(parse_workload("b1h8l16k512d64:fp16"), parse_workload("b1h8l15k512d64:fp16")));
  EXPECT_FALSE(is_same_class(parse_workload("b1h8l16k512d64:fp16"), parse_workload("b1h8l17k512d64:fp16")));
}

TEST(Neighbour, NothingIsNearNothing) {
  Workload empty = parse_workload("b1h8l512d64:fp16");
  empty.len_k = 0;
  EXPECT_FALSE(neighbour_distance(empty, empty));
}

}  // namespace
}  // namespace heed::dispatch
