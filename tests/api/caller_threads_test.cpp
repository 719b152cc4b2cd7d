// CPU plans on threads of the caller, and how many threads the library's own plans have.
#include <atomic>
#include <thread>

#include "base/parallel.hpp"
#include "c_library.hpp"
#include "device/device.hpp"
#include "dispatch/program_file.hpp"
#include "jit/build.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::cpu_problem;
using testing_support::expect_refused;
using testing_support::expect_status;
using testing_support::HostCase;
using testing_support::TemporaryFolder;

using Task = void (*)(void* argument, int index);

int threads_of_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// What pools below were asked for.
struct Asked {
  std::atomic<int> calls{0};
  std::atomic<int> tasks{0};
  std::atomic<int> threads{0};
};

void serial(void* context, int tasks, Task task, void* argument) {
  auto* const asked = static_cast<Asked*>(context);
  ++asked->calls;
  asked->tasks += tasks;
  for (int i = 0; i < tasks; ++i) {
    asked->threads = std::max(asked->threads.load(), threads_of_process());
    task(argument, i);
  }
}
void backwards(void*, int tasks, Task task, void* argument) {
  for (int i = tasks; i-- > 0;) task(argument, i);
}
void parallel(void*, int tasks, Task task, void* argument) {
  std::vector<std::thread> threads;
  for (int i = 0; i < tasks; ++i) threads.emplace_back([=] { task(argument, i); });
  for (std::thread& thread : threads) thread.join();
}

heed_problem problem() {
  return cpu_problem("b2h4hkv2l101k51d16:fp32", HEED_WANTS_LSE);
}

class CallersThreads : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    jit::Builder builder({.cache_folder = testing_support::shared_cache(), .host_compiler = {}, .jobs = 2});
    dispatch::ProgramFileWriter writer("0123");
    const DeviceFacts device = cpu_facts();
    const Workload w = parse_workload("b1h2l33k50d16:fp32");
    // Blocks of 32 rows: more than threads.
    const Variant variant =
        parse_variant("fwd_cpu:unit=vector,block_m=32,tile_vectors=1,tile_rows=4,threads=1", w, device);
    const jit::BuildOutcome outcome = builder.build(jit::request_for(variant, w, device));
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    dispatch::ProgramRecord record;
    record.arch = device.arch;
    record.workload = to_string(w);
    record.variant = describe(variant);
    writer.add(record, read_file(outcome.artifact->path, ErrorCode::cache));
    write_file_atomically(file(), writer.bytes(), ErrorCode::store);
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string file() { return folder_->file("heed.programs"); }
  static heed_options options(heed_parallel_for parallel_for = nullptr, int threads = 0, void* context = nullptr) {
    static const std::string path = file();
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.threads = threads;
    o.parallel_for = parallel_for;
    o.parallel_context = context;
    return o;
  }
  static heed_plan* plan_of(const heed_options& o) {
    const heed_problem p = problem();
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
    return plan;
  }
  static void run_and_check(const heed_plan* plan, std::uint64_t seed = 1) {
    HostCase host(problem(), seed);
    const heed_tensors t = host.tensors();
    ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
    host.check();
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* CallersThreads::folder_ = nullptr;

TEST_F(CallersThreads, AreTheOnlyOnes) {
  const int before = threads_of_process();
  Asked asked;
  heed_plan* plan = plan_of(options(serial, 5, &asked));
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(threads_of_process(), before);
  run_and_check(plan);
  EXPECT_EQ(asked.calls, 1);
  EXPECT_EQ(asked.tasks, 5);
  EXPECT_EQ(asked.threads, before);
  EXPECT_EQ(threads_of_process(), before);
  heed_plan_destroy(plan);
}

TEST_F(CallersThreads, RunTasksInAnyOrder) {
  for (const heed_parallel_for pool : {heed_parallel_for(backwards), heed_parallel_for(parallel)})
    for (const int threads : {0, 1, 3, 40}) {
      heed_plan* plan = plan_of(options(pool, threads));
      for (std::uint64_t seed = 1; seed <= 5; ++seed) run_and_check(plan, seed);
      heed_plan_destroy(plan);
    }
}

TEST_F(CallersThreads, WithoutANumberThereIsATaskForEachProcessor) {
  Asked asked;
  heed_plan* plan = plan_of(options(serial, 0, &asked));
  HostCase first(problem(), 1);
  HostCase second(problem(), 2);
  const heed_tensors both[] = {first.tensors(), second.tensors()};
  double us = 0;
  EXPECT_EQ(heed_plan_run_many(plan, both, 2, nullptr, nullptr, 0, &us), HEED_OK);
  EXPECT_GT(us, 0);
  first.check();
  second.check();
  EXPECT_EQ(asked.calls, 2);
  EXPECT_EQ(asked.tasks, 2 * available_processors());
  heed_plan_destroy(plan);
}

TEST_F(CallersThreads, MayRunOnePlanSideBySide) {
  heed_plan* plan = plan_of(options(parallel, 2));
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&, seed] {
      for (int i = 0; i < 10; ++i) run_and_check(plan, seed);
    });
  for (std::thread& thread : threads) thread.join();
  heed_plan_destroy(plan);
}

// As a pool does whose threads take up other work while they wait.
struct Within {
  const heed_plan* plan = nullptr;
  bool is_inner = false;
  int runs = 0;
};
void runs_the_plan_within(void* context, int tasks, Task task, void* argument) {
  auto* const within = static_cast<Within*>(context);
  for (int i = 0; i < tasks; ++i) {
    if (!within->is_inner) {
      within->is_inner = true;
      HostCase inner(problem(), 9);
      const heed_tensors t = inner.tensors();
      EXPECT_EQ(heed_plan_run(within->plan, &t, nullptr, nullptr), HEED_OK);
      inner.check();
      ++within->runs;
      within->is_inner = false;
    }
    task(argument, i);
  }
}
TEST_F(CallersThreads, MayRunThePlanWithinThePlan) {
  Within within;
  heed_plan* plan = plan_of(options(runs_the_plan_within, 3, &within));
  within.plan = plan;
  run_and_check(plan);
  EXPECT_EQ(within.runs, 3);
  heed_plan_destroy(plan);
}

TEST_F(CallersThreads, PoolsThatBreakTheirWordAreSentences) {
  HostCase host(problem());
  const heed_tensors t = host.tensors();
  const auto refused = [&](heed_parallel_for pool, const char* words) {
    heed_plan* plan = plan_of(options(pool, 3));
    expect_status(heed_plan_run(plan, &t, nullptr, nullptr), HEED_INVALID_ARGUMENT, words);
    heed_plan_destroy(plan);
  };
  refused([](void*, int, Task, void*) {}, "parallel_for had run 0 of 3 tasks");
  refused([](void*, int, Task task, void* argument) { task(argument, 1); }, "parallel_for had run 1 of 3 tasks");
  // One that returns while tasks run and before others began.
  static std::vector<std::thread> late;
  refused(
      [](void*, int tasks, Task task, void* argument) {
        for (int i = 0; i < tasks; ++i)
          late.emplace_back([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(10 * (i + 1)));
            task(argument, i);
          });
      },
      "parallel_for had run 0 of 3 tasks");
  for (std::thread& thread : late) thread.join();
  refused([](void*, int, Task, void*) { throw std::runtime_error("no threads"); },
          "parallel_for let an exception out: no threads");
  refused([](void*, int, Task, void*) { throw 3; }, "parallel_for let an exception out");
}

TEST_F(CallersThreads, WrongOptionsAreSentences) {
  heed_options o = options(serial, -1);
  expect_refused(problem(), HEED_INVALID_ARGUMENT, "must not be negative", &o);
  o = options(nullptr, 5000);
  expect_refused(problem(), HEED_INVALID_ARGUMENT, "at most 4096", &o);
  int context = 0;
  o = options(nullptr, 2, &context);
  expect_refused(problem(), HEED_INVALID_ARGUMENT, "parallel_context is given without parallel_for", &o);
  o = options();
  o.reserved[0] = 1;
  expect_refused(problem(), HEED_INVALID_ARGUMENT, "reserved fields of heed_options", &o);
}

// The knob of the program says 1.
TEST_F(CallersThreads, TheLibrarysOwnAreAsManyAsProcessorsOrAsAskedFor) {
  for (const auto& [asked, threads] : {std::pair{0, available_processors()}, std::pair{1, 1}, std::pair{7, 7}}) {
    const int before = threads_of_process();
    heed_plan* plan = plan_of(options(nullptr, asked));
    EXPECT_EQ(threads_of_process(), before + threads);
    run_and_check(plan);
    heed_plan_destroy(plan);
    EXPECT_EQ(threads_of_process(), before);
  }
}

}  // namespace
}  // namespace heed
