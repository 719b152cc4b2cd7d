// Plans on a GPU with a stand-in for the driver: what is launched, which maps are encoded and when, contexts and
// streams.
#include <dlfcn.h>

#include "base/files.hpp"
#include "c_library.hpp"
#include "dispatch/covering.hpp"
#include "dispatch/program_file.hpp"
#include "kernels/contract.hpp"
#include "padding/padding.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::expect_refused;
using testing_support::expect_status;

constexpr const char* kPersistent = "fwd_sm90_persistent";
constexpr char kImage[] = "cubin of nothing";

template <typename Function>
Function* of_driver(const char* name) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(driver, name));
}
int encoded() {
  return of_driver<int()>("stub_encoded")();
}
int launched() {
  return of_driver<int()>("stub_launched")();
}

heed_problem gpu_problem() {
  heed_problem p;
  heed_problem_init(&p);
  p.device_type = HEED_CUDA;
  p.batch = 2;
  p.heads = 4;
  p.heads_kv = 2;
  p.len_q = 128;
  p.len_k = 192;
  return p;
}

heed_options with_image(const char* variant = kPersistent) {
  heed_options o;
  heed_options_init(&o);
  o.variant = variant;
  o.image = kImage;
  o.image_bytes = sizeof kImage;
  return o;
}

struct Made {
  explicit Made(const heed_problem& problem, const char* variant = kPersistent) {
    const heed_options o = with_image(variant);
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
  }
  ~Made() { heed_plan_destroy(plan); }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  heed_plan* plan = nullptr;
};

// Host memory that a launch of the stand-in writes to.
struct Memory {
  Memory() : bytes(std::size_t{8} << 20, 0) {
    heed_tensors_init(&t);
    const std::size_t begin = (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
    unsigned char* at = bytes.data() + begin;
    t.q = at;
    t.k = at + (1 << 20);
    t.v = at + (2 << 20);
    t.o = at + (3 << 20);
    t.lse = reinterpret_cast<float*>(at + (4 << 20));
    workspace = at + (5 << 20);
  }
  [[nodiscard]] ForwardParams seen() const {
    ForwardParams p;
    std::memcpy(&p, t.o, sizeof p);
    return p;
  }
  [[nodiscard]] std::vector<std::uint64_t> map_of_k() const {
    std::vector<std::uint64_t> words(8);
    std::memcpy(words.data(), static_cast<const char*>(t.o) + sizeof(ForwardParams), 64);
    return words;
  }
  std::vector<unsigned char> bytes;
  heed_tensors t;
  void* workspace;
};

TEST(GpuPlans, LaunchWhatTheProblemSays) {
  heed_problem p = gpu_problem();
  p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  p.scale = 0.25;
  p.flags = HEED_WANTS_LSE;
  p.k_strides = {2 * 192 * 64, 64, 2 * 64, 1};
  const Made made(p);
  Memory memory;
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK) << heed_last_error();
  const ForwardParams seen = memory.seen();
  EXPECT_EQ(seen.k, memory.t.k);
  EXPECT_EQ(seen.lse, memory.t.lse);
  EXPECT_EQ(seen.batch, 2);
  EXPECT_EQ(seen.group_size, 2);
  EXPECT_EQ(seen.len_k, 192);
  EXPECT_EQ(seen.right_offset, 64);
  EXPECT_EQ(seen.scale, 0.25F);
  EXPECT_EQ(seen.q_strides.head, 128 * 64);
  EXPECT_EQ(seen.k_strides.row, 2 * 64);
  EXPECT_EQ(memory.map_of_k(), (std::vector<std::uint64_t>{reinterpret_cast<std::uint64_t>(memory.t.k), 64, 192, 2, 2,
                                                           2 * 2 * 64, 2 * 64, 2 * 2 * 192 * 64}));
}

TEST(GpuPlans, KeysThatNoRowSeesAreCutOff) {
  heed_problem p = gpu_problem();
  p.len_q = 16;
  p.mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  p.window_left = 15;
  const Made made(p);
  Memory memory;
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(memory.seen().len_k, 31);
  EXPECT_EQ(memory.seen().k, static_cast<const char*>(memory.t.k) + 161 * 64 * 2);
}

TEST(GpuPlans, MapsAreEncodedWhenAddressesChange) {
  const Made made(gpu_problem());
  Memory memory;
  Memory other;
  const int before = encoded();
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  const int each = encoded() - before;
  EXPECT_GE(each, 3);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + each) << "encoded again";
  ASSERT_EQ(heed_plan_run(made.plan, &other.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + 2 * each);
  const Made second(gpu_problem());
  ASSERT_EQ(heed_plan_run(second.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(encoded(), before + 3 * each) << "another plan has maps of its own";
}

TEST(GpuPlans, DependentLaunchesAreAskedFor) {
  const Made made(gpu_problem(), "fwd_sm90_persistent:pdl_trigger=last_load,cluster=1");
  Memory memory;
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  EXPECT_EQ(info.can_be_dependent, 1U);
  EXPECT_STREQ(info.origin, "given");
  const auto attributes = of_driver<unsigned()>("stub_attributes");
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  EXPECT_EQ(attributes(), 0U);
  ASSERT_EQ(heed_plan_run_many(made.plan, &memory.t, 1, memory.workspace, nullptr, HEED_RUN_DEPENDENT, nullptr),
            HEED_OK);
  EXPECT_EQ(attributes(), 1U);
  const Made plain(gpu_problem(), "fwd_sm80");
  expect_status(heed_plan_run_many(plain.plan, &memory.t, 1, memory.workspace, nullptr, HEED_RUN_DEPENDENT, nullptr),
                HEED_INVALID_ARGUMENT, "cannot be launched as a dependent");
}

TEST(GpuPlans, ContextsAndStreamsOfOtherDevicesAreRefused) {
  const auto set_current = of_driver<int(std::uintptr_t)>("cuCtxSetCurrent");
  set_current(0);
  const Made made(gpu_problem());
  Memory memory;
  expect_status(heed_plan_run(made.plan, &memory.t, memory.workspace, reinterpret_cast<void*>(0x77)),
                HEED_INVALID_ARGUMENT, "the stream is of another context");
  EXPECT_EQ(heed_plan_run(made.plan, &memory.t, memory.workspace, reinterpret_cast<void*>(0x55)), HEED_OK);
  set_current(0x101);
  expect_status(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_INVALID_ARGUMENT,
                "the current context is not the one");
  heed_problem p = gpu_problem();
  p.device = 1;
  const Made second(p);
  EXPECT_EQ(heed_plan_run(second.plan, &memory.t, memory.workspace, nullptr), HEED_OK);
  p.device = 2;
  expect_refused(p, HEED_NO_DEVICE, "there is no GPU 2; the driver sees 2");
  set_current(0x100);
}

TEST(GpuPlans, WorkspacesAreClearedAndAsked) {
  heed_problem p = gpu_problem();
  p.len_q = 1;
  p.len_k = 1024;
  const Made made(p, "fwd_sm90_decode");
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  ASSERT_GT(info.workspace_zeroed, 0U);
  ASSERT_LE(info.workspace_zeroed, info.workspace_bytes);
  std::vector<unsigned char> bytes(info.workspace_bytes + 256, 0xaa);
  void* const workspace = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
  Memory memory;
  expect_status(heed_plan_run(made.plan, &memory.t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the workspace is null");
  expect_status(heed_plan_run(made.plan, &memory.t, static_cast<char*>(workspace) + 8, nullptr), HEED_INVALID_ARGUMENT,
                "a multiple of 256");
  ASSERT_EQ(heed_plan_prepare(made.plan, workspace, nullptr), HEED_OK);
  for (std::size_t i = 0; i < info.workspace_zeroed; ++i) ASSERT_EQ(static_cast<unsigned char*>(workspace)[i], 0);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(made.plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 1);
  EXPECT_EQ(memory.seen().semaphores, workspace);
}

TEST(GpuPlans, RowsWithoutKeysAreWrittenWithoutAKernel) {
  heed_problem p = gpu_problem();
  p.len_k = 0;
  p.flags = HEED_WANTS_LSE;
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, nullptr, &plan), HEED_OK) << heed_last_error();
  Memory memory;
  std::memset(memory.t.o, 0xff, 2 * 4 * 128 * 64 * 2);
  const int before = launched();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, nullptr, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before);
  for (int i = 0; i < 2 * 4 * 128 * 64 * 2; ++i) ASSERT_EQ(static_cast<const char*>(memory.t.o)[i], 0);
  for (int i = 0; i < 2 * 4 * 128; ++i) ASSERT_EQ(memory.t.lse[i], -INFINITY);
  heed_plan_destroy(plan);
}

// A program for one shape may write to outputs of its own strides alone: the plan names them, and others are refused.
TEST(GpuPlans, OutputsThatAProgramDoesNotWriteToAreRefused) {
  const char* const dense = "fwd_sm90_split:specialize=shape,o_layout=dense,epilogue=st_b128";
  heed_problem p = gpu_problem();
  const Made made(p, dense);
  ASSERT_NE(made.plan, nullptr);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(made.plan, &info), HEED_OK);
  EXPECT_EQ(info.o_strides.batch, 4 * 128 * 64);
  EXPECT_EQ(info.o_strides.row, 64);
  p.o_strides = {4 * 128 * 128, 128 * 128, 128, 1};
  const heed_options o = with_image(dense);
  expect_refused(p, HEED_UNSUPPORTED, "o_layout=strided", &o);
}

TEST(GpuPlans, WhatABulkCopyCannotReadIsRefused) {
  heed_problem p = gpu_problem();
  p.q_strides = {4 * 128 * 65, 128 * 65, 65, 1};
  const heed_options o = with_image();
  expect_refused(p, HEED_UNSUPPORTED, "a stride of Q is 65 elements", &o);
  p = gpu_problem();
  p.dim_v = 32;
  expect_refused(p, HEED_UNSUPPORTED, "the head dims of K and V are 64 and 32, which the given program cannot", &o);
  const Made made(gpu_problem());
  Memory memory;
  memory.t.q = static_cast<const char*>(memory.t.q) + 8;
  expect_status(heed_plan_run(made.plan, &memory.t, memory.workspace, nullptr), HEED_INVALID_ARGUMENT,
                "a multiple of 16");
  heed_options bad = with_image();
  bad.image = "not a cubin";
  bad.image_bytes = 12;
  expect_refused(gpu_problem(), HEED_BAD_PROGRAMS, "the driver cannot load fwd_sm90_persistent", &bad);
}

// A file with a program for head dim 128 and the copies.
class PaddedGpuPlans : public ::testing::Test {
 protected:
  void SetUp() override {
    dispatch::ProgramFileWriter writer("0123");
    const DeviceFacts device = dispatch::representative_gpu("sm_90a");
    const Workload w = parse_workload("b1h1l128d128");
    const Family& family = find_family(kPersistent);
    dispatch::ProgramRecord record;
    record.arch = "sm_90a";
    record.workload = to_string(w);
    record.variant = describe(make_variant(family, family.default_config(w, device), w));
    record.origin = "rule";
    writer.add(record, kImage);
    record.workload = {};
    record.variant = padding::kCopyProgram;
    writer.add(record, kImage);
    write_file_atomically(path_, writer.bytes(), ErrorCode::store);
    heed_options_init(&options_);
    options_.programs = path_.c_str();
  }
  testing_support::TemporaryFolder folder_;
  std::string path_ = folder_.file("heed.programs");
  heed_options options_{};
};

TEST_F(PaddedGpuPlans, RowsAreCopiedToThoseOfTheProgramAndBack) {
  heed_problem p = gpu_problem();
  p.dim = 80;
  p.dim_v = 72;
  p.q_strides = {4 * 128 * 81, 128 * 81, 81, 1};
  p.o_strides = {4 * 128 * 72, 72, 4 * 72, 1};
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &options_, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("rows of 80 and 72 elements to rows of 128"));
  EXPECT_EQ(info.can_be_dependent, 0U);
  Memory memory;
  auto* const q = static_cast<unsigned short*>(const_cast<void*>(memory.t.q));
  for (int i = 0; i < 2 * 4 * 128 * 81; ++i) q[i] = static_cast<unsigned short>(i);
  std::vector<unsigned char> room(info.workspace_bytes + 256, 0xee);
  unsigned char* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
  ASSERT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
  const int before = launched();
  ASSERT_EQ(heed_plan_run(plan, &memory.t, workspace, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(launched(), before + 3) << "the copies of Q, K and V, the kernel, the copy of O";
  // The stand-in writes the parameters to the padded output, whose first 72 elements came back.
  const auto* const o = static_cast<const unsigned char*>(memory.t.o);
  ForwardParams seen{};
  std::memcpy(&seen, o, 72 * 2);
  ASSERT_GE(static_cast<const unsigned char*>(seen.o), workspace);
  std::memcpy(&seen, seen.o, sizeof seen);
  EXPECT_FLOAT_EQ(seen.scale, static_cast<float>(1 / std::sqrt(80.0)));
  EXPECT_EQ(seen.q_strides.row, 128);
  const auto* const padded = static_cast<const unsigned short*>(seen.q);
  const auto line = static_cast<std::size_t>((1 * 4 + 3) * 128 + 17);
  for (std::size_t c = 0; c < 128; ++c)
    ASSERT_EQ(padded[line * 128 + c], c < 80 ? static_cast<unsigned short>(line * 81 + c) : 0) << c;
  heed_plan_destroy(plan);
}

TEST_F(PaddedGpuPlans, AHeadDimBeyondAllProgramsIsRefused) {
  heed_problem p = gpu_problem();
  p.dim = p.dim_v = 136;
  expect_refused(p, HEED_UNSUPPORTED, "holds no program for fp16_d136", &options_);
}

}  // namespace
}  // namespace heed
