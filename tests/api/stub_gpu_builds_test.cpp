// Programs that libheed builds for the very problem, with a stand-in for the driver: when plans take them, and what
// keeps them from being built or kept.
#include "compile/nvrtc.hpp"
#include "dispatch/built_programs.hpp"
#include "requirements.hpp"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::EnvironmentVariable;
using testing_support::expect_refused;
using testing_support::gpu_problem;
using testing_support::kImage;
using testing_support::StubPrograms;

// What was built for the very problem comes before the nearest program of a file.
class BuiltGpuPrograms : public StubPrograms {
 protected:
  ~BuiltGpuPrograms() override { heed_plan_destroy(plan_); }

  heed_plan_info info_of(int build) {
    options_.build = build;
    heed_plan_destroy(plan_);
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
  // This program's own copy of the code builds it, so that libheed has not seen it. @return its file
  [[nodiscard]] std::string built_by_another() const {
    const DeviceFacts device = dispatch::representative_gpu("sm_90a");
    const Workload w = parse_workload(kShape);
    const Family& family = default_family(w, device);
    return dispatch::BuiltPrograms(built_)
        .build(make_variant(family, family.default_config(w, device), w), w, device)
        ->name();
  }

  static constexpr const char* kShape = "b1h8l2048d128";
  static constexpr const char* kBuilt = "it was built on this machine";
  static constexpr const char* kOfFile = "knobs differ";
  std::string built_ = folder_.file("built");
  EnvironmentVariable folder_of_built_{"HEED_BUILT_PROGRAMS", built_};
  heed_problem problem_ = gpu_problem(kShape);
  heed_plan* plan_ = nullptr;
};

TEST_F(BuiltGpuPrograms, WithoutNvrtcAPlanTakesWhatIsThere) {
  const EnvironmentVariable none("HEED_NVRTC", "/no/such/libnvrtc.so");
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, AllOf(HasSubstr(kOfFile), HasSubstr("libnvrtc was not found")));
  EXPECT_THAT(info_of(HEED_BUILD_BACKGROUND).reason, HasSubstr(kOfFile));
  EXPECT_EQ(heed_wait_for_builds(600), 0U);
  const heed_plan_info info = info_of(HEED_BUILD_BACKGROUND);
  EXPECT_THAT(info.reason, AllOf(HasSubstr(kOfFile), HasSubstr("libnvrtc was not found")));
  EXPECT_EQ(info.is_building, 0U) << "what failed is not started again";
}

TEST_F(BuiltGpuPrograms, AreTakenWhenTheyAreReady) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, HasSubstr(kOfFile));
  EXPECT_FALSE(std::filesystem::exists(built_));
  heed_plan_info info = info_of(HEED_BUILD_BACKGROUND);
  EXPECT_THAT(info.reason, HasSubstr("it is being built"));
  EXPECT_EQ(info.is_building, 1U);
  EXPECT_EQ(heed_wait_for_builds(600), 0U);
  info = info_of(HEED_BUILD_OFF);
  EXPECT_THAT(info.reason, HasSubstr(kBuilt));
  EXPECT_THAT(info.origin, HasSubstr(built_));
  EXPECT_EQ(info.is_building, 0U);
}

TEST_F(BuiltGpuPrograms, AreWaitedForWhereAsked) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  problem_.dim = problem_.dim_v = 80;
  EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, HasSubstr("rows of 80 elements to rows of 128"));
  const heed_plan_info info = info_of(HEED_BUILD_WAIT);
  EXPECT_THAT(info.reason, HasSubstr(kBuilt));
  EXPECT_THAT(info.variant, HasSubstr("fwd_sm90"));
}

TEST_F(BuiltGpuPrograms, WithoutAHomeAProcessKeepsThemToItself) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const EnvironmentVariable no_folder("HEED_BUILT_PROGRAMS", std::nullopt);
  const EnvironmentVariable no_cache("XDG_CACHE_HOME", std::nullopt);
  const EnvironmentVariable no_home("HOME", std::nullopt);
  for (const int build : {HEED_BUILD_WAIT, HEED_BUILD_OFF}) {
    const heed_plan_info info = info_of(build);
    EXPECT_THAT(info.reason, HasSubstr(kBuilt));
    EXPECT_FALSE(std::filesystem::exists(info.origin)) << info.origin;
  }
}

// In /proc no user makes a file or a folder, the superuser included, whom permissions do not bind.
TEST_F(BuiltGpuPrograms, AHomeThatCannotBeWrittenToKeepsNothingFromRunning) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const EnvironmentVariable no_folder("HEED_BUILT_PROGRAMS", std::nullopt);
  const EnvironmentVariable no_cache("XDG_CACHE_HOME", std::nullopt);
  {
    const EnvironmentVariable home("HOME", "/proc/self");
    for (const int build : {HEED_BUILD_WAIT, HEED_BUILD_OFF}) {
      const heed_plan_info info = info_of(build);
      EXPECT_THAT(info.reason, HasSubstr(kBuilt));
      EXPECT_THAT(info.origin, ::testing::StartsWith("/proc/self/.cache/heed/programs/"));
      EXPECT_FALSE(std::filesystem::exists(info.origin));
    }
  }
  const EnvironmentVariable folder_that_is_there("HEED_BUILT_PROGRAMS", "/proc/self");
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, HasSubstr(kBuilt));
  write_file_atomically(built_, "a file in the way", ErrorCode::store);
  const EnvironmentVariable file_in_the_way("HEED_BUILT_PROGRAMS", built_);
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, HasSubstr(kBuilt));
}

TEST_F(BuiltGpuPrograms, OfAnotherProcessAreTaken) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const std::string path = built_by_another();
  const heed_plan_info info = info_of(HEED_BUILD_OFF);
  EXPECT_THAT(info.reason, HasSubstr(kBuilt));
  EXPECT_EQ(info.origin, path);
}

// A file that is not the program's, whole and unaltered, costs a build and nothing else.
TEST_F(BuiltGpuPrograms, FilesThatAreDamagedAreBuiltAgain) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const std::string path = built_by_another();
  const std::string whole = read_file(path, ErrorCode::store);
  const auto with_byte_changed = [&](std::size_t at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  dispatch::ProgramRecord other = dispatch::ProgramFile::open(path)->records().at(0);
  other.variant = "fwd_sm80";
  dispatch::ProgramFileWriter of_another("0123");
  of_another.add(other, kImage);
  const dispatch::ProgramFileWriter of_none("0123");
  for (const std::string& bytes :
       {std::string(), whole.substr(0, 20), whole.substr(0, whole.size() - 1), with_byte_changed(60),
        with_byte_changed(whole.size() - 1), of_another.bytes(), of_none.bytes()}) {
    write_file_atomically(path, bytes, ErrorCode::store);
    EXPECT_THAT(info_of(HEED_BUILD_OFF).reason, HasSubstr(kOfFile)) << bytes.size() << " bytes";
  }
  EXPECT_THAT(info_of(HEED_BUILD_WAIT).reason, HasSubstr(kBuilt));
  EXPECT_EQ(std::filesystem::file_size(path), whole.size());
}

TEST_F(BuiltGpuPrograms, WrongModesAreRefused) {
  options_.build = 3;
  expect_refused(problem_, HEED_INVALID_ARGUMENT, "3 is no heed_build", &options_);
  options_.build = HEED_BUILD_OFF;
  options_.debug = 2;
  expect_refused(problem_, HEED_INVALID_ARGUMENT, "debug is 2; give 1", &options_);
}

}  // namespace
}  // namespace heed
