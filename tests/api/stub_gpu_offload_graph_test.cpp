// Calls over a pool that are captured into graphs, on the stand-in for the driver: what their nodes read in any order
// that edges allow, what stays where it is meanwhile, what is refused. Results of a GPU: tests/gpu/offload_test.cpp.
#include "stub_offload.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::in_use;
using testing_support::last_merge;
using testing_support::merged;
using testing_support::of_driver;
using testing_support::refuse;

class StubOffloadGraph : public testing_support::StubOffload {
 protected:
  // 11 pages of 16 keys, of which the device has the last four; of the others four come over the link, a page after
  // another through one buffer, and three are the processors'. The first word of each page is its number, as a float;
  // its upper half is what Q finds there.
  void SetUp() override {
    StubOffload::SetUp();
    config_.layers = 2;
    config_.streamed_share = 0.5;
    config_.chunk_pages = 1;
    config_.chunks = 1;
    of_driver<void(bool)>("stub_look_at_pages")(true);
    of_driver<void()>("stub_end_graph")();
    make();
    for (int layer = 0; layer < 2; ++layer) {
      for (int page = 0; page < 11; ++page) {
        const auto word = static_cast<float>(page + 20 * layer);
        std::memcpy(static_cast<char*>(at(0)) + std::size_t{16} * 128 * 2 * static_cast<std::size_t>(page), &word, 4);
      }
      call_.layer = layer;
      ASSERT_EQ(heed_offload_append(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
    }
    call_.len_k = 0;
    call_.layer = 0;
  }
  void TearDown() override {
    end_graph();
    of_driver<void(bool)>("stub_look_at_pages")(false);
    StubOffload::TearDown();
  }
  static void end_graph() { of_driver<void()>("stub_end_graph")(); }
  static int nodes() { return of_driver<int()>("stub_nodes")(); }
  heed_status capture(int layer) {
    call_.layer = layer;
    return heed_offload_decode(pool_, &call_, kCaptured);
  }
  void launch(unsigned seed, float query) {
    store_element(Dtype::fp16, static_cast<std::byte*>(at(2)), 1, query);
    of_driver<void(unsigned)>("stub_launch_graph")(seed);
  }
  // What the merge of a layer found: the pages of each launch, and the processors' log-sum-exp of this query.
  static void expect_seen(int back, int layer, float query) {
    const auto* const saw = of_driver<const float*(int)>("stub_merge_saw")(back);
    const std::vector<float> words = {saw[1], saw[3], saw[5], saw[7], saw[9]};
    const auto of_layer = static_cast<float>(20 * layer);
    EXPECT_THAT(words, ::testing::ElementsAre(7 + of_layer, of_layer, 1 + of_layer, 2 + of_layer, 3 + of_layer));
    double sum = 0;
    for (const float page : {4.0F, 5.0F, 6.0F}) {
      const float word = page + of_layer;
      std::uint16_t halves[2];
      std::memcpy(halves, &word, 4);
      const double key = load_element(Dtype::fp16, reinterpret_cast<const std::byte*>(halves), 1);
      sum += 15 + std::exp(static_cast<double>(query) * key / std::sqrt(128.0));
    }
    EXPECT_NEAR(saw[10], std::log(sum), 1e-4);
  }

  static inline void* const kCaptured = reinterpret_cast<void*>(0x88);
};

TEST_F(StubOffloadGraph, EachLaunchDoesTheWholeStep) {
  const int before = merged();
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  ASSERT_EQ(capture(1), HEED_OK) << heed_last_error();
  EXPECT_EQ(merged(), before) << "nothing is done yet";
  EXPECT_TRUE(of_driver<bool()>("stub_is_joined")()) << "the stream comes behind all nodes";
  EXPECT_EQ(of_driver<int()>("stub_ends")(), 1);
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const float query = static_cast<float>(seed % 5) - 2;
    launch(seed, query);
    ASSERT_EQ(merged(), before + 2 * static_cast<int>(seed + 1));
    EXPECT_EQ(last_merge().count, 6);
    EXPECT_EQ(last_merge().o, call_.o);
    expect_seen(1, 0, query);
    expect_seen(0, 1, query);
    if (HasFailure()) return;
  }
}

// A prefill of a page at a time, whose parts are more than one merge takes: launches find what those of a call found
// that was not captured.
TEST_F(StubOffloadGraph, APrefillIsTakenToo) {
  const auto words = [](int merges_before) {
    std::vector<float> all = {static_cast<float>(merged() - merges_before)};
    const auto* const saw = of_driver<const float*(int)>("stub_merge_saw")(0);
    for (int i = 1; i < last_merge().count; ++i) all.push_back(saw[2 * i + 1]);  // the first part is the sums
    return all;
  };
  call_.layer = 1;
  call_.window_left = 150;
  int before = merged();
  ASSERT_EQ(heed_offload_prefill(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  const std::vector<float> expected = words(before);
  EXPECT_EQ(expected.back(), 26) << "the last page that the device does not hold";
  ASSERT_EQ(heed_offload_prefill(pool_, &call_, kCaptured), HEED_OK) << heed_last_error();
  EXPECT_TRUE(of_driver<bool()>("stub_is_joined")());
  for (unsigned seed = 0; seed < 20; ++seed) {
    before = merged();
    launch(seed, 1);
    ASSERT_EQ(words(before), expected) << seed;
  }
}

// Calls that are not captured work in memory of their own meanwhile, and graphs know their keys alone.
TEST_F(StubOffloadGraph, OtherCallsGoOnBeside) {
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  const int count = nodes();
  call_.layer = 1;
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(nodes(), count);
  // A sequence that would take all pages of the device finds those of the graph held.
  std::int64_t other = 0;
  ASSERT_EQ(heed_offload_add(pool_, &other), HEED_OK);
  heed_offload_call more = call_;
  more.sequences = &other;
  more.len_k = 160;
  more.layer = 0;
  std::memset(at(0), 0, std::size_t{160} * 2 * 128 * 2);
  ASSERT_EQ(heed_offload_decode(pool_, &more, nullptr), HEED_OK) << heed_last_error();
  char text[4096];
  (void)heed_offload_explain(pool_, &id_, 1, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("4 pages on the device, 7 in host memory"));
  EXPECT_THAT(text, ::testing::HasSubstr("graph     1 sequences stay where they are"));
  for (unsigned seed = 0; seed < 10; ++seed) {
    launch(seed, 1.5F);
    expect_seen(0, 0, 1.5F);
  }
  // The pages of the device are for others again when the graph has ended.
  end_graph();
  more.len_k = 16;
  ASSERT_EQ(heed_offload_append(pool_, &more, nullptr), HEED_OK) << heed_last_error();
  (void)heed_offload_explain(pool_, &id_, 1, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("3 pages on the device, 8 in host memory"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("graph  ")));
}

TEST_F(StubOffloadGraph, WhatWouldChangeIsRefused) {
  call_.len_k = 1;
  expect_said(capture(0), HEED_INVALID_ARGUMENT, "append them before the capture");
  expect_said(heed_offload_append(pool_, &call_, kCaptured), HEED_INVALID_ARGUMENT, "append them before the capture");
  expect_said(heed_offload_prefill(pool_, &call_, kCaptured), HEED_INVALID_ARGUMENT, "append them before the capture");
  EXPECT_EQ(nodes(), 0);
  call_.len_k = 0;
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  call_.len_k = 1;
  expect_said(heed_offload_append(pool_, &call_, nullptr), HEED_INVALID_ARGUMENT, "cannot have new keys: a graph");
  expect_said(heed_offload_decode(pool_, &call_, nullptr), HEED_INVALID_ARGUMENT, "destroy the graph");
  expect_said(heed_offload_remove(pool_, id_), HEED_INVALID_ARGUMENT, "cannot be removed: a graph");
  std::int64_t keys = 0;
  ASSERT_EQ(heed_offload_length(pool_, id_, 0, &keys), HEED_OK);
  EXPECT_EQ(keys, 163);
  end_graph();
  EXPECT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(heed_offload_remove(pool_, id_), HEED_OK) << heed_last_error();
}

TEST_F(StubOffloadGraph, ItsMemoryIsGivenBack) {
  // The host may be 32 calls ahead, each with memory of its own.
  for (int i = 0; i < 32; ++i) ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  const int before = in_use();
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  // More rows take larger memory, beside that which nodes work in.
  call_.len_q = 12;
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  EXPECT_GT(in_use(), before);
  call_.len_q = 4;
  launch(3, 1);
  end_graph();
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(in_use(), before);
  // A call that finds no memory leaves the capture and the pool as they can be used.
  refuse('m');
  expect_said(capture(0), HEED_OUT_OF_MEMORY, "no ");
  refuse(' ');
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  end_graph();
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(in_use(), before);
  of_driver<void()>("stub_break_capture")();
  expect_said(capture(0), HEED_INVALID_ARGUMENT, "broke the capture");
  end_graph();
  // A pool that ends before its graph gives all back, too.
  ASSERT_EQ(capture(0), HEED_OK) << heed_last_error();
  heed_offload_destroy(pool_);
  pool_ = nullptr;
  EXPECT_LT(in_use(), before);
}

}  // namespace
}  // namespace heed
