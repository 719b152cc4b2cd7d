// Programs that libheed builds for the very problem, with a stand-in for the driver: when plans take them, and what
// keeps them from being built or kept.
#include "compile/nvrtc.hpp"
#include "dispatch/built_programs.hpp"
#include "requirements.hpp"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::expect_refused;
using testing_support::gpu_problem;
using testing_support::StubPrograms;

// What was built for the very problem comes before the nearest program of a file.
class BuiltGpuPrograms : public StubPrograms {
 protected:
  void SetUp() override {
    StubPrograms::SetUp();
    ::setenv("HEED_BUILT_PROGRAMS", built_.c_str(), 1);
  }
  void TearDown() override { ::unsetenv("HEED_BUILT_PROGRAMS"); }

  heed_plan_info info_of(int build) {
    options_.build = build;
    if (plan_ != nullptr) heed_plan_destroy(plan_);
    plan_ = nullptr;
    EXPECT_EQ(heed_plan_create(&problem_, &options_, &plan_), HEED_OK) << heed_last_error();
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan_, &info), HEED_OK);
    return info;
  }
  static bool has_nvrtc() {
    try {
      (void)compile::nvrtc_facts();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  std::string built_ = folder_.file("built");
  heed_problem problem_ = gpu_problem("b1h8l2048d128");
  heed_plan* plan_ = nullptr;
};

TEST_F(BuiltGpuPrograms, WithoutNvrtcAPlanTakesWhatIsThere) {
  ::setenv("HEED_NVRTC", "/no/such/libnvrtc.so", 1);
  const heed_plan_info info = info_of(HEED_BUILD_WAIT);
  ::unsetenv("HEED_NVRTC");
  EXPECT_THAT(info.reason,
              ::testing::AllOf(::testing::HasSubstr("knobs differ"), ::testing::HasSubstr("libnvrtc was not found")));
  heed_plan_destroy(plan_);
}

TEST_F(BuiltGpuPrograms, WithoutAHomeAProcessKeepsThemToItself) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  for (const char* name : {"HEED_BUILT_PROGRAMS", "XDG_CACHE_HOME", "HOME"}) ::unsetenv(name);
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, ::testing::HasSubstr("it was built on this machine"));
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, ::testing::HasSubstr("it was built on this machine"));
  heed_plan_destroy(plan_);
}

TEST_F(BuiltGpuPrograms, AreTakenWhenTheyAreReady) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, ::testing::HasSubstr("knobs differ"));
  EXPECT_FALSE(std::filesystem::exists(built_));
  heed_plan_info info = info_of(HEED_BUILD_BACKGROUND);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("it is being built"));
  EXPECT_EQ(info.is_building, 1U);
  EXPECT_EQ(heed_wait_for_builds(600), 0U);
  info = info_of(HEED_BUILD_OFF);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("it was built on this machine"));
  EXPECT_THAT(info.origin, ::testing::HasSubstr(built_));
  EXPECT_EQ(info.is_building, 0U);
  heed_plan_destroy(plan_);
}

TEST_F(BuiltGpuPrograms, AreWaitedForWhereAsked) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  problem_.dim = problem_.dim_v = 80;
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, ::testing::HasSubstr("rows of 80 elements to rows of 128"));
  const heed_plan_info info = info_of(HEED_BUILD_WAIT);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("it was built on this machine"));
  EXPECT_THAT(info.variant, ::testing::HasSubstr("fwd_sm90"));
  heed_plan_destroy(plan_);
}

// A file that is not whole, and a folder that cannot be written to, cost a build and nothing else.
TEST_F(BuiltGpuPrograms, AFolderThatCannotBeUsedKeepsNothingFromRunning) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  write_file_atomically(built_, "a file in the way", ErrorCode::store);
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, ::testing::HasSubstr("it was built on this machine"));
  heed_plan_destroy(plan_);
  plan_ = nullptr;
  built_ = folder_.file("another");
  ::setenv("HEED_BUILT_PROGRAMS", built_.c_str(), 1);
  // This program's own copy of the code writes the file, so that libheed has not seen it whole.
  const DeviceFacts device = dispatch::representative_gpu("sm_90a");
  const Workload w = parse_workload("b1h8l2048d128");
  const Family& family = default_family(w, device);
  const std::string path = dispatch::BuiltPrograms(built_)
                               .build(make_variant(family, family.default_config(w, device), w), w, device)
                               ->name();
  ASSERT_TRUE(std::filesystem::exists(path));
  write_file_atomically(path, "HEEDPROG and no more", ErrorCode::store);
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, ::testing::HasSubstr("knobs differ"));
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, ::testing::HasSubstr("it was built on this machine"));
  EXPECT_GT(std::filesystem::file_size(path), 1000U);
  heed_plan_destroy(plan_);
}

TEST_F(BuiltGpuPrograms, WrongModesAreRefused) {
  options_.build = 3;
  expect_refused(problem_, HEED_INVALID_ARGUMENT, "3 is no heed_build", &options_);
}

}  // namespace
}  // namespace heed
