// What the C interface refuses before it looks for a program: every struct, size, stride and feature by its name.
#include "c_library.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::expect_status;

TEST(CLibrary, StructsOfOtherVersionsAreRefused) {
  heed_plan* plan = nullptr;
  expect_status(heed_plan_create(nullptr, nullptr, &plan), HEED_INVALID_ARGUMENT, "the problem is null");
  heed_problem p = cpu_problem();
  expect_status(heed_plan_create(&p, nullptr, nullptr), HEED_INVALID_ARGUMENT, "third argument is null");
  p.struct_size -= 8;
  expect_refused(p, HEED_INVALID_ARGUMENT, "compile with the library's own header");
  p = cpu_problem();
  p.abi_version = 99;
  expect_refused(p, HEED_INVALID_ARGUMENT, "version 99");
  p = cpu_problem();
  p.reserved[3] = 1;
  expect_refused(p, HEED_INVALID_ARGUMENT, "reserved fields");
  p = cpu_problem();
  p.flags = 1U << 31;
  expect_refused(p, HEED_INVALID_ARGUMENT, "flags 0x80000000");
  p = cpu_problem();
  p.device_type = 7;
  expect_refused(p, HEED_INVALID_ARGUMENT, "7 is no heed_device_type");
  p = cpu_problem();
  p.device = 1;
  expect_refused(p, HEED_NO_DEVICE, "no CPU device 1");
  p = cpu_problem();
  p.dtype_kv = 44;
  expect_refused(p, HEED_INVALID_ARGUMENT, "44 is no heed_dtype");
  p = cpu_problem();
  p.mask = -1;
  expect_refused(p, HEED_INVALID_ARGUMENT, "-1 is no heed_mask");
  heed_options o;
  heed_options_init(&o);
  o.struct_size = 1;
  expect_refused(cpu_problem(), HEED_INVALID_ARGUMENT, "heed_options has 1 bytes", &o);
  heed_options_init(&o);
  o.threads = -1;
  expect_refused(cpu_problem(), HEED_INVALID_ARGUMENT, "must not be negative", &o);
  heed_options_init(&o);
  o.image = "x";
  expect_refused(cpu_problem(), HEED_INVALID_ARGUMENT, "a number of bytes", &o);
  o.image_bytes = 1;
  expect_refused(cpu_problem(), HEED_INVALID_ARGUMENT, "the text of the variant", &o);
}

TEST(CLibrary, SizesThatCannotBeAreRefused) {
  const auto with = [](auto heed_problem::*field, auto value) {
    heed_problem p = cpu_problem();
    p.*field = value;
    return p;
  };
  expect_refused(with(&heed_problem::batch, -1), HEED_INVALID_PROBLEM, "batch is -1");
  expect_refused(with(&heed_problem::len_k, std::int64_t{1} << 31), HEED_INVALID_PROBLEM, "len_k is 2147483648");
  expect_refused(with(&heed_problem::dim, 0), HEED_INVALID_PROBLEM, "dim is 0");
  expect_refused(with(&heed_problem::heads_kv, 0), HEED_INVALID_PROBLEM, "do not divide");
  expect_refused(with(&heed_problem::scale, -1.0), HEED_INVALID_PROBLEM, "scale is -1");
  expect_refused(with(&heed_problem::scale, std::nan("")), HEED_INVALID_PROBLEM, "scale is nan");
  expect_refused(with(&heed_problem::scale, INFINITY), HEED_INVALID_PROBLEM, "scale");
  expect_refused(with(&heed_problem::window_left, -2), HEED_INVALID_PROBLEM, "a window of -2");
  heed_problem p = cpu_problem();
  p.heads = 6;
  p.heads_kv = 4;
  expect_refused(p, HEED_INVALID_PROBLEM, "6 query heads do not divide among 4 key heads");
}

TEST(CLibrary, StridesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b1h4l4d16:fp32");
  p.q_strides = {256, 64, -16, 1};
  expect_refused(p, HEED_INVALID_ARGUMENT, "the row stride of Q is -16");
  p.q_strides = {256, 64, 16, -2};
  expect_refused(p, HEED_INVALID_ARGUMENT, "the dim stride of Q is -2");
  p.q_strides = {};
  p.o_strides = {256, 0, 16, 1};
  expect_refused(p, HEED_INVALID_ARGUMENT, "the head stride of O is 0");
  p.o_strides = {};
  p.v_strides = {1, std::int64_t{1} << 62, 16, 1};
  expect_refused(p, HEED_INVALID_PROBLEM, "the strides of V reach beyond 2^60 bytes");
}

TEST(CLibrary, FeaturesThatNoFamilyServesAreNamed) {
  const auto expect_feature = [](const std::string& words, auto change) {
    heed_problem p = cpu_problem();
    change(p);
    expect_refused(p, HEED_UNSUPPORTED, words);
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("the nearest that"));
  };
  expect_feature("softcap", [](heed_problem& p) { p.softcap = 30; });
  expect_feature("dropout", [](heed_problem& p) { p.dropout = 0.1; });
  expect_feature("a bias", [](heed_problem& p) { p.flags = HEED_HAS_BIAS; });
  expect_feature("a sink", [](heed_problem& p) { p.flags = HEED_HAS_SINKS; });
  expect_feature("a packed batch", [](heed_problem& p) { p.flags = HEED_RAGGED; });
  expect_feature("a paged cache", [](heed_problem& p) { p.flags = HEED_PAGED; });
  expect_feature("a scale factor", [](heed_problem& p) { p.flags = HEED_SCALED; });
  expect_feature("8-bit", [](heed_problem& p) { p.dtype_kv = HEED_FP8_E4M3; });
  expect_feature("different element types", [](heed_problem& p) { p.dtype_kv = HEED_BF16; });
}

TEST(CLibrary, StatusesHaveNamesAndTheVersionIsTheProjects) {
  for (int status = HEED_OK; status <= HEED_INTERNAL; ++status)
    EXPECT_THAT(heed_status_name(status), ::testing::StartsWith("HEED_"));
  EXPECT_STREQ(heed_status_name(99), "unknown status");
  EXPECT_EQ(heed_version(), 100U);
  heed_problem_init(nullptr);
  heed_tensors_init(nullptr);
  heed_options_init(nullptr);
  heed_plan_info_init(nullptr);
}

}  // namespace
}  // namespace heed
