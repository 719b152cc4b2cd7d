// New keys and values written into a cache on a CPU, through the C interface alone: attention over the cache is that
// over all keys, and what cannot be is refused.
#include "cpu_append.hpp"
#include "cpu_programs.hpp"
#include "workload/features.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::CpuAppend;
using testing_support::expect_status;
using testing_support::HostCase;
using testing_support::kRoom;
using testing_support::TemporaryFolder;

// Two appends from nothing, and the attention that takes the lengths after them: as over the keys in one tensor.
TEST_F(CpuAppend, AttentionReadsWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.file("heed.programs");
  testing_support::write_cpu_programs(path, {"b1h2l33k50d16:fp32:causal_bottom_right"}, kAllFeatures);
  heed_options o;
  heed_options_init(&o);
  o.programs = path.c_str();
  const heed_problem whole = cpu_problem("b3h4hkv2l4k20d16:fp32:causal_bottom_right", HEED_WANTS_LSE);
  for (const std::int64_t page_size : {0, 1, 8, 16}) {
    for (const bool nhd : {false, true}) {
      HostCase host(whole, 5);
      heed_problem p = whole;
      p.len_k = kRoom;
      p.flags |= HEED_KEY_LENGTHS;
      std::int64_t parts = 3, rows = kRoom;
      if (page_size > 0) {
        p.flags |= HEED_PAGED;
        p.page_size = rows = page_size;
        p.pages = parts = 3 * ((kRoom + page_size - 1) / page_size);
      }
      if (nhd) p.k_strides = p.v_strides = {rows * 32, 16, 32, 1};
      std::vector<int> table;
      for (std::int64_t i = 0; i < parts; ++i) table.push_back(static_cast<int>((i * 10 + 3) % parts));
      std::vector<float> k(static_cast<std::size_t>(parts * rows * 32), NAN), v = k;
      std::vector<int> lengths[3] = {{0, 0, 0}, {-1, -1, -1}, {-1, -1, -1}};
      std::int64_t done = 0;
      for (const std::int64_t count : {13, 7}) {
        heed_append_rows r;
        heed_append_rows_init(&r);
        r.len_new = count;
        r.k_strides = r.v_strides = {2 * 20 * 16, 20 * 16, 16, 1};
        heed_append* append = nullptr;
        ASSERT_EQ(heed_append_create(&p, &r, nullptr, &append), HEED_OK) << heed_last_error();
        EXPECT_EQ(heed_append_can_be_dependent(append), 0);
        heed_append_tensors t;
        heed_append_tensors_init(&t);
        t.new_k = host.k().data() + done * 16;
        t.new_v = host.v().data() + done * 16;
        t.k = k.data();
        t.v = v.data();
        t.lengths = lengths[done == 0 ? 0 : 1].data();
        t.lengths_after = lengths[done == 0 ? 1 : 2].data();
        t.page_table = page_size > 0 ? table.data() : nullptr;
        ASSERT_EQ(heed_append_run(append, &t, nullptr, 0), HEED_OK) << heed_last_error();
        heed_append_destroy(append);
        done += count;
      }
      ASSERT_EQ(lengths[2], (std::vector{20, 20, 20}));
      heed_plan* plan = nullptr;
      ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
      heed_tensors t = host.tensors();
      t.k = k.data();
      t.v = v.data();
      t.seqused_k = lengths[2].data();
      t.page_table = page_size > 0 ? table.data() : nullptr;
      EXPECT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
      heed_plan_destroy(plan);
      host.check();
    }
  }
}

TEST_F(CpuAppend, NumbersThatDoNotFitAreRefused) {
  create();
  run();
  EXPECT_EQ(after_, (std::vector{4, 51, 13}));
  lengths_ = {0, 48, 9};
  expect_no_run("entry 1 has 48 keys, and 4 new ones; its cache has room for 51");
  lengths_ = {0, 1, -9};
  expect_no_run("the length of entry 2 is -9; it must be 0 or more");
  lengths_ = {0, 1, 2147483647};
  expect_no_run("its cache has room for 51");
  rows_.flags = HEED_APPEND_LENGTHS_AFTER;
  create();
  lengths_ = {4, 3, 9};
  expect_no_run("entry 1 has 3 keys after 4 new ones");
  lengths_ = {4, 5, 52};
  expect_no_run("its cache has room for 51");
  lengths_ = {4, 5, 51};
  run();
  EXPECT_EQ(after_, lengths_);
}

TEST_F(CpuAppend, PagesThatThereAreNotAreRefused) {
  make_paged();
  create();
  run();
  for (const int page : {21, -1, 1 << 30}) {
    table_[7 + 5] = page;  // of entry 1, its keys 40 to 47
    expect_no_run(fmt::format("page_table[1, 5] is {}, and key 47 lies there; the pool has the pages 0 to 20", page));
    lengths_[1] = 30;  // a page that no new key lies in may be anything
    run();
    lengths_[1] = 47;
  }
}

TEST_F(CpuAppend, RowsOfEntriesMustFollowEachOther) {
  rows_.flags = HEED_APPEND_RAGGED;
  rows_.total_new = 12;
  create();
  expect_no_run("the address of cu_seqlens is null");
  std::vector<int> begins = {0, 4, 4, 7};
  t_.cu_seqlens = begins.data();
  run();
  EXPECT_EQ(after_, (std::vector{4, 47, 12}));
  EXPECT_EQ(k_[0], 1);                                  // row 0 of the new ones, head 0
  EXPECT_EQ(k_[2 * 2 * 51 * 16 + 9 * 16], 4 * 32 + 1);  // of entry 2
  begins = {0, 4, 3, 7};
  expect_no_run("cu_seqlens[2] is 3; it must be 4 or more");
  begins = {-1, 3, 4, 7};
  expect_no_run("cu_seqlens[0] is -1; it must be 0 or more");
  begins = {0, 4, 8, 13};
  expect_no_run("cu_seqlens[3] is 13, and there are 12 new rows");
  begins = {0, 5, 8, 12};
  expect_no_run("entry 0 gets 5 rows by cu_seqlens; len_new says that it gets 4 at most");
}

TEST_F(CpuAppend, CachesOf8BitsHaveFactors) {
  p_.flags |= HEED_SCALED;
  p_.dtype_k = HEED_FP8_E4M3;
  p_.dtype_v = HEED_INT8;
  p_.dtype_q = HEED_FP32;
  p_.k_scales = {0, 1, 0, 0, 1};        // each head
  p_.v_scales = {2 * 51, 51, 1, 0, 1};  // each row
  std::vector<float> of_k = {0.5F, 2.0F};
  std::vector<float> of_v(3 * 2 * 51, 77.0F);
  create();
  expect_no_run("the address of k_scale is null");
  t_.k_scale = of_k.data();
  t_.v_scale = of_v.data();
  run();
  const auto* const k = static_cast<const unsigned char*>(t_.k);
  const auto* const v = static_cast<const unsigned char*>(t_.v);
  EXPECT_EQ(k[0], float_to_e4m3(1 / 0.5F));                                     // entry 0, head 0, key 0
  EXPECT_EQ(k[51 * 16], float_to_e4m3(static_cast<float>(4 * 16 + 1) / 2.0F));  // head 1
  EXPECT_EQ(of_v[0], 16.0F / 127);
  EXPECT_EQ(v[15], float_to_int8(-127));
  EXPECT_EQ(of_v[4], 77.0F);
  of_k[1] = NAN;
  expect_no_run("k_scale[1] is nan; a scale factor must be positive and finite");
  of_k[1] = -1;
  expect_no_run("k_scale[1] is -1");
  p_.v_scales = {0, 51, 1, 0, 1};
  expect_no_append(HEED_INVALID_ARGUMENT, "rows of V have factors of their own, which heads or entries share");
}

TEST_F(CpuAppend, AddressesThatCannotBeAreRefused) {
  create();
  const heed_append_tensors good = t_;
  for (const auto& [member, name] :
       {std::pair{&heed_append_tensors::new_k, "new_k"}, {&heed_append_tensors::new_v, "new_v"}}) {
    t_.*member = nullptr;
    expect_no_run(fmt::format("the address of {} is null", name));
    t_.*member = reinterpret_cast<const char*>(new_k_.data()) + 2;
    expect_no_run("its address must be a multiple of 4 bytes");
    t_ = good;
  }
  t_.k = nullptr;
  expect_no_run("the address of k is null");
  t_ = good;
  t_.lengths = nullptr;
  expect_no_run("the address of lengths is null");
  t_ = good;
  t_.lengths_after = lengths_.data() + 2;
  expect_no_run("lengths_after overlaps lengths");
  t_ = good;
  t_.cu_seqlens = lengths_.data();
  expect_no_run("cu_seqlens is given, which is of appends with HEED_APPEND_RAGGED");
  t_ = good;
  t_.page_table = table_.data();
  expect_no_run("page_table is given, which is of appends with HEED_PAGED");
  t_ = good;
  t_.k_scale = new_k_.data();
  expect_no_run("k_scale is given");
  t_ = good;
  t_.struct_size = 3;
  expect_no_run("heed_append_tensors has 3 bytes");
  t_ = good;
  expect_no_run("cannot be a dependent launch", HEED_RUN_DEPENDENT);
  expect_no_run("flags 0x80 of an append are unknown", 0x80);
  t_.lengths_after = nullptr;
  run();
}

TEST_F(CpuAppend, WhatNoAppendIsIsRefused) {
  rows_.len_new = -1;
  expect_no_append(HEED_INVALID_PROBLEM, "len_new is -1");
  rows_.len_new = 4;
  rows_.total_new = 4;
  expect_no_append(HEED_INVALID_ARGUMENT, "total_new is 4 without HEED_APPEND_RAGGED");
  rows_.flags = HEED_APPEND_RAGGED;
  rows_.total_new = 3;
  expect_no_append(HEED_INVALID_PROBLEM, "total_new is 3; it must be 4 to 2^31 - 1");
  rows_.flags = 0x40;
  expect_no_append(HEED_INVALID_ARGUMENT, "flags 0x40 of heed_append_rows are unknown");
  heed_append_rows_init(&rows_);
  rows_.k_strides = {-1, 16, 16, 1};
  expect_no_append(HEED_INVALID_ARGUMENT, "the batch stride of the new K is -1");
  heed_append_rows_init(&rows_);
  rows_.reserved[1] = 1;
  expect_no_append(HEED_INVALID_ARGUMENT, "reserved fields");
  rows_.struct_size = 0;
  expect_no_append(HEED_INVALID_ARGUMENT, "set it with heed_append_rows_init");
  heed_append_rows_init(&rows_);
  p_.v_strides = {0, 51 * 16, 16, 1};
  expect_no_append(HEED_INVALID_ARGUMENT, "the batch stride of V is 0, so that its 3 entries would be written over");
  p_.v_strides = {2 * 51 * 16, 50 * 16, 16, 1};
  expect_no_append(HEED_INVALID_ARGUMENT, "the head stride of V is 800, so that its 2 entries would be written over");
  p_ = cpu_problem("b3h4hkv2l4k51d16:fp32:ragged");
  expect_no_append(HEED_UNSUPPORTED, "an append to the keys of a HEED_RAGGED problem is not supported");
  p_ = cpu_problem("b3h4hkv2l4k51d16:fp32");
  p_.heads = 3;
  expect_no_append(HEED_INVALID_PROBLEM, "");
  expect_status(heed_append_create(&p_, &rows_, nullptr, nullptr), HEED_INVALID_ARGUMENT, "nowhere to put the append");
  expect_status(heed_append_run(nullptr, &t_, nullptr, 0), HEED_INVALID_ARGUMENT, "the append is null");
}

TEST_F(CpuAppend, AnAppendThatWasDestroyedIsTold) {
  create();
  heed_append* const late = append_;
  heed_append_destroy(late);
  append_ = nullptr;
  expect_status(heed_append_run(late, &t_, nullptr, 0), HEED_INVALID_ARGUMENT, "the append was destroyed");
  EXPECT_EQ(heed_append_can_be_dependent(late), 0);
  heed_append_destroy(late);
  heed_append_destroy(nullptr);
}

TEST_F(CpuAppend, OfNothing) {
  rows_.len_new = 0;
  create();
  t_.new_k = t_.new_v = nullptr;
  t_.k = t_.v = nullptr;
  run();
  EXPECT_EQ(after_, lengths_);
  p_.batch = 0;
  create();
  t_.lengths = nullptr;
  t_.lengths_after = nullptr;
  run();
}

}  // namespace
}  // namespace heed
