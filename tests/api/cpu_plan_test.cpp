// Plans on a CPU, through the C interface alone: results, empty problems, strides, threads, and calls that are wrong.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "c_library.hpp"
#include "cpu_programs.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::expect_status;
using testing_support::HostCase;
using testing_support::TemporaryFolder;

// A file with one program of fwd_cpu for each mask, fp32 and head dim 16, built once.
class CpuPlans : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    testing_support::write_cpu_programs(
        file(), {"b1h2l33k50d16:fp32", "b1h2l33k50d16:fp32:causal_top_left", "b1h2l33k50d16:fp32:window=9"});
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string file() { return folder_->file("heed.programs"); }
  static heed_options options() {
    static const std::string path = file();
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    return o;
  }
  static heed_plan* plan_of(const heed_problem& problem) {
    const heed_options o = options();
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
    return plan;
  }
  static void run_and_check(const heed_problem& problem) {
    heed_plan* plan = plan_of(problem);
    ASSERT_NE(plan, nullptr);
    heed_plan_info info;
    heed_plan_info_init(&info);
    ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    std::vector<unsigned char> room(info.workspace_bytes + 256, 0xff);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    HostCase host(problem);
    const heed_tensors t = host.tensors();
    EXPECT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_run(plan, &t, workspace, nullptr), HEED_OK) << heed_last_error();
    host.check();
    heed_plan_destroy(plan);
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* CpuPlans::folder_ = nullptr;

heed_problem grouped() {
  return cpu_problem("b2h4hkv2l37k51d16:fp32", HEED_WANTS_LSE);
}

TEST_F(CpuPlans, MasksAndWindowsAreWhatTheySay) {
  for (int mask = HEED_MASK_NONE; mask <= HEED_MASK_WINDOW_BOTTOM_RIGHT; ++mask)
    for (const auto& [left, right] : {std::pair{-1, -1}, std::pair{7, -1}, std::pair{7, 3}}) {
      heed_problem p = grouped();
      p.mask = mask;
      p.window_left = mask == HEED_MASK_NONE ? -1 : left;
      p.window_right = mask >= HEED_MASK_WINDOW_TOP_LEFT ? right : -1;
      p.scale = mask == HEED_MASK_NONE ? 0.5 : 0;
      run_and_check(p);
    }
}

TEST_F(CpuPlans, EveryStrideIsTheCallers) {
  heed_problem p = grouped();
  p.q_strides = {4 * 37 * 16, 16, 4 * 16, 1};       // (batch, length, head, dim)
  p.k_strides = {2 * 51 * 40 + 8, 51 * 40, 40, 1};  // rows of 40, of which 16 count
  p.v_strides = {0, 51 * 16, 16, 1};                // one for all batch entries
  p.o_strides = {4 * 40 * 20, 40 * 20, 20, 1};
  run_and_check(p);
}

// Rows whose elements do not follow each other are copied.
TEST_F(CpuPlans, ElementsOfARowMayLieApart) {
  heed_problem p = grouped();
  p.q_strides = {4 * 37 * 16, 37 * 16, 1, 37};  // (batch, head, dim, length)
  p.v_strides = {2 * 51 * 48, 51 * 48, 48, 3};
  p.o_strides = {4 * 37 * 32, 37 * 32, 32, 2};
  p.flags = HEED_WANTS_LSE;
  run_and_check(p);
  heed_plan* plan = plan_of(p);
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_THAT(info.reason, ::testing::HasSubstr("are copied, for the elements of a row of Q are 37 apart"));
  EXPECT_GE(info.workspace_bytes, 4U * (2 * 4 * 37 + 2 * 2 * 51) * 16);
  HostCase host(p);
  const heed_tensors t = host.tensors();
  expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the workspace is null");
  heed_plan_destroy(plan);
  p.len_k = 0;
  run_and_check(p);
}

TEST_F(CpuPlans, NothingToComputeIsNoError) {
  heed_problem p = grouped();
  p.len_k = 0;
  run_and_check(p);
  for (auto heed_problem::*size : {&heed_problem::batch, &heed_problem::len_q}) {
    p = grouped();
    p.*size = 0;
    heed_plan* plan = plan_of(p);
    EXPECT_EQ(heed_plan_run(plan, nullptr, nullptr, nullptr), HEED_OK);
    heed_plan_destroy(plan);
  }
}

TEST_F(CpuPlans, ManyRunsAreTimedWithoutTheCaller) {
  heed_plan* plan = plan_of(grouped());
  HostCase first(grouped(), 1);
  HostCase second(grouped(), 2);
  const heed_tensors both[] = {first.tensors(), second.tensors()};
  double us = 0;
  EXPECT_EQ(heed_plan_run_many(plan, both, 2, nullptr, nullptr, 0, &us), HEED_OK);
  EXPECT_GT(us, 0);
  first.check();
  second.check();
  expect_status(heed_plan_run_many(plan, both, 2, nullptr, nullptr, 8, &us), HEED_INVALID_ARGUMENT, "flags 0x8");
  EXPECT_EQ(heed_plan_run_many(plan, nullptr, 0, nullptr, nullptr, 0, nullptr), HEED_OK);
  heed_plan_destroy(plan);
}

TEST_F(CpuPlans, ThreadsMayRunOnePlan) {
  heed_plan* plan = plan_of(grouped());
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&, seed] {
      for (int i = 0; i < 5; ++i) {
        HostCase host(grouped(), seed);
        const heed_tensors t = host.tensors();
        EXPECT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK);
        host.check();
      }
    });
  for (std::thread& thread : threads) thread.join();
  heed_plan_destroy(plan);
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEED_TEST_OF_THREADS  // lets a child of a process with threads start none
#endif
#endif
#ifndef HEED_TEST_OF_THREADS
// A child of fork has none of the library's threads: it starts some, and leaves those of its parent alone.
TEST_F(CpuPlans, AChildOfForkRunsPlansOfItsParent) {
  heed_plan* plan = plan_of(grouped());
  HostCase host(grouped());
  const heed_tensors t = host.tensors();
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK);
  const std::vector<float> wanted = host.o();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(30);
    HostCase again(grouped());
    const heed_tensors own = again.tensors();
    bool is_right = heed_plan_run(plan, &own, nullptr, nullptr) == HEED_OK && again.o() == wanted;
    heed_plan* const other = plan_of(grouped());
    is_right = is_right && heed_plan_run(other, &own, nullptr, nullptr) == HEED_OK && again.o() == wanted;
    heed_plan_destroy(other);
    heed_plan_destroy(plan);
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const pid_t idle = ::fork();  // which runs nothing
  if (idle == 0) {
    ::alarm(30);
    heed_plan_destroy(plan);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(idle, &status, 0), idle);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK);
  host.check();
  heed_plan_destroy(plan);
}

// Whatever threads of the parent have locked: a child has none of them.
TEST_F(CpuPlans, AChildOfForkRunsPlansThatItsParentRuns) {
  heed_plan* plan = plan_of(grouped());
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    HostCase host(grouped());
    const heed_tensors t = host.tensors();
    while (!is_over) (void)heed_plan_run(plan, &t, nullptr, nullptr);
  });
  HostCase host(grouped());
  const heed_tensors t = host.tensors();
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      ::_exit(heed_plan_run(plan, &t, nullptr, nullptr) == HEED_OK ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  is_over = true;
  other.join();
  heed_plan_destroy(plan);
}
#endif

TEST_F(CpuPlans, StructsOfOtherSizesAreRefused) {
  heed_plan* plan = plan_of(grouped());
  HostCase host(grouped());
  heed_tensors t = host.tensors();
  t.struct_size = 3;
  expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "heed_tensors has 3 bytes");
  heed_plan_info info;
  heed_plan_info_init(&info);
  info.struct_size = 0;
  expect_status(heed_plan_get_info(plan, &info), HEED_INVALID_ARGUMENT, "heed_plan_info_init");
  expect_status(heed_plan_get_info(plan, nullptr), HEED_INVALID_ARGUMENT, "the info is null");
  heed_plan_destroy(plan);
}

// Each tensor in turn is null, lies between two elements, and lies where another does.
TEST_F(CpuPlans, AddressesThatCannotBeAreNamed) {
  heed_plan* plan = plan_of(grouped());
  HostCase host(grouped());
  const heed_tensors good = host.tensors();
  constexpr const char* kNames[] = {"Q", "K", "V", "O", "lse"};
  const auto addresses = [](heed_tensors& t) {
    return std::array<void*, 5>{const_cast<void*>(t.q), const_cast<void*>(t.k), const_cast<void*>(t.v), t.o, t.lse};
  };
  const auto refused_at = [&](std::size_t which, void* address, const std::string& words) {
    heed_tensors t = good;
    std::array<void*, 5> all = addresses(t);
    all[which] = address;
    t.q = all[0];
    t.k = all[1];
    t.v = all[2];
    t.o = all[3];
    t.lse = static_cast<float*>(all[4]);
    expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, words);
  };
  heed_tensors t = good;
  const std::array<void*, 5> at = addresses(t);
  for (std::size_t i = 0; i < 5; ++i) {
    const std::string name = kNames[i];
    refused_at(i, nullptr, "the address of " + name + " is null");
    refused_at(i, static_cast<char*>(at[i]) + 2, name + " lies at");
  }
  // What is written overlaps nothing, if by one element.
  // O is longer than V, and what lies behind V is the allocator's choice: any name may come first.
  for (std::size_t i = 0; i < 3; ++i)
    for (const std::size_t written : {3U, 4U})
      refused_at(written, static_cast<float*>(at[i]) + 1, std::string(kNames[written]) + " overlaps ");
  refused_at(4, static_cast<float*>(at[3]) + host.o().size() - 1, "; outputs must lie apart from every other tensor");
  for (const float value : host.o()) ASSERT_EQ(value, HostCase::kUntouched) << "a refused run wrote";
  EXPECT_EQ(heed_plan_run(plan, &good, nullptr, nullptr), HEED_OK);
  expect_status(heed_plan_run(nullptr, &good, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the plan is null");
  expect_status(heed_plan_run(plan, nullptr, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the tensors are null");
  heed_plan_destroy(plan);
}

TEST_F(CpuPlans, EveryCallRefusesADestroyedPlan) {
  heed_plan* plan = plan_of(grouped());
  HostCase host(grouped());
  const heed_tensors t = host.tensors();
  heed_plan_destroy(plan);
  heed_plan_info info;
  heed_plan_info_init(&info);
  double us = 0;
  for (const heed_status status :
       {heed_plan_run(plan, &t, nullptr, nullptr), heed_plan_run_many(plan, &t, 1, nullptr, nullptr, 0, &us),
        heed_plan_prepare(plan, nullptr, nullptr), heed_plan_get_info(plan, &info)})
    expect_status(status, HEED_INVALID_ARGUMENT, "the plan was destroyed");
  heed_plan_destroy(plan);
  heed_plan_destroy(nullptr);
  // Handles of plans that were destroyed since do not make it another's.
  for (int i = 0; i < 10; ++i) heed_plan_destroy(plan_of(grouped()));
  expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, "the plan was destroyed");
}

TEST_F(CpuPlans, APlanSaysWhatRunsAndWhy) {
  heed_plan* plan = plan_of(grouped());
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_STREQ(info.family, "fwd_cpu");
  EXPECT_THAT(info.variant, ::testing::StartsWith("fwd_cpu:unit=vector"));
  EXPECT_EQ(info.origin, file());
  EXPECT_STRNE(info.reason, "");
  EXPECT_EQ(info.flops, 2.0 * 2 * 16 * 4 * 37 * 51 * 2);
  EXPECT_EQ(info.workspace_bytes, 0U);
  heed_plan_destroy(plan);
  const heed_options o = options();
  heed_problem p = grouped();
  char text[4096];
  const std::size_t all = heed_explain(&p, &o, text, sizeof text);
  EXPECT_EQ(all, std::strlen(text));
  EXPECT_THAT(text,
              ::testing::AllOf(::testing::HasSubstr("runs      fwd_cpu:unit=vector"), ::testing::HasSubstr(file())));
  EXPECT_EQ(heed_explain(&p, &o, text, 4), all);
  EXPECT_STREQ(text, "pro");
  p.flags = HEED_SCALED;
  (void)heed_explain(&p, &o, text, sizeof text);
  EXPECT_THAT(text, ::testing::HasSubstr("refused   HEED_INVALID_ARGUMENT: HEED_SCALED is given"));
  EXPECT_GT(heed_explain(nullptr, nullptr, nullptr, 0), 0U);
}

TEST_F(CpuPlans, ProgramsThatAreNotThereAreNamed) {
  heed_options o = options();
  heed_problem p = grouped();
  p.dim = p.dim_v = 24;
  expect_refused(p, HEED_UNSUPPORTED, "holds no program for fp32_d24", &o);
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr("fp32_d16_causal"));
  o.variant = "fwd_cpu:unit=vector,unroll=4";
  expect_refused(grouped(), HEED_UNSUPPORTED, "build it with heed build", &o);
  o.variant = "fwd_none";
  expect_refused(grouped(), HEED_INVALID_ARGUMENT, "unknown family", &o);
  o.variant = "fwd_sm80";
  expect_refused(grouped(), HEED_UNSUPPORTED, "cannot run", &o);
  o.variant = "fwd_cpu";
  o.image = "this is no shared object";
  o.image_bytes = 24;
  expect_refused(grouped(), HEED_BAD_PROGRAMS, "cannot be loaded", &o);
  o = options();
  p.dim_v = 513;
  expect_refused(p, HEED_UNSUPPORTED, "value dim 513 is not supported; it takes any up to 512", &o);
  o.programs = "/no/such/file";
  expect_refused(grouped(), HEED_BAD_PROGRAMS, "/no/such/file", &o);
  const testing_support::TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  o.programs = pipe.c_str();
  expect_refused(grouped(), HEED_BAD_PROGRAMS, "it is a pipe, not a file", &o);
  const testing_support::EnvironmentVariable book("HEED_BOOK", pipe.c_str());
  o = options();
  expect_refused(grouped(), HEED_BAD_PROGRAMS, "it is a pipe, not a file", &o);
}

}  // namespace
}  // namespace heed
