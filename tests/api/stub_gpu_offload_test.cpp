// Pools of keys in host memory on a GPU, with a stand-in for the driver: what is launched, what is refused, what is
// given back. What the kernels compute, tests/gpu/offload_test.cpp says.
#include "quantise/quantise.hpp"
#include "stub_offload.hpp"

namespace heed {
namespace {

using testing_support::in_use;
using testing_support::last_merge;
using testing_support::merged;
using testing_support::of_driver;
using testing_support::refuse;
using testing_support::StubOffload;

TEST_F(StubOffload, PiecesAreLaunchedAndMerged) {
  make();
  const int before = testing_support::launched();
  const int merges = merged();
  ASSERT_EQ(heed_offload_prefill(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  // Copies of K and V to pages of the host, of which those that follow each other are one, and to four of the device;
  // a launch over these and four over chunks of the seven others.
  EXPECT_EQ(merged(), merges + 1);
  EXPECT_EQ(last_merge().count, 5);
  EXPECT_EQ(last_merge().o, call_.o);
  EXPECT_GE(testing_support::launched() - before, 5 + 2);
  // The stand-in writes to each output the parameters that it got.
  FeatureParams seen;
  std::memcpy(&seen, last_merge().partials[0].o, sizeof seen);
  EXPECT_EQ(seen.pages, 4);
  EXPECT_EQ(seen.page_size, 16);
  EXPECT_EQ(seen.q, call_.q);
  EXPECT_EQ(seen.seqused_k[0], 3 * 16 + 3);
  std::memcpy(&seen, last_merge().partials[4].o, sizeof seen);
  EXPECT_EQ(seen.pages, 3 * 2);
  EXPECT_EQ(seen.seqused_k[0], 16) << "the last chunk has one page";

  call_.len_k = 0;
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  heed_offload_info info;
  heed_offload_info_init(&info);
  ASSERT_EQ(heed_offload_get_info(pool_, &info), HEED_OK);
  EXPECT_EQ(info.device_pages_free, 0);
  EXPECT_EQ(info.remote_pages, 7);
}

TEST_F(StubOffload, TheProcessorsAttendToTheirShare) {
  config_.streamed_share = 0;
  make();
  auto* const v = static_cast<std::uint16_t*>(at(1));
  for (std::size_t i = 0; i < std::size_t{163} * 2 * 128; ++i) v[i] = 0x4000;  // 2 in fp16
  const int merges = merged();
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(merged(), merges + 1);
  ASSERT_EQ(last_merge().count, 2);
  const auto* const o = static_cast<const std::uint16_t*>(last_merge().partials[1].o);
  for (int i = 0; i < 4 * 4 * 128; ++i) ASSERT_EQ(o[i], 0x4000);
  EXPECT_NEAR(last_merge().partials[1].lse[0], std::log(7 * 16), 1e-4) << "scores of 0";
  char text[4096];
  (void)heed_offload_explain(pool_, &id_, 1, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("Stub H100, 4 of 4 pages used"));
}

TEST_F(StubOffload, WithoutProgramsForTheProcessorsAllIsStreamed) {
  path_ = path(false);
  config_.programs = path_.c_str();
  make();
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(last_merge().count, 5);
  char text[4096];
  (void)heed_offload_explain(pool_, &id_, 1, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("no program for the processors"));
}

// Pages of 8 bits: one launch quantises new keys by the pool's factors, copies take them to pages, launches read their
// factors, and rows beyond 512 of the heads that share a key head are launches of their own.
TEST_F(StubOffload, PagesOfEightBits) {
  testing_support::TemporaryFolder folder;
  const auto write = [&](bool with_pass) {
    dispatch::ProgramFileWriter writer("0123");
    dispatch::ProgramRecord record;
    record.arch = "sm_90a";
    record.origin = "rule";
    const DeviceFacts device = dispatch::representative_gpu("sm_90a");
    const Family& family = find_family("fwd_sm80_decode");
    for (const char* mask : {"", ":causal_bottom_right", ":window=9/3"}) {
      const Workload w =
          parse_workload(fmt::format("b1h4hkv2l4k1024d128{}:key_lengths:page=16:quantised=kv/e4m3/head", mask));
      record.workload = to_string(w);
      record.variant = describe(make_variant(family, family.default_config(w, device), w));
      writer.add(record, testing_support::kImage);
    }
    record.workload = {};
    for (const std::string_view helper : {padding::kCopyProgram, merge::kMergeProgram, quantise::kQuantiseProgram}) {
      record.variant = helper;
      if (with_pass || helper != quantise::kQuantiseProgram) writer.add(record, testing_support::kImage);
    }
    path_ = folder.file(with_pass ? "with.programs" : "without.programs");
    write_file_atomically(path_, writer.bytes(), ErrorCode::store);
    config_.programs = path_.c_str();
  };
  const float factors[] = {0.5F, 0.25F, 2, 4};
  config_.layers = 2;
  config_.dtype_kv = HEED_FP8_E4M3;
  config_.k_scales = factors;
  config_.k_scale_count = 4;
  config_.v_scales = factors;
  config_.v_scale_count = 2;
  write(false);
  expect_said(heed_offload_create(&config_, &pool_), HEED_UNSUPPORTED, "no program that quantises inputs on sm_90a");
  write(true);
  make();
  call_.layer = 1;
  call_.len_q = 300;
  const int before = of_driver<int()>("stub_passed")();
  ASSERT_EQ(heed_offload_prefill(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  ASSERT_EQ(of_driver<int()>("stub_passed")(), before + 1);
  const quantise::Pass& pass = of_driver<const quantise::Pass*()>("stub_passes")()[before % 16];
  EXPECT_EQ(pass.stage, static_cast<int>(quantise::Stage::elements));
  EXPECT_EQ(pass.k.from, call_.k);
  EXPECT_EQ(pass.k.to_element, static_cast<int>(Element::e4m3));
  EXPECT_EQ(pass.k.largest, nullptr);
  EXPECT_EQ(pass.k.count, 0);
  EXPECT_EQ(pass.k.is_wide, 1);
  EXPECT_THAT(std::vector<float>(pass.k.factors, pass.k.factors + 2), ::testing::ElementsAre(2, 4));
  EXPECT_THAT(std::vector<float>(pass.v.factors, pass.v.factors + 2), ::testing::ElementsAre(0.5F, 0.25F));
  EXPECT_EQ(last_merge().count, 5);
  FeatureParams seen;
  std::memcpy(&seen, last_merge().partials[1].o, sizeof seen);  // the first chunk, which all rows but few see whole
  EXPECT_EQ(seen.k_scales.at, pass.k.factors);
  EXPECT_EQ(seen.v_scales.at, pass.v.factors);
  EXPECT_EQ(seen.k_scales.strides.head, 1);
  EXPECT_EQ(seen.len_q, 256);
  EXPECT_EQ(seen.q, call_.q);
  std::memcpy(&seen, static_cast<const char*>(last_merge().partials[1].o) + 256 * 128 * 2, sizeof seen);
  EXPECT_EQ(seen.len_q, 44);
  // Keys that are quantised already are copied alone.
  call_.dtype_kv = HEED_FP8_E4M3;
  call_.len_q = 1;
  ASSERT_EQ(heed_offload_decode(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(of_driver<int()>("stub_passed")(), before + 1);
}

TEST_F(StubOffload, MemoryThatIsRefusedIsSaidAndNothingIsKept) {
  const int before = in_use();
  refuse('p');
  expect_said(heed_offload_create(&config_, &pool_), HEED_OUT_OF_MEMORY, "the driver refused to pin");
  EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("host_pages"));
  EXPECT_EQ(in_use(), before);
  refuse('m');
  expect_said(heed_offload_create(&config_, &pool_), HEED_OUT_OF_MEMORY, "give the pool fewer device_pages");
  EXPECT_EQ(in_use(), before);
  refuse(' ');
  make();
  ASSERT_EQ(heed_offload_prefill(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
  EXPECT_GT(in_use(), before);
  heed_offload_destroy(pool_);
  pool_ = nullptr;
  EXPECT_EQ(in_use(), before);
  // A call that finds no memory for its parts leaves no keys, and the next one may.
  make();
  refuse('m');
  expect_said(heed_offload_prefill(pool_, &call_, nullptr), HEED_OUT_OF_MEMORY, "no ");
  std::int64_t keys = -1;
  ASSERT_EQ(heed_offload_length(pool_, id_, 0, &keys), HEED_OK);
  EXPECT_EQ(keys, 0);
  refuse(' ');
  EXPECT_EQ(heed_offload_prefill(pool_, &call_, nullptr), HEED_OK) << heed_last_error();
}

TEST_F(StubOffload, ADeviceThatIsLostStaysLost) {
  const int before = in_use();
  make();
  refuse('c');
  expect_said(heed_offload_prefill(pool_, &call_, nullptr), HEED_DRIVER_ERROR, "copying to the GPU failed");
  refuse(' ');
  expect_said(heed_offload_prefill(pool_, &call_, nullptr), HEED_DRIVER_ERROR, "destroy it and make another");
  std::int64_t keys = -1;
  ASSERT_EQ(heed_offload_length(pool_, id_, 0, &keys), HEED_OK);
  EXPECT_EQ(keys, 0);
  heed_offload_destroy(pool_);
  pool_ = nullptr;
  EXPECT_EQ(in_use(), before);
}

TEST_F(StubOffload, StreamsAndContextsThatItCannotBeCalledOn) {
  make();
  void* const capturing = reinterpret_cast<void*>(0x88);  // kCapturing of the stand-in
  expect_said(heed_offload_decode(pool_, &call_, capturing), HEED_INVALID_ARGUMENT,
              "is being captured into a graph, and 163 new keys come with the call");
  of_driver<int(std::uintptr_t)>("cuCtxSetCurrent")(0x101);
  expect_said(heed_offload_decode(pool_, &call_, nullptr), HEED_INVALID_ARGUMENT,
              "not the one that the pool was made in");
  of_driver<int(std::uintptr_t)>("cuCtxSetCurrent")(0x100);
  call_.q = static_cast<const char*>(call_.q) + 2;
  expect_said(heed_offload_decode(pool_, &call_, nullptr), HEED_INVALID_ARGUMENT, "a multiple of 16 bytes");
  config_.device = 9;
  heed_offload* other = nullptr;
  expect_said(heed_offload_create(&config_, &other), HEED_NO_DEVICE, "there is no GPU 9");
}

TEST_F(StubOffload, ProgramsWithoutTheMerge) {
  testing_support::TemporaryFolder folder;
  dispatch::ProgramFileWriter writer("0123");
  dispatch::ProgramRecord record;
  record.arch = "sm_90a";
  record.variant = padding::kCopyProgram;
  record.origin = "library";
  writer.add(record, testing_support::kImage);
  const std::string file = folder.file("heed.programs");
  write_file_atomically(file, writer.bytes(), ErrorCode::store);
  config_.programs = file.c_str();
  expect_said(heed_offload_create(&config_, &pool_), HEED_UNSUPPORTED,
              "no program that merges partial results on sm_90a");
}

}  // namespace
}  // namespace heed
