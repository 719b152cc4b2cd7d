// fwd_cpu with columns of the head dim in the lanes, against the oracle: lengths around tiles and vectors, groups, head
// dims of whole and of broken vectors, masks, divided keys, and what is not finite.
#include "cpu_launch.hpp"

namespace heed {
namespace {

using cpu_launch::Case;
using cpu_launch::Cut;
using cpu_launch::expect_as_oracle;
using cpu_launch::kInfinite;
using cpu_launch::kNan;
using cpu_launch::launch;
using cpu_launch::Output;
using cpu_launch::row_of;

// Up to 256 keys are one part.
const std::string kVariant =
    "fwd_cpu:unit=vector,pack_gqa=off,lanes=columns,block_m=16,block_n=64,prefetch=0,split_keys=256";

class CpuDecode : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] std::string dtype() const { return std::string(":") + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CpuDecode, ::testing::Values("fp32", "fp16", "bf16"));

// One program of each head dim for all of its lengths and groups.
TEST_P(CpuDecode, EveryLengthGroupAndHeadDimIsWhatTheOracleSays) {
  for (const char* dim : {"d32", "d33", "d64", "d80", "d128", "d256"})
    for (const char* heads : {"h2", "h8hkv2", "h8hkv1"})
      for (const char* keys : {"k1", "k7", "k63", "k64", "k65", "k300"}) {
        const std::string shape = fmt::format("b1{}l1{}{}{}", heads, keys, dim, dtype());
        const Case c(shape);
        expect_as_oracle(c, launch(kVariant, c), shape);
      }
  for (const char* shape : {"b1h128hkv1l1k65d64", "b2h4hkv2l1k4097d64", "b1h3l5k70d64", "b2h10hkv2l7k520d64"}) {
    const Case c(shape + dtype());
    expect_as_oracle(c, launch(kVariant, c), shape);
  }
}

TEST_P(CpuDecode, EveryMaskIsWhatTheOracleSays) {
  for (const char* mask : {"causal_bottom_right", "causal_top_left", "causal_bottom_right:window=30", "window=3/5",
                           "causal_bottom_right:window=0"})
    for (const char* shape :
         {"b1h2l1k130d64", "b1h4hkv2l3k70d64", "b1h8hkv2l16k600d64", "b1h2l16k5d64", "b1h4hkv1l9k64d64"}) {
      const Case c(shape + std::string(":") + mask + dtype());
      const std::string what = to_string(c.workload);
      expect_as_oracle(c, launch(kVariant, c), what);
      expect_as_oracle(c, launch(kVariant, c, Cut::nothing), what + ", no key cut off");
    }
}

// Keys that some rows of a block see and others do not hold NaN and infinity.
TEST_P(CpuDecode, WhatIsHiddenFromARowDoesNotReachIt) {
  for (const char* shape : {"b1h4hkv2l8k70d64:causal_bottom_right", "b1h4hkv1l7k600d64:causal_bottom_right:window=40",
                            "b1h2l16k300d64:causal_bottom_right"}) {
    Case c(shape + dtype());
    for (std::int64_t d = 0; d < c.workload.dim; ++d) {
      c.at(c.k, c.workload.len_k - 1, d) = c.at(c.v, c.workload.len_k - 1, d) = kNan;
      c.at(c.v, c.workload.len_k - 3, d) = kInfinite;
      c.at(c.k, c.workload.len_k - 2, d) = -kInfinite;
    }
    const Output output = launch(kVariant, c);
    expect_as_oracle(c, output, shape);
    EXPECT_TRUE(std::isfinite(row_of(c, output, 0)[0])) << shape;
  }
}

TEST_P(CpuDecode, NanAndInfinityShowWhereTheyAreSeen) {
  for (const int tensor : {0, 1, 2})
    for (const float value : {kNan, kInfinite, -kInfinite})
      for (const std::int64_t key : {450, 20}) {
        Case c("b1h4hkv2l2k700d64" + dtype());
        c.at(tensor == 0 ? c.q : tensor == 1 ? c.k : c.v, tensor == 0 ? 1 : key, 20) = value;
        expect_as_oracle(c, launch(kVariant, c), fmt::format("{} in tensor {}, key {}", value, tensor, key));
      }
}

TEST(CpuDecodeScores, BeyondFp32Show) {
  for (const float sign : {1.0F, -1.0F}) {
    Case c("b1h2l1k600d64:fp32");
    for (float& x : c.q) x = 1e20F;
    for (float& x : c.k) x = sign * 1e20F;
    const Output output = launch(kVariant, c);
    for (const float x : output.o) EXPECT_FALSE(std::isfinite(x)) << sign;
    for (const float x : output.lse) EXPECT_FALSE(std::isfinite(x)) << sign;
  }
}

// The part that ends last adds the others in their order, whichever it is.
TEST(CpuDecodeParts, AreAddedInOneOrder) {
  const Case c("b1h4hkv1l2k1500d64:fp32");
  EXPECT_EQ(launch(kVariant, c).o, launch(kVariant, c, Cut::unseen_keys, cpu_launch::Order::backwards).o);
}

TEST(CpuDecodeParts, AreNoMoreThanThreadsNeed) {
  const DeviceFacts device = cpu_facts();
  const auto plan = [&](const char* shape) {
    const Workload w = parse_workload(shape);
    return parse_variant(kVariant, w, device).plan(w, device);
  };
  EXPECT_EQ(plan("b1h8hkv2l1k256d64").grid[0], 2U);
  EXPECT_EQ(plan("b1h8hkv2l1k256d64").workspace_bytes, 0);
  EXPECT_EQ(plan("b1h8hkv2l1k1024d64").grid[0], 8U);
  EXPECT_EQ(plan("b1h8hkv2l1k1024d64").semaphores, 2);
  EXPECT_EQ(plan("b1h8hkv2l1k1024d64").workspace_bytes, 8 * 4 * (64 + 16) * 4);
  EXPECT_EQ(plan("b64h8l1k100000d64").grid[0], 512U);
  EXPECT_EQ(plan("b64h8l1k100000d64").workspace_bytes, 0);
}

TEST(CpuDecodeKnobs, SayWhereTheyAreLegal) {
  const DeviceFacts device = cpu_facts();
  const Workload w = parse_workload("b1h8hkv2l1k256d64");
  const auto reason = [&](const std::string& config) {
    return parse_variant("fwd_cpu:" + config, w, device).is_illegal(w, device).value_or("legal");
  };
  EXPECT_EQ(reason("unit=vector,lanes=columns,block_m=16,split_keys=512,pack_gqa=off"), "legal");
  EXPECT_THAT(reason("unit=matrix,lanes=columns,block_m=64,block_n=64,split_keys=0"),
              ::testing::HasSubstr("lanes=columns needs unit=vector"));
  EXPECT_THAT(reason("unit=vector,lanes=queries,block_m=64,tile_vectors=1,tile_rows=8,pack_gqa=off,split_keys=512"),
              ::testing::HasSubstr("split_keys=512 needs lanes=columns"));
}

// The default for few queries divides keys, which queries in the lanes do not.
TEST(CpuDecodeKnobs, GiveWayToNamedOnes) {
  const DeviceFacts device = cpu_facts();
  for (const char* text : {"b1h8hkv2l1k256d64", "b1h8hkv2l4k256d64:fp32:causal_bottom_right:window=100"}) {
    const Workload w = parse_workload(text);
    EXPECT_THAT(describe(parse_variant("fwd_cpu", w, device)), ::testing::HasSubstr("lanes=columns,split_keys=512"));
    const Variant named = parse_variant("fwd_cpu:unit=vector,lanes=queries", w, device);
    EXPECT_EQ(named.is_illegal(w, device).value_or("legal"), "legal");
    EXPECT_THAT(describe(named), ::testing::HasSubstr("lanes=queries,split_keys=0"));
  }
}

}  // namespace
}  // namespace heed
