// Programs built in the process: several threads that ask for one at a time get the same.
#include "dispatch/built_programs.hpp"

#include <latch>
#include <thread>

#include "compile/nvrtc.hpp"
#include "dispatch/covering.hpp"
#include "requirements.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

bool has_nvrtc() {
  try {
    (void)compile::nvrtc_facts();
    return true;
  } catch (const Error&) {
    return false;
  }
}

class BuiltProgramsTest : public ::testing::Test {
 protected:
  [[nodiscard]] Variant variant() const {
    const Family& family = find_family("fwd_sm80");
    return make_variant(family, family.default_config(workload_, device_), workload_);
  }
  // What each of several threads gets that ask at once, or its error.
  template <typename Ask>
  static std::vector<std::string> errors_of_threads(std::size_t count, const Ask& ask) {
    std::vector<std::string> errors(count);
    std::latch begin(static_cast<std::ptrdiff_t>(count));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        begin.arrive_and_wait();
        try {
          ask(i);
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  static constexpr std::size_t kThreads = 4;
  testing_support::TemporaryFolder folder_;
  BuiltPrograms programs_{folder_.path() / "programs"};
  DeviceFacts device_ = representative_gpu("sm_80");
  Workload workload_ = parse_workload("b1h8l512d64");
};

TEST_F(BuiltProgramsTest, ThreadsThatAskAtOnceGetOneBuild) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  std::vector<std::shared_ptr<const ProgramFile>> files(kThreads);
  programs_.start(variant(), workload_, device_);  // the thread in the background is one of them
  for (const std::string& error : errors_of_threads(kThreads, [&](std::size_t i) {
         files[i] = BuiltPrograms(programs_.folder()).build(variant(), workload_, device_);
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(BuiltPrograms::wait(600), 0U);
  for (const auto& file : files) EXPECT_EQ(file, files[0]) << "built twice";
  EXPECT_EQ(programs_.find(variant(), "sm_80"), files[0]);
  EXPECT_EQ(programs_.progress(variant(), "sm_80").failure, "");
}

TEST_F(BuiltProgramsTest, EveryThreadIsToldThatABuildFailed) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  DeviceFacts unknown = device_;
  unknown.arch = "sm_1";
  for (int again = 0; again < 2; ++again)
    for (const std::string& error :
         errors_of_threads(kThreads, [&](std::size_t) { (void)programs_.build(variant(), workload_, unknown); }))
      EXPECT_THAT(error, ::testing::HasSubstr("does not build"));
  EXPECT_EQ(programs_.find(variant(), "sm_1"), nullptr);
}

TEST_F(BuiltProgramsTest, ProgramsOfSeveralProblemsAreBuiltSideBySide) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const std::vector<Workload> workloads = {parse_workload("b1h8l512d64:bf16"), parse_workload("b1h8l512d64")};
  std::vector<std::shared_ptr<const ProgramFile>> files(workloads.size());
  for (const std::string& error : errors_of_threads(workloads.size(), [&](std::size_t i) {
         const Family& family = find_family("fwd_sm80");
         const Workload& w = workloads[i];
         files[i] = programs_.build(make_variant(family, family.default_config(w, device_), w), w, device_);
       }))
    EXPECT_EQ(error, "");
  EXPECT_NE(files[0], files[1]);
}

}  // namespace
}  // namespace heed::dispatch
