// GPU plans that are refused, with a stand-in for the driver: other devices, contexts and streams, drivers and GPUs
// that run no program, tensors and outputs that a program cannot read or write.
#include <initializer_list>
#include <thread>

#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::expect_refused;
using testing_support::expect_status;
using testing_support::launched;
using testing_support::Made;
using testing_support::Memory;
using testing_support::stub_problem;
using testing_support::with_image;

void* const kStreamOfGpu0 = reinterpret_cast<void*>(0x55);
void* const kStreamOfGpu1 = reinterpret_cast<void*>(0x77);

void set_current(std::uintptr_t context) {
  testing_support::of_driver<int(std::uintptr_t)>("cuCtxSetCurrent")(context);
}
constexpr std::uintptr_t kContextOfGpu0 = 0x100;
constexpr std::uintptr_t kContextOfGpu1 = 0x101;

class GpuRefusals : public testing_support::StubPrograms {
 protected:
  void TearDown() override { set_current(kContextOfGpu0); }
};

TEST_F(GpuRefusals, DevicesThatThereAreNotAreNamed) {
  heed_problem p = stub_problem();
  p.device = 3;
  expect_refused(p, HEED_NO_DEVICE, "there is no GPU 3; the driver sees 3");
  p.device = -1;
  expect_refused(p, HEED_NO_DEVICE, "there is no GPU -1; the driver sees 3");
}

// A plan between copies launches kernels of its own, a plan of a large batch is several: each refuses before any.
TEST_F(GpuRefusals, ContextsAndStreamsOfOtherDevicesAreRefused) {
  heed_problem padded = stub_problem();
  padded.dim = padded.dim_v = 80;
  heed_problem of_gpu_1 = stub_problem();
  of_gpu_1.device = 1;
  set_current(0);
  const Made plain(stub_problem());
  const Made second(of_gpu_1);
  heed_plan* copied = nullptr;
  ASSERT_EQ(heed_plan_create(&padded, &options_, &copied), HEED_OK) << heed_last_error();
  Memory memory;
  for (heed_plan* plan : {plain.plan, copied}) {
    set_current(kContextOfGpu0);
    const int before = launched();
    expect_status(heed_plan_run(plan, &memory.t, memory.workspace, kStreamOfGpu1), HEED_INVALID_ARGUMENT,
                  "the stream is of another context than the plan, which is of GPU 0");
    expect_status(heed_plan_prepare(plan, memory.workspace, kStreamOfGpu1), HEED_INVALID_ARGUMENT,
                  "the stream is of another context");
    set_current(kContextOfGpu1);
    expect_status(heed_plan_run(plan, &memory.t, memory.workspace, nullptr), HEED_INVALID_ARGUMENT,
                  "the current context is not the one that the plan was made in, of GPU 0");
    expect_status(heed_plan_prepare(plan, memory.workspace, nullptr), HEED_INVALID_ARGUMENT,
                  "the current context is not the one");
    EXPECT_EQ(launched(), before);
    EXPECT_EQ(heed_plan_run(second.plan, &memory.t, memory.workspace, kStreamOfGpu1), HEED_OK) << heed_last_error();
    set_current(kContextOfGpu0);
    EXPECT_EQ(heed_plan_run(plan, &memory.t, memory.workspace, kStreamOfGpu0), HEED_OK) << heed_last_error();
  }
  heed_plan_destroy(copied);
}

// A thread without a context takes the plan's.
TEST_F(GpuRefusals, AThreadWithoutAContextIsNotRefused) {
  heed_problem padded = stub_problem();
  padded.dim = padded.dim_v = 80;
  const Made plain(stub_problem());
  heed_plan* copied = nullptr;
  ASSERT_EQ(heed_plan_create(&padded, &options_, &copied), HEED_OK) << heed_last_error();
  for (heed_plan* plan : {plain.plan, copied})
    std::thread([plan] {
      Memory memory;
      EXPECT_EQ(heed_plan_run(plan, &memory.t, memory.workspace, nullptr), HEED_OK) << heed_last_error();
    }).join();
  heed_plan_destroy(copied);
}

TEST_F(GpuRefusals, AGpuThatNoProgramRunsIsNamed) {
  heed_problem p = stub_problem();
  p.device = 2;
  const heed_options image = with_image();
  for (const heed_options* options : std::initializer_list<const heed_options*>{&options_, &image}) {
    expect_refused(p, HEED_UNSUPPORTED, "7.5", options);
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("Stub T4"));
  }
  char text[4096];
  (void)heed_explain(&p, &options_, text, sizeof text);
  EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr("Stub T4 (sm_75)"),
                                     ::testing::HasSubstr("refused   HEED_UNSUPPORTED")));
}

TEST_F(GpuRefusals, ADriverThatCannotLoadAProgramIsToldFromTheProgram) {
  for (const char* image : {"not a cubin", "cubin of another GPU", "PTX of a newer compiler"}) {
    heed_options o = with_image();
    o.image = image;
    o.image_bytes = std::strlen(image) + 1;
    expect_refused(stub_problem(), HEED_BAD_PROGRAMS, "the driver cannot load fwd_sm90_persistent", &o);
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("it is older than the programs, or they are of"));
  }
}

TEST_F(GpuRefusals, WhatABulkCopyCannotReadIsRefused) {
  heed_problem p = stub_problem();
  p.q_strides = {4 * 128 * 65, 128 * 65, 65, 1};
  const heed_options o = with_image();
  expect_refused(p, HEED_UNSUPPORTED, "a stride of Q is 65 elements", &o);
  p = stub_problem();
  p.dim_v = 32;
  expect_refused(p, HEED_UNSUPPORTED, "the head dims of K and V are 64 and 32, which the given program cannot", &o);
}

TEST_F(GpuRefusals, TensorsLieAtMultiplesOf16Bytes) {
  heed_problem p = stub_problem();
  p.flags = HEED_WANTS_LSE;
  const Made made(p);
  Memory memory;
  const heed_tensors good = memory.t;
  const auto refused = [&](const heed_tensors& t, const char* words) {
    expect_status(heed_plan_run(made.plan, &t, memory.workspace, nullptr), HEED_INVALID_ARGUMENT, words);
    EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("its address must be a multiple of"));
  };
  const auto beyond = [](const void* at, std::ptrdiff_t bytes) {
    return const_cast<void*>(static_cast<const void*>(static_cast<const char*>(at) + bytes));
  };
  heed_tensors t = good;
  t.q = beyond(t.q, 8);
  refused(t, "Q lies at");
  t = good;
  t.k = beyond(t.k, 2);
  refused(t, "K lies at");
  t = good;
  t.v = beyond(t.v, 4);
  refused(t, "V lies at");
  t = good;
  t.o = beyond(t.o, 8);
  refused(t, "O lies at");
  t = good;
  t.lse = static_cast<float*>(beyond(t.lse, 2));
  refused(t, "lse lies at");
}

// A program for one shape may write to outputs of its own strides alone: the plan names them, and others are refused.
TEST_F(GpuRefusals, OutputsThatAProgramDoesNotWriteToAreRefused) {
  const char* const dense = "fwd_sm90_split:specialize=shape,o_layout=dense,epilogue=st_b128";
  heed_problem p = stub_problem();
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

TEST_F(GpuRefusals, AHeadDimBeyondAllProgramsIsNamed) {
  heed_problem p = stub_problem();
  p.dim = p.dim_v = 136;
  expect_refused(p, HEED_UNSUPPORTED, "holds no program for fp16_d136", &options_);
}

}  // namespace
}  // namespace heed
