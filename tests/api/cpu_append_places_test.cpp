// Where the tensors of an append lie: what is written apart from all else, new rows with any strides.
#include <algorithm>

#include "cpu_append.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::CpuAppend;
using testing_support::kRoom;

TEST_F(CpuAppend, WhatIsWrittenLiesApart) {
  create();
  const heed_append_tensors good = t_;
  const auto refused = [&](const std::string& words, auto&& change) {
    t_ = good;
    change();
    expect_no_run(words);
    t_ = good;
  };
  refused("k overlaps v", [&] { t_.v = t_.k; });
  refused("k overlaps v", [&] { t_.v = k_.data() + 3 * 2 * kRoom * 16 - 1; });
  refused("k overlaps new_k", [&] { t_.new_k = k_.data() + 16; });
  refused("v overlaps new_k", [&] { t_.new_k = v_.data() + 16; });
  refused("v overlaps new_v", [&] { t_.new_v = v_.data(); });
  refused("k overlaps lengths_after", [&] { t_.lengths_after = reinterpret_cast<std::int32_t*>(k_.data() + 20); });
  refused("v overlaps lengths", [&] { t_.lengths = reinterpret_cast<std::int32_t*>(v_.data() + 20); });
  refused("reserved fields of heed_append_tensors", [&] { t_.reserved[3] = 1; });
  refused("reserved fields of heed_append_tensors", [&] { t_.reserved_flags = 1; });
  // Rows of K and V take turns: (entries, heads, room, 2, dim).
  p_.k_strides = p_.v_strides = {2 * kRoom * 32, kRoom * 32, 32, 1};
  k_.assign(3 * 2 * kRoom * 32, 77.0F);
  create();
  t_.k = k_.data();
  t_.v = k_.data() + 16;
  run();
  EXPECT_EQ(k_[0], new_k_[0]);
  EXPECT_EQ(k_[16], new_v_[0]);
  t_.v = k_.data() + 15;
  expect_no_run("k overlaps v");
}

TEST_F(CpuAppend, FactorsThatAreWrittenLieApart) {
  p_.flags |= HEED_SCALED;
  p_.dtype_k = HEED_FP8_E4M3;
  p_.dtype_v = HEED_INT8;
  p_.dtype_q = HEED_FP32;
  p_.k_scales = {0, 0, 0, 0, 1};
  p_.v_scales = {2 * 51, 51, 1, 0, 1};  // each row: they are written
  std::vector<float> of_v(3 * 2 * 51);
  const float of_k = 1;
  create();
  t_.k_scale = const_cast<float*>(&of_k);
  t_.v_scale = of_v.data();
  run();
  t_.k_scale = of_v.data() + 7;
  expect_no_run("v_scale overlaps k_scale");
  t_.k_scale = const_cast<float*>(&of_k);
  t_.v_scale = new_k_.data();
  expect_no_run("v_scale overlaps new_k");
}

// A row of new keys that heads and entries share, and head dims beyond those of attention.
TEST_F(CpuAppend, NewRowsMayBeSharedAndOfAnyHeadDim) {
  rows_.k_strides = {0, 0, 16, 1};
  create();
  run();
  for (const std::size_t part : {0, 1, 5}) EXPECT_EQ(k_[part * kRoom * 16 + (part == 5 ? 9 * 16 : 0)], 1) << part;
  p_ = cpu_problem("b1h1l4k8d16:fp32");
  p_.dim = 600;
  p_.dim_v = 513;
  heed_append_rows_init(&rows_);
  rows_.len_new = 2;
  create();
  new_k_.assign(2 * 600, 5.0F);
  new_v_.assign(2 * 513, 6.0F);
  k_.assign(8 * 600, 77.0F);
  v_.assign(8 * 513, 77.0F);
  t_.new_k = new_k_.data();
  t_.new_v = new_v_.data();
  t_.k = k_.data();
  t_.v = v_.data();
  run();
  EXPECT_EQ(std::count(k_.begin(), k_.begin() + 2 * 600, 5.0F), 2 * 600);
  EXPECT_EQ(std::count(v_.begin(), v_.begin() + 2 * 513, 6.0F), 2 * 513);
  EXPECT_EQ(k_[2 * 600], 77.0F);
}

}  // namespace
}  // namespace heed
