// How a launch's tensors become maps: extents, strides and boxes, and every refusal. The driver is not needed.
#include "launch/tensor_map.hpp"

#include "testing.hpp"
#include "worker/protocol.hpp"

namespace heed {
namespace {

using testing_support::expect_error;

FeatureParams params_of(int batch, int heads, int heads_kv, int len_q, int len_k, int dim) {
  FeatureParams p{};
  p.q = reinterpret_cast<const void*>(0x1000);
  p.k = reinterpret_cast<const void*>(0x2000);
  p.v = reinterpret_cast<const void*>(0x3000);
  p.o = reinterpret_cast<void*>(0x4000);
  p.batch = batch, p.heads = heads, p.heads_kv = heads_kv, p.group_size = heads / heads_kv;
  p.len_q = len_q, p.len_k = len_k;
  const auto dense = [&](int h, int rows) {
    return TensorStrides{static_cast<long long>(h) * rows * dim, static_cast<long long>(rows) * dim, dim};
  };
  p.q_strides = p.o_strides = dense(heads, len_q);
  p.k_strides = p.v_strides = dense(heads_kv, len_k);
  return p;
}

TensorMapSpec boxes_of(int dim, bool causal = false) {
  return {.problem = {.element = Element::fp16, .head_dim = dim, .mask = causal ? MaskKind::causal : MaskKind::none},
          .columns = 64,
          .q_rows = 128,
          .k_rows = 96,
          .v_rows = 80,
          .o_rows = 64};
}

TEST(TensorMap, ShapesOfDenseTensors) {
  const FeatureParams p = params_of(2, 8, 4, 100, 300, 128);
  const TensorMapShape q = tensor_map_shape(p, boxes_of(128), MappedTensor::q);
  EXPECT_EQ(q.address, p.q);
  EXPECT_EQ(q.extents, (std::array<std::uint64_t, 4>{128, 100, 8, 2}));
  EXPECT_EQ(q.strides_bytes, (std::array<std::uint64_t, 3>{256, 25600, 204800}));
  EXPECT_EQ(q.box, (std::array<std::uint32_t, 4>{64, 128, 1, 1}));
  EXPECT_EQ(q.swizzle_bytes, 128);
  const TensorMapShape k = tensor_map_shape(p, boxes_of(128), MappedTensor::k);
  EXPECT_EQ(k.address, p.k);
  EXPECT_EQ(k.extents, (std::array<std::uint64_t, 4>{128, 300, 4, 2}));
  EXPECT_EQ(k.strides_bytes, (std::array<std::uint64_t, 3>{256, 76800, 307200}));
  EXPECT_EQ(k.box[1], 96U);
  EXPECT_EQ(tensor_map_shape(p, boxes_of(128), MappedTensor::v).box[1], 80U);
  EXPECT_EQ(tensor_map_shape(p, boxes_of(128), MappedTensor::o).address, p.o);
  TensorMapSpec narrow = boxes_of(128);
  narrow.columns = 32;
  EXPECT_EQ(tensor_map_shape(p, narrow, MappedTensor::o).swizzle_bytes, 64);
  TensorMapSpec narrow_output = boxes_of(128);
  narrow_output.o_columns = 32;
  EXPECT_EQ(tensor_map_shape(p, narrow_output, MappedTensor::o).box, (std::array<std::uint32_t, 4>{32, 64, 1, 1}));
  EXPECT_EQ(tensor_map_shape(p, narrow_output, MappedTensor::o).swizzle_bytes, 64);
  EXPECT_EQ(tensor_map_shape(p, narrow_output, MappedTensor::v).box[0], 64U);
}

// The last box of a row may reach past it.
// Of quantised inputs a box of 64 bytes holds 64 columns, and each tensor has its own elements.
TEST(TensorMap, ElementsOf8Bits) {
  FeatureParams p = params_of(2, 8, 4, 100, 300, 128);
  TensorMapSpec boxes = boxes_of(128);
  boxes.problem.inputs = {.quantised = true, .q = Element::e4m3, .k = Element::e5m2, .v = Element::fp16};
  boxes.columns = 64;
  const TensorMapShape q = tensor_map_shape(p, boxes, MappedTensor::q);
  EXPECT_EQ(q.element, Element::e4m3);
  EXPECT_EQ(q.swizzle_bytes, 64);
  EXPECT_EQ(q.strides_bytes[0], 128U);
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::k).element, Element::e5m2);
  const TensorMapShape v = tensor_map_shape(p, boxes, MappedTensor::v);
  EXPECT_EQ(v.element, Element::fp16);
  EXPECT_EQ(v.swizzle_bytes, 128);
  EXPECT_EQ(v.strides_bytes[0], 256U);
  boxes.columns = 128;
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::q).swizzle_bytes, 128);
  expect_error(ErrorCode::unsupported, "a box has 64, 32 or 16 columns, not 128",
               [&] { (void)tensor_map_shape(p, boxes, MappedTensor::v); });
  p.q_strides.row = 136;  // a multiple of 8 elements is none of 16 bytes
  expect_error(ErrorCode::unsupported, "multiple of 16 elements",
               [&] { (void)tensor_map_shape(p, boxes, MappedTensor::q); });
}

TEST(TensorMap, HeadDimsNeedNotFillTheirBoxes) {
  for (const int dim : {8, 32, 72, 96}) {
    const TensorMapShape q = tensor_map_shape(params_of(1, 2, 2, 100, 100, dim), boxes_of(dim), MappedTensor::q);
    EXPECT_EQ(q.extents[0], static_cast<std::uint64_t>(dim));
    EXPECT_EQ(q.box[0], 64U);
    EXPECT_EQ(q.strides_bytes[0], 2U * static_cast<unsigned>(dim));
  }
}

// Rows between heads (blhd): the head stride is the smaller one.
TEST(TensorMap, ShapesOfInterleavedHeads) {
  FeatureParams p = params_of(2, 8, 4, 100, 300, 64);
  p.q_strides = {100 * 8 * 64, 64, 8 * 64};
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::q).strides_bytes,
            (std::array<std::uint64_t, 3>{1024, 128, 102400}));
}

// Keys that no query attends to are outside; one row is the least there can be.
TEST(TensorMap, KeysEndWithTheLastThatIsSeen) {
  FeatureParams p = params_of(1, 1, 1, 100, 300, 64);
  const auto rows = [&](bool causal, int offset) {
    p.right_offset = offset;
    const TensorMapShape k = tensor_map_shape(p, boxes_of(64, causal), MappedTensor::k);
    EXPECT_EQ(k.extents, tensor_map_shape(p, boxes_of(64, causal), MappedTensor::v).extents);
    EXPECT_EQ(tensor_map_shape(p, boxes_of(64, causal), MappedTensor::q).extents[1], 100U);
    return k.extents[1];
  };
  EXPECT_EQ(rows(false, 0), 300U);
  EXPECT_EQ(rows(true, 0), 100U);
  EXPECT_EQ(rows(true, 200), 300U);
  EXPECT_EQ(rows(true, 1000), 300U);
  EXPECT_EQ(rows(true, -50), 50U);
  EXPECT_EQ(rows(true, -500), 1U);
}

// Where entries differ, keys that one entry's rows see may lie behind the last that a launch's would.
TEST(TensorMap, KeysOfEntriesThatDifferEndWithTheLastThereIs) {
  FeatureParams p = params_of(3, 1, 1, 100, 300, 64);
  const auto rows = [&] { return tensor_map_shape(p, boxes_of(64, true), MappedTensor::k).extents[1]; };
  EXPECT_EQ(rows(), 100U);
  const int numbers[4] = {};
  p.seqused_k = numbers;
  EXPECT_EQ(rows(), 300U);
  p.seqused_k = nullptr;
  p.prefix_lengths = numbers;
  EXPECT_EQ(rows(), 300U);
}

TEST(TensorMap, RaggedRowsAreThoseOfOneEntry) {
  FeatureParams p = params_of(3, 2, 1, 100, 300, 64);
  const int begins[4] = {0, 100, 150, 190};
  p.cu_seqlens_q = p.cu_seqlens_k = begins;
  p.total_q = 190;
  p.total_k = 700;
  p.q_strides.batch = p.k_strides.batch = -1;  // of no use
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::q).extents, (std::array<std::uint64_t, 4>{64, 190, 2, 1}));
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::o).extents, (std::array<std::uint64_t, 4>{64, 190, 2, 1}));
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::k).extents, (std::array<std::uint64_t, 4>{64, 700, 1, 1}));
  p.cu_seqlens_k = nullptr;
  p.k_strides.batch = 300 * 64;
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::v).extents, (std::array<std::uint64_t, 4>{64, 300, 1, 3}));
  p.total_q = 0;
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::q).extents[1], 1U);
}

TEST(TensorMap, PagesCountAsEntries) {
  FeatureParams p = params_of(3, 2, 2, 100, 300, 64);
  const int table[15] = {};
  p.page_table = table;
  p.page_size = 48;
  p.pages = 17;
  p.k_strides = p.v_strides = {48 * 2 * 64, 64, 2 * 64};
  TensorMapSpec boxes = boxes_of(64);
  boxes.k_rows = boxes.v_rows = 16;
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::k).extents, (std::array<std::uint64_t, 4>{64, 48, 2, 17}));
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::v).strides_bytes, (std::array<std::uint64_t, 3>{256, 128, 12288}));
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::q).extents, (std::array<std::uint64_t, 4>{64, 100, 2, 3}));
  boxes.k_rows = 32;
  expect_error(ErrorCode::unsupported, "pages of 48 keys are no multiple of a box's 32 rows",
               [&] { (void)tensor_map_shape(p, boxes, MappedTensor::k); });
}

TEST(TensorMap, StridesOfSingleEntriesMayBeAnything) {
  FeatureParams p = params_of(1, 1, 1, 1, 1, 64);
  p.q_strides = {7, 0, -3};
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64), MappedTensor::q).strides_bytes,
            (std::array<std::uint64_t, 3>{128, 128, 128}));
}

// Entries of a ragged batch may all be empty; its heads are then no elements apart.
TEST(TensorMap, TensorsWithoutRowsMayHaveNoStrides) {
  FeatureParams p = params_of(1, 8, 4, 100, 300, 64);
  constexpr int kNone[2] = {0, 0};
  p.cu_seqlens_q = p.cu_seqlens_k = kNone;
  p.q_strides.head = p.k_strides.head = 0;
  for (const MappedTensor tensor : {MappedTensor::q, MappedTensor::k}) {
    const TensorMapShape shape = tensor_map_shape(p, boxes_of(64), tensor);
    EXPECT_EQ(shape.extents[1], 1U);
    EXPECT_EQ(shape.strides_bytes[1], 128U);
  }
  p.total_k = 1;
  expect_error(ErrorCode::unsupported, "the head stride of k is 0",
               [&] { (void)tensor_map_shape(p, boxes_of(64), MappedTensor::k); });
}

TEST(TensorMap, WhatCannotBeCopiedIsRefusedWithWhatWouldBeRight) {
  const auto refusal = [](const std::string& words, const auto& change) {
    FeatureParams p = params_of(2, 8, 4, 100, 300, 64);
    TensorMapSpec boxes = boxes_of(64);
    change(p, boxes);
    expect_error(ErrorCode::unsupported, words, [&] { (void)tensor_map_shape(p, boxes, MappedTensor::k); });
  };
  refusal("the row stride of k is 68 elements; bulk copies need a positive multiple of 8",
          [](FeatureParams& p, TensorMapSpec&) { p.k_strides.row = 68; });
  refusal("the head stride of k is 0", [](FeatureParams& p, TensorMapSpec&) { p.k_strides.head = 0; });
  refusal("the batch stride of k is -64", [](FeatureParams& p, TensorMapSpec&) { p.k_strides.batch = -64; });
  refusal("the batch stride of k is", [](FeatureParams& p, TensorMapSpec&) { p.k_strides.batch = 1LL << 39; });
  refusal("k lies at address 0x2008; bulk copies need a multiple of 16 bytes",
          [](FeatureParams& p, TensorMapSpec&) { p.k = reinterpret_cast<const void*>(0x2008); });
  refusal("k lies at address", [](FeatureParams& p, TensorMapSpec&) { p.k = nullptr; });
  refusal("not fp32", [](FeatureParams&, TensorMapSpec& b) { b.problem.element = Element::fp32; });
  refusal("0, 64, 128 or 256 bytes at once, not 96", [](FeatureParams&, TensorMapSpec& b) { b.l2_bytes = 96; });
  refusal("64, 32 or 16 columns, not 48", [](FeatureParams&, TensorMapSpec& b) { b.columns = 48; });
  refusal("the head dim 68 is no multiple", [](FeatureParams&, TensorMapSpec& b) { b.problem.head_dim = 68; });
  refusal("the head dim 0 is no multiple", [](FeatureParams&, TensorMapSpec& b) { b.problem.head_dim = 0; });
  refusal("1 to 256 rows, not 257", [](FeatureParams&, TensorMapSpec& b) { b.k_rows = 257; });
  refusal("1 to 256 rows, not 0", [](FeatureParams&, TensorMapSpec& b) { b.k_rows = 0; });
}

TEST(LaunchPlan, SurvivesTheWayToTheWorker) {
  LaunchPlan plan;
  plan.entry = "heed_forward";
  plan.grid = {3, 4, 5};
  plan.threads = 384;
  plan.cluster = 2;
  plan.shared_bytes = 200000;
  plan.workspace_bytes = 4096;
  EXPECT_EQ(worker::plan_from_json(nlohmann::json::parse(worker::plan_to_json(plan).dump())), plan);
  plan.semaphores = 17;
  plan.tensor_maps = boxes_of(128, true);
  plan.tensor_maps->problem.element = Element::bf16;
  plan.supports_pdl = true;
  EXPECT_EQ(worker::plan_from_json(nlohmann::json::parse(worker::plan_to_json(plan).dump())), plan);
  plan.o_strides = TensorStrides{.batch = 1LL << 40, .head = 64, .row = 512};
  EXPECT_EQ(worker::plan_from_json(nlohmann::json::parse(worker::plan_to_json(plan).dump())), plan);
  worker::Launch launch;
  launch.semaphores = 12345;
  const nlohmann::json json = launch;
  EXPECT_EQ(json.get<worker::Launch>().semaphores, 12345U);
  EXPECT_EQ(worker::resolve(launch, 0x100000).semaphores, reinterpret_cast<unsigned*>(0x100000 + 12345));
  EXPECT_EQ(worker::resolve(worker::Launch{}, 0x100000).semaphores, nullptr);
}

// Where maps of ragged tensors end.
TEST(Launch, CarriesTheRowsOfRaggedTensors) {
  worker::Launch launch;
  launch.shape = params_of(3, 1, 1, 4, 300, 64);
  launch.shape.total_q = 11;
  launch.shape.total_k = 700;
  const auto sent = nlohmann::json::parse(nlohmann::json(launch).dump()).get<worker::Launch>();
  EXPECT_EQ(sent.shape.total_q, 11);
  EXPECT_EQ(sent.shape.total_k, 700);
}

// Keys in front that no query sees may hold NaN, which a map cannot hide: K and V begin behind them.
TEST(Launch, BeginsWithTheFirstKeyThatIsSeen) {
  worker::Launch launch;
  launch.k = 0x1000;
  launch.v = 0x8000;
  launch.shape = params_of(1, 1, 1, 4, 300, 64);
  launch.shape.right_offset = 296;
  launch.shape.left_offset = 280;
  launch.mask = MaskKind::window;
  for (const Element element : {Element::bf16, Element::fp32}) {
    launch.k_element = launch.v_element = element;
    const auto sent = nlohmann::json::parse(nlohmann::json(launch).dump()).get<worker::Launch>();
    EXPECT_EQ(sent.shape.left_offset, 280);
    const FeatureParams p = worker::resolve(sent, 0x100000);
    const std::uintptr_t rows = 280 * 64 * (element == Element::fp32 ? 4 : 2);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.k), 0x101000 + rows);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.v), 0x108000 + rows);
    EXPECT_EQ(p.len_k, 20);
    EXPECT_EQ(p.left_offset, 0);
    EXPECT_EQ(p.right_offset, 16);
  }
  launch.mask = MaskKind::causal;
  EXPECT_EQ(worker::resolve(launch, 0).len_k, 300);
  nlohmann::json unknown = launch;
  unknown["elements"] = {"fp16", "fp8"};
  EXPECT_THROW((void)unknown.get<worker::Launch>(), Error);
}

// Pages count as batch entries; where entries have lengths, rows end with the last that one may have, whatever the
// mask.
TEST(TensorMaps, OfPagesAndOfLengths) {
  FeatureParams p = params_of(3, 4, 2, 4, 300, 64);
  const int numbers[3] = {};
  p.right_offset = -100;
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64, true), MappedTensor::k).extents[1], 1U);
  p.seqused_k = numbers;
  EXPECT_EQ(tensor_map_shape(p, boxes_of(64, true), MappedTensor::k).extents,
            (std::array<std::uint64_t, 4>{64, 300, 2, 3}));
  p.page_table = numbers;
  p.page_size = 32;
  p.pages = 40;
  p.k_strides = p.v_strides = {32 * 2 * 64, 64, 2 * 64};
  TensorMapSpec boxes = boxes_of(64);
  boxes.k_rows = boxes.v_rows = 16;
  const TensorMapShape k = tensor_map_shape(p, boxes, MappedTensor::k);
  EXPECT_EQ(k.extents, (std::array<std::uint64_t, 4>{64, 32, 2, 40}));
  EXPECT_EQ(k.strides_bytes, (std::array<std::uint64_t, 3>{256, 128, 8192}));
  EXPECT_EQ(tensor_map_shape(p, boxes, MappedTensor::q).extents[3], 3U);
  boxes.v_rows = 24;
  expect_error(ErrorCode::unsupported, "pages of 32 keys are no multiple of a box's 24 rows",
               [&] { (void)tensor_map_shape(p, boxes, MappedTensor::v); });
}

}  // namespace
}  // namespace heed
