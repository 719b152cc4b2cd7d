// fwd_cpu against the oracle: what NaN, infinity and scores beyond fp32 must show, and where they must not.
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
using ::testing::Each;

class CpuKernel : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] std::string dtype() const { return std::string(":") + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CpuKernel, ::testing::Values("fp32", "fp16", "bf16"));

TEST_P(CpuKernel, NanInAQueryShowsInItsRowAlone) {
  Case c("b1h2l70d40" + dtype());
  c.at(c.q, 33, 7) = kNan;
  const Output output = launch("fwd_cpu", c);
  expect_as_oracle(c, output, "NaN in a query");
  EXPECT_THAT(row_of(c, output, 33), Each(::testing::IsNan()));
  EXPECT_TRUE(std::isnan(output.lse[33]));
}

TEST_P(CpuKernel, NanInAVisibleKeyOrValueShowsInEveryRowThatSeesIt) {
  for (const bool in_key : {true, false}) {
    Case c("b1h1l70d40:causal_top_left" + dtype());
    c.at(in_key ? c.k : c.v, 15, 3) = kNan;
    const Output output = launch("fwd_cpu", c);
    expect_as_oracle(c, output, in_key ? "NaN in a key" : "NaN in a value");
    for (std::int64_t row = 0; row < 70; ++row) {
      EXPECT_EQ(std::isnan(output.o[static_cast<std::size_t>(row * 40 + 3)]), row >= 15) << row;
      EXPECT_EQ(std::isnan(output.lse[static_cast<std::size_t>(row)]), in_key && row >= 15) << row;
    }
  }
}

TEST_P(CpuKernel, InfinityIsAsInTheOracle) {
  for (const float infinite : {kInfinite, -kInfinite})
    for (const int tensor : {0, 1, 2}) {
      Case c("b1h1l40d64:causal_top_left" + dtype());
      c.at(tensor == 0 ? c.q : tensor == 1 ? c.k : c.v, 11, 20) = infinite;
      expect_as_oracle(c, launch("fwd_cpu", c), "infinity in tensor " + std::to_string(tensor));
    }
}

TEST_P(CpuKernel, WhatIsHiddenFromARowDoesNotReachIt) {
  for (const char* shape : {"b1h1l16d64", "b1h1l150k170d32", "b1h1l170k150d33"})
    for (const char* mask : {":causal_top_left", ":causal_bottom_right"}) {
      Case c(shape + std::string(mask) + dtype());
      for (std::int64_t d = 0; d < c.workload.dim; ++d) {
        c.at(c.k, c.workload.len_k - 1, d) = kNan;
        c.at(c.v, c.workload.len_k - 1, d) = kNan;
        c.at(c.v, c.workload.len_k / 2, d) = kInfinite;
        c.at(c.k, c.workload.len_k / 3, d) = kInfinite;
      }
      expect_as_oracle(c, launch("fwd_cpu", c), shape + std::string(mask));
    }
}

TEST_P(CpuKernel, RowsThatSeeNothingAreZeros) {
  const Case c("b1h2l50k20d24:causal_bottom_right" + dtype());
  const Output output = launch("fwd_cpu", c);
  expect_as_oracle(c, output, "rows without keys");
  EXPECT_THAT(row_of(c, output, 29), Each(0.0F));
  EXPECT_EQ(output.lse[29], -kInfinite);
}

TEST(CpuScores, BeyondFp32Show) {
  for (const char* text : {"b1h1l40d64:bf16", "b1h1l40d64:fp32"})
    for (const float sign : {1.0F, -1.0F}) {
      Case c(text);
      for (float& x : c.q) x = round_to(c.workload.dtype, 1e20F);
      for (float& x : c.k) x = round_to(c.workload.dtype, sign * 1e20F);
      const Output output = launch("fwd_cpu", c);
      for (const float x : output.o) EXPECT_FALSE(std::isfinite(x)) << text << " " << sign;
      for (const float x : output.lse) EXPECT_FALSE(std::isfinite(x)) << text << " " << sign;
    }
}

TEST_P(CpuKernel, EveryShapeIsWhatTheOracleSays) {
  for (const char* shape :
       {"b2h3l1d64", "b1h4hkv2l5k300d128", "b1h1l33k65d17", "b1h2l100d256", "b1h1l1k1d1", "b1h2l200d96"})
    for (const char* mask : {"", ":causal_top_left", ":causal_bottom_right"}) {
      const Case c(shape + std::string(mask) + dtype());
      expect_as_oracle(c, launch("fwd_cpu", c), shape + std::string(mask));
    }
}

// Keys that nobody sees hold NaN, in front and at the end.
void poison_unseen(Case& c) {
  const KeyRange seen = c.workload.seen_keys();
  for (std::int64_t head = 0; head < c.workload.heads_kv; ++head)
    for (std::int64_t key = 0; key < c.workload.len_k; ++key)
      for (std::int64_t d = 0; d < c.workload.dim && !seen.contains(key); ++d)
        c.at(c.k, key, d, head) = c.at(c.v, key, d, head) = kNan;
}

TEST_P(CpuKernel, EveryWindowIsWhatTheOracleSays) {
  for (const char* shape : {"b1h2l200d64", "b1h4hkv2l5k300d40", "b1h1l33k265d17", "b1h2l300k70d32", "b1h3l1k500d64"})
    for (const char* mask :
         {"causal_bottom_right:window=0", "causal_bottom_right:window=30", "causal_top_left:window=64",
          "causal_bottom_right:window=129", "window=3/5", "window_top_left=70/1", "window=40", "window=-1/7"}) {
      Case c(shape + std::string(":") + mask + dtype());
      poison_unseen(c);
      const std::string what = to_string(c.workload);
      expect_as_oracle(c, launch("fwd_cpu", c), what);
      expect_as_oracle(c, launch("fwd_cpu", c, Cut::nothing), what + ", no key cut off");
    }
}

// A window's edges inside tiles, at their ends, and a tile between that no row of a group sees.
TEST_P(CpuKernel, EveryUnitComputesWindows) {
  for (const char* config :
       {"unit=vector,pack_gqa=off,block_n=32", "unit=vector,pack_gqa=off,tile_rows=12,block_m=256,block_n=16",
        "unit=matrix,block_m=64,block_n=32", "unit=matrix,block_m=32,pack_gqa=on,block_n=64",
        "unit=matrix,block_m=256,block_n=512,pack_gqa=on"}) {
    if (!cpu_facts().matrix_unit && std::string(config).find("matrix") != std::string::npos) continue;
    for (const char* shape : {"b2h6hkv2l170k250d80:causal_bottom_right:window=31", "b1h8hkv2l1k90d64:window=20/0",
                              "b1h4hkv1l9k140d33:window=64/3", "b1h2l150k130d32:causal_top_left:window=17"}) {
      Case c(shape + dtype());
      const std::int64_t last = c.workload.len_q - 1;
      c.at(c.v, c.workload.keys_of(last).begin, 2) = kNan;
      c.at(c.v, c.workload.keys_of(last / 2).begin, 3) = kInfinite;
      c.at(c.k, c.workload.keys_of(last / 3).end - 1, 1) = kNan;
      c.at(c.q, 0, 1) = kNan;
      expect_as_oracle(c, launch("fwd_cpu:" + std::string(config), c), shape + std::string(" ") + config);
    }
  }
}

TEST_P(CpuKernel, EveryUnitComputesTheSame) {
  for (const char* config : {"unit=vector,pack_gqa=off", "unit=vector,pack_gqa=off,tile_rows=12,block_m=256",
                             "unit=matrix,block_m=64,block_n=32", "unit=matrix,block_m=32,pack_gqa=on",
                             "unit=matrix,block_m=96,block_n=512,pack_gqa=on"})
    for (const char* shape :
         {"b2h6hkv2l70k150d80:causal_top_left", "b1h8hkv2l1k90d64", "b1h4hkv1l9k40d33:causal_bottom_right"}) {
      Case c(shape + dtype());
      if (!cpu_facts().matrix_unit && std::string(config).find("matrix") != std::string::npos) continue;
      c.at(c.v, c.workload.len_k - 1, 2) = kNan;
      c.at(c.q, 0, 1) = kNan;
      expect_as_oracle(c, launch("fwd_cpu:" + std::string(config), c), shape + std::string(" ") + config);
    }
}

}  // namespace
}  // namespace heed
