// Quantised Q, K and V of workloads: text, refusals, what they count, and the problem that programs are built for.
#include "workload/quantised.hpp"

#include "device/device.hpp"
#include "report/support_table.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

TEST(Quantised, EveryTextReadsBackTheSame) {
  for (const char* text :
       {"b2h4l64d64:fp16:quantised=qkv/e4m3/head", "b2h4l64d64:bf16:quantised=qk/int8/token",
        "b2h4l64d64:fp16:quantised=q/int8/block128+k/int8/block64+v/e4m3/channel",
        "b2h4l64d64:fp32:quantised=v/e5m2/tensor", "b2h4l64d64:fp16:causal_top_left:page=16:quantised=kv/int8/block16",
        "b2h4l64d64:fp16:sinks:ragged:quantised=qk/e4m3/token"})
    EXPECT_EQ(to_string(parse_workload(text)), text);
  // Tensors that are alike are named together.
  EXPECT_EQ(to_string(parse_workload("l8d64:quantised=v/int8/head+q/int8/head")),
            "b1h1l8d64:fp16:quantised=qv/int8/head");
  const Workload w = parse_workload("l8d64:bf16:quantised=k/e5m2/block32");
  EXPECT_EQ(w.quantised->k, (QuantisedTensor{.dtype = Dtype::e5m2, .by = ScaleBy::block, .rows = 32}));
  EXPECT_FALSE(w.quantised->q || w.quantised->v);
  EXPECT_EQ(w.dtype_q(), Dtype::bf16);
  EXPECT_EQ(w.dtype_k(), Dtype::e5m2);
  EXPECT_TRUE(w.has_features());
}

TEST(Quantised, PartsThatCannotBeAreNamed) {
  for (const auto& [part, named] : {std::pair{"quantised=", "\"\" says no quantised tensors"},
                                    {"quantised=qkv", "\"qkv\" says no quantised tensors"},
                                    {"quantised=qkv/e4m3", "\"qkv/e4m3\" says no quantised tensors"},
                                    {"quantised=/e4m3/head", "names no tensor"},
                                    {"quantised=qo/e4m3/head", "\"qo\""},
                                    {"quantised=qq/e4m3/head", "\"qq\""},
                                    {"quantised=q/e4m3/head+q/int8/head", "each once"},
                                    {"quantised=q/fp8/head", "\"fp8\""},
                                    {"quantised=q/fp16/head", "\"fp16\""},
                                    {"quantised=q/e4m3/row", "\"row\""},
                                    {"quantised=q/e4m3/block", "\"block\""},
                                    {"quantised=q/e4m3/blockx", "\"x\" is not a number"},
                                    {"quantised=q/e4m3/block1", "blocks of 1 rows"},
                                    {"quantised=q/e4m3/block0", "blocks of 0 rows"},
                                    {"quantised=q/e4m3/block-4", "blocks of -4 rows"},
                                    {"quantised=q/e4m3/block2000000", "blocks of 2000000 rows"},
                                    {"quantised=k/e4m3/channel", "K has no scale factors by channel"},
                                    {"quantised=q/e4m3/channel", "Q has no scale factors by channel"},
                                    {"quantised=q/e4m3/head+", "says no quantised tensors"},
                                    {"ragged:quantised=k/e4m3/block64", "K is ragged"},
                                    {"ragged:page=16:quantised=q/e4m3/block64", "Q is ragged"},
                                    {"quantised=q/e4m3/head:quantised=k/e4m3/head", "twice"},
                                    {"e4m3", "\"e4m3\" is no dtype (fp16, bf16, fp32)"},
                                    {"int8", "\"int8\" is no dtype"}})
    testing_support::expect_error(ErrorCode::invalid_workload, named,
                                  [text = std::string("b2h4l64d64:") + part] { parse_workload(text); });
  Workload w = parse_workload("l8d64");
  w.dtype = Dtype::e4m3;
  testing_support::expect_error(ErrorCode::invalid_workload, "e4m3 is no dtype of O", [&] { validate(w); });
  w.dtype = Dtype::fp16;
  w.quantised.emplace();
  testing_support::expect_error(ErrorCode::invalid_workload, "none of Q, K and V is quantised", [&] { validate(w); });
  w.quantised->q = QuantisedTensor{.dtype = Dtype::bf16};
  testing_support::expect_error(ErrorCode::invalid_workload, "Q in bf16 is not quantised", [&] { validate(w); });
  w.quantised->q = QuantisedTensor{.dtype = Dtype::int8, .by = ScaleBy::token, .rows = 4};
  testing_support::expect_error(ErrorCode::invalid_workload, "Q with 4 rows a block", [&] { validate(w); });
}

TEST(Quantised, BytesAreThoseOfTheElements) {
  const double half = parse_workload("h4l512d64").bytes();
  EXPECT_EQ(parse_workload("h4l512d64:quantised=qkv/e4m3/head").bytes(), half * 5 / 8);
  EXPECT_EQ(parse_workload("h4l512d64:quantised=qk/int8/head").bytes(), half * 3 / 4);
  EXPECT_EQ(parse_workload("h4l512d64:quantised=v/int8/head").flops(), parse_workload("h4l512d64").flops());
}

TEST(Quantised, FactorsLieAsTheirGranularitySays) {
  const auto sizes = [](ScaleBy by, std::int64_t rows) {
    return scale_sizes({.dtype = Dtype::int8, .by = by, .rows = rows}, 2, 3, 100, 64);
  };
  EXPECT_EQ(sizes(ScaleBy::tensor, 1).count(), 1);
  EXPECT_EQ(sizes(ScaleBy::tensor, 1).strides(), Strides{});
  EXPECT_EQ(sizes(ScaleBy::head, 1).strides(), (Strides{3, 1, 0}));
  EXPECT_EQ(sizes(ScaleBy::block, 64).count(), 2 * 3 * 2);
  EXPECT_EQ(sizes(ScaleBy::block, 64).strides(), (Strides{6, 2, 1}));
  EXPECT_EQ(sizes(ScaleBy::token, 1).strides(), (Strides{300, 100, 1}));
  EXPECT_EQ(sizes(ScaleBy::channel, 1).strides(), (Strides{192, 64, 0}));
}

TEST(Quantised, AProgramIsBuiltForTheElementsAndRunsEveryGranularity) {
  const Workload w = parse_workload("h2l64d64:quantised=qk/int8/block16+v/e4m3/channel");
  const Problem problem = problem_of(w);
  EXPECT_EQ(to_string(problem), "fp16_d64_qint8_kint8_ve4m3");
  EXPECT_EQ(literal(problem),
            "{.element = heed::Element::fp16, .head_dim = 64, .mask = heed::MaskKind::none, .inputs = {.quantised = "
            "true, .q = heed::Element::int8, .k = heed::Element::int8, .v = heed::Element::e4m3}}");
  const DeviceFacts device = cpu_facts();
  const Variant variant = parse_variant("fwd_cpu", w, device);
  EXPECT_TRUE(variant.runs(parse_workload("h2l64d64:quantised=qk/int8/token+v/e4m3/head")));
  EXPECT_FALSE(variant.runs(parse_workload("h2l64d64:quantised=qk/int8/token+v/e5m2/head")));
  EXPECT_FALSE(variant.runs(parse_workload("h2l64d64:quantised=qk/int8/token")));
  EXPECT_FALSE(variant.runs(parse_workload("h2l64d64")));
  EXPECT_FALSE(parse_variant("fwd_cpu", parse_workload("h2l64d64"), device).runs(w));
  // And features beside them.
  const Variant all = parse_variant("fwd_cpu:unit=vector", with_features(w, kAllFeatures), device);
  EXPECT_TRUE(all.runs(w));
  EXPECT_TRUE(parse_variant("fwd_cpu", w, device).unit().find(".inputs = {.quantised = true") != std::string::npos);
}

TEST(Quantised, FamiliesWithoutItRefuseByName) {
  const Workload w = parse_workload("h2l64d64:quantised=qkv/e4m3/head");
  DeviceFacts hopper = gpu_limits("sm_90a");
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cuda || family->reads(*w.quantised)) continue;
    const auto reason = family->refuses(w, hopper);
    ASSERT_TRUE(reason) << family->name();
    EXPECT_THAT(*reason, ::testing::HasSubstr("quantised inputs (Q in e4m3, K in e4m3, V in e4m3) are not supported"));
  }
  // An architecture without FP8.
  DeviceFacts ampere = gpu_limits("sm_80");
  try {
    (void)default_family(w, ampere);
    ADD_FAILURE() << "FP8 was taken on sm_80";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("Q and K in e4m3 need compute capability 8.9 or newer"));
  }
  EXPECT_THAT(report::support_table(), ::testing::HasSubstr("| quantised inputs | Q, K and V, each in e4m3"));
}

TEST(Quantised, TheMatrixUnitDoesNotReadThem) {
  DeviceFacts device = cpu_facts();
  device.matrix_unit = true;
  const Workload w = parse_workload("h2l64d64:quantised=qkv/e4m3/head");
  EXPECT_THAT(describe(parse_variant("fwd_cpu", w, device)), ::testing::HasSubstr("unit=vector"));
  const Variant matrix = parse_variant("fwd_cpu:unit=matrix,block_m=32,block_n=32", w, device);
  EXPECT_THAT(*matrix.is_illegal(w, device), ::testing::HasSubstr("use unit=vector"));
}

}  // namespace
}  // namespace heed
