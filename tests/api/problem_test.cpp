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
  p.reserved_flags = 2;
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
  p.dtype_k = 44;
  expect_refused(p, HEED_INVALID_ARGUMENT, "44 is no heed_dtype");
  p = cpu_problem();
  p.dtype_q = HEED_BOOL;
  expect_refused(p, HEED_UNSUPPORTED, "HEED_BOOL as a type of Q, K, V or O is not supported");
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

// Sizes that are allowed one by one, whose products and sums are beyond 64 bits.
TEST(CLibrary, SizesWhoseProductsOverflowAreRefused) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  heed_problem p = cpu_problem();
  p.batch = p.heads = p.heads_kv = p.len_q = p.len_k = p.dim = p.dim_v = kMost;
  expect_refused(p, HEED_INVALID_PROBLEM, "its largest tensor would have");
  p = cpu_problem();
  p.len_q = p.heads = kMost;
  expect_refused(p, HEED_INVALID_PROBLEM, "its largest tensor would have");
  p = cpu_problem();
  p.batch = p.len_k = kMost;
  expect_refused(p, HEED_INVALID_PROBLEM, "its largest tensor would have");
  p = cpu_problem("b4h4l4d16:fp32");
  for (auto heed_strides::*stride :
       {&heed_strides::batch, &heed_strides::head, &heed_strides::row, &heed_strides::dim}) {
    p.k_strides = {256, 64, 16, 1};
    p.k_strides.*stride = std::numeric_limits<std::int64_t>::max();
    expect_refused(p, HEED_INVALID_PROBLEM, "the strides of K reach beyond 2^60 bytes");
  }
}

// A window that reaches beyond every number is one of all keys.
TEST(CLibrary, WindowsMayReachBeyondEveryNumber) {
  heed_problem p = cpu_problem("b1h1l8d16:fp32");
  p.mask = HEED_MASK_WINDOW_BOTTOM_RIGHT;
  p.window_left = p.window_right = std::numeric_limits<std::int64_t>::max();
  char text[4096];
  (void)heed_explain(&p, nullptr, text, sizeof text);
  EXPECT_THAT(std::string(text), ::testing::StartsWith("problem   b1h1l8d16:fp32\n"));
}

TEST(CLibrary, StridesThatCannotBeAreRefused) {
  heed_problem p = cpu_problem("b4h4l4d16:fp32");
  struct Tensor {
    const char* name;
    heed_strides heed_problem::*strides;
  };
  struct Stride {
    const char* name;
    std::int64_t heed_strides::*value;
  };
  for (const Tensor& tensor : {Tensor{"Q", &heed_problem::q_strides}, Tensor{"K", &heed_problem::k_strides},
                               Tensor{"V", &heed_problem::v_strides}, Tensor{"O", &heed_problem::o_strides}})
    for (const Stride& stride : {Stride{"batch", &heed_strides::batch}, Stride{"head", &heed_strides::head},
                                 Stride{"row", &heed_strides::row}, Stride{"dim", &heed_strides::dim}})
      for (const std::int64_t value : {std::int64_t{-2}, std::numeric_limits<std::int64_t>::min()}) {
        p.*tensor.strides = {256, 64, 16, 1};
        p.*tensor.strides.*stride.value = value;
        expect_refused(p, HEED_INVALID_ARGUMENT,
                       fmt::format("the {} stride of {} is {}", stride.name, tensor.name, value));
        p.*tensor.strides = {};
      }
  p.o_strides = {256, 0, 16, 1};
  expect_refused(p, HEED_INVALID_ARGUMENT, "the head stride of O is 0");
  p.o_strides = {256, 64, 15, 1};
  expect_refused(p, HEED_INVALID_ARGUMENT, "the row stride of O is 15, so that its");
  p.o_strides = {256, 16, 16, 1};
  expect_refused(p, HEED_INVALID_ARGUMENT, "would be written over one another");
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
  expect_feature("an 8-bit element type of O", [](heed_problem& p) { p.dtype_o = HEED_FP8_E4M3; });
  expect_feature("different element types", [](heed_problem& p) { p.dtype_v = HEED_BF16; });
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
