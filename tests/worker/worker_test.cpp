// Whatever becomes of a worker is a failure with a kind, and a fresh worker works.
#include "worker/worker.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "measure/spot_check.hpp"
#include "testing.hpp"
#include "worker/cpu_entry.hpp"

namespace heed::worker {
namespace {

// Runs an entry once in a worker of its own and says how the worker failed.
WorkerFailure::Kind failure_of(const std::string& body, double limit_s = 5) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  try {
    worker.load(0, build_entry(body), small_plan());
    worker.seal();
    worker.run(0, 0, 4096, 8192, small_launch(), limit_s);
  } catch (const WorkerFailure& failure) {
    // The worker is gone: every further call says so instead of hanging.
    EXPECT_THROW(worker.seal(), WorkerFailure);
    return failure.kind();
  }
  ADD_FAILURE() << "the worker did not fail";
  return WorkerFailure::Kind::launch_failed;
}

TEST(Worker, RunsEveryBlockOnce) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0, build_entry("static_cast<unsigned char*>(params->o)[block] += 1;"), small_plan());
  worker.seal();
  std::memset(arena->data(), 0, 4096);
  arena->data()[100] = std::byte{42};
  worker.run(0, 0, 4096, 8192, small_launch(), 5);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(arena->data()[8192 + i], std::byte{1});
  EXPECT_EQ(arena->data()[8192 + 100], std::byte{42}) << "the rest of the image comes back as it was";
  EXPECT_EQ(arena->data()[0], std::byte{0}) << "the image itself is left alone";
}

TEST(Worker, ScratchIsPoisonedBeforeEachLaunch) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0,
              build_entry("static_cast<unsigned char*>(params->o)[block] = static_cast<unsigned char*>(scratch)[17]; "
                          "static_cast<unsigned char*>(scratch)[17] = 3;"),
              small_plan(1));
  worker.seal();
  for (int i = 0; i < 2; ++i) {
    worker.run(0, 0, 4096, 8192, small_launch(), 5);
    EXPECT_EQ(arena->data()[8192], std::byte{0xff});
  }
}

TEST(Worker, FailuresHaveKinds) {
  EXPECT_EQ(failure_of("*reinterpret_cast<volatile int*>(8) = 1;"), WorkerFailure::Kind::crashed);
  EXPECT_EQ(failure_of("__builtin_trap();"), WorkerFailure::Kind::crashed);
  EXPECT_EQ(failure_of("for (volatile int i = 0;; i = i + 1) {}", 0.5), WorkerFailure::Kind::timed_out);
#if defined(__x86_64__)
  EXPECT_EQ(failure_of("asm volatile(\"syscall\" : : \"a\"(101) : \"rcx\", \"r11\");"), WorkerFailure::Kind::crashed)
      << "a forbidden system call";
  EXPECT_EQ(failure_of("if (__builtin_ia32_rdtsc() == 0) return;"), WorkerFailure::Kind::crashed)
      << "the time-stamp counter is closed";
#endif
}

// What a worker's socket may carry besides answers.
TEST(Worker, GarbageOnTheSocketIsNoFrame) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const std::string junk(64, 'x');
  ASSERT_EQ(::write(sockets[1], junk.data(), junk.size()), static_cast<ssize_t>(junk.size()));
  nlohmann::json message;
  EXPECT_EQ(receive_frame(sockets[0], 5, /*interruptible=*/false, message), Received::garbage);
  ::close(sockets[0]);
  ::close(sockets[1]);
}

// The Command of a runner lies in front of its Plan, which begins with the address of the one and of the Status.
TEST(Worker, WritingBesideTheClaimsOfProgressIsNoticed) {
  EXPECT_EQ(
      failure_of("const char* at = reinterpret_cast<const char*>(reinterpret_cast<unsigned long>(params) / 64 * 64);"
                 "while (*reinterpret_cast<const char* const*>(at) != at - 64) at -= 64;"
                 "(*reinterpret_cast<unsigned* const*>(at + 8))[10] = 1;"),
      WorkerFailure::Kind::left_state);
}

// A candidate that leaves the rounding mode changed is found out, and the next launch finds it right again.
TEST(Worker, AChangedRoundingModeIsNoticed) {
#if defined(__x86_64__)
  EXPECT_EQ(failure_of("unsigned c; asm volatile(\"stmxcsr %0\" : \"=m\"(c)); c |= 0x6000; asm volatile(\"ldmxcsr %0\" "
                       ": : \"m\"(c));"),
            WorkerFailure::Kind::left_state);
  EXPECT_EQ(failure_of("unsigned short c; asm volatile(\"fnstcw %0\" : \"=m\"(c)); c = 0x7f; asm volatile(\"fldcw "
                       "%0\" : : \"m\"(c));"),
            WorkerFailure::Kind::left_state);
#else
  GTEST_SKIP() << "the probes are written for x86-64";
#endif
}

// Outputs kept behind the timed image, to hand them out in the next replay.
TEST(Worker, TheArenaBehindTheImageIsOutOfReach) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0, build_entry("static_cast<volatile unsigned char*>(params->o)[8192] = 1;"), small_plan());
  worker.seal();
  worker.prepare(0, 4096, {{0, {small_launch()}}}, {{0, 4}}, {}, 5);
  EXPECT_THROW(worker.time(0, 1, {{}, {}}, 5), WorkerFailure);
  Worker honest(DeviceKind::cpu, arena);
  honest.load(0, build_entry("static_cast<volatile unsigned char*>(params->o)[0] = 7;"), small_plan());
  honest.seal();
  honest.prepare(0, 4096, {{0, {small_launch()}}}, {{0, 4}}, {}, 5);
  EXPECT_EQ(honest.time(0, 1, {{}, {}}, 5).us.size(), 1U);
  (void)honest.spot_check(0, 0, 1, {{}, {}}, {{0, 4096}}, 8192, 4096, 5);
  EXPECT_EQ(arena->data()[8192], std::byte{7});
}

// Files, network, new processes, memory and the time are out of a candidate's reach; waiting is not.
TEST(Worker, SandboxForbidsTheWorld) {
#if defined(__x86_64__)
  const auto call = [](long number) {
    return failure_of(
        "long r = " + std::to_string(number) +
        "; asm volatile(\"syscall\" : \"+a\"(r) : \"D\"(0), \"S\"(0), \"d\"(0) : \"rcx\", \"r11\", \"memory\");");
  };
  for (const long number :
       {2L /*open*/, 257L /*openat*/, 41L /*socket*/, 57L /*fork*/, 56L /*clone*/, 59L /*execve*/, 62L /*kill*/,
        157L /*prctl*/, 101L /*ptrace*/, 319L /*memfd_create*/, 1L /*write*/, 9L /*mmap*/, 10L /*mprotect*/,
        12L /*brk*/, 28L /*madvise*/, 228L /*clock_gettime*/, 318L /*getrandom*/})
    EXPECT_EQ(call(number), WorkerFailure::Kind::crashed) << "system call " << number;
#else
  GTEST_SKIP() << "the probes are written for x86-64";
#endif
}

TEST(Worker, MissingBinariesAndEntriesAreRefused) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  try {
    worker.load(0, "/no/such/file.so", small_plan());
    FAIL();
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::launch_failed);
    EXPECT_THAT(failure.what(), ::testing::HasSubstr("/no/such/file.so"));
  }
  Worker another(DeviceKind::cpu, arena);
  EXPECT_THROW(another.run(0, 0, 4096, 8192, small_launch(), 5), WorkerFailure) << "nothing is loaded";
  Worker third(DeviceKind::cpu, arena);
  EXPECT_THROW(third.run(0, 0, 1 << 20, 8192, small_launch(), 5), WorkerFailure) << "outside the arena";
}

TEST(Worker, AKilledWorkerIsNoticed) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  ::kill(worker.pid(), SIGKILL);
  try {
    worker.seal();
    FAIL();
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::killed);
    EXPECT_THAT(failure.what(), ::testing::HasSubstr("signal 9"));
  }
}

// Launches of a chain see what those before them wrote; scratch memory lives on between them unless they are waited
// for.
TEST(Worker, AChainRunsInOrderOnOneImage) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(
      0,
      build_entry("auto* kept = static_cast<unsigned char*>(scratch);\n"
                  "if (block != 0) return;\n"
                  "static_cast<unsigned char*>(params->o)[0] = static_cast<const unsigned char*>(params->q)[0] + 1;\n"
                  "static_cast<unsigned char*>(params->o)[1] = kept[0]; kept[0] = 5;"),
      small_plan(1));
  worker.seal();
  std::vector<Launch> chain(3, small_launch());
  for (std::size_t n = 0; n < chain.size(); ++n) {
    chain[n].q = 16 * n;
    chain[n].o = 16 * (n + 1);
  }
  arena->data()[0] = std::byte{40};
  worker.run_chain(0, 0, 4096, 8192, chain, Follow::in_stream, 5);
  const auto after = [&](std::size_t at) { return std::to_integer<int>(arena->data()[8192 + at]); };
  EXPECT_EQ(after(48), 43);
  EXPECT_EQ(after(17), 0xff) << "scratch is poisoned before the first";
  EXPECT_EQ(after(49), 5);
  worker.run_chain(0, 0, 4096, 8192, chain, Follow::waited, 5);
  EXPECT_EQ(after(48), 43);
  EXPECT_EQ(after(49), 0xff);
}

// Each timed set has semaphores of its own, and what launches leave in them is looked at.
TEST(Worker, TimedLaunchesMustLeaveTheirCountersAtZero) {
  const Workload w = parse_workload("b1h1l16d16:fp32");
  measure::TimedSets sets(w, {.sets = 3, .launches = 6, .replays = 1}, {.workspace_bytes = 0, .semaphores = 2}, 1);
  const auto arena = std::make_shared<Arena>(sets.arena_bytes());
  const auto look = [&](int semaphores, const char* body) {
    Worker worker(DeviceKind::cpu, arena);
    LaunchPlan plan = small_plan(1);
    plan.semaphores = semaphores;
    worker.load(0, build_entry(body), plan);
    worker.seal();
    sets.prepare(worker, {{0, plan}}, 5);
    measure::SpotChecks checks(sets, worker, {0}, 0, 0, 5);
    const auto failure = checks.finish();
    return failure ? failure->comparison : verify::Comparison{};
  };
  const char* write = "float* o = static_cast<float*>(params->o); for (int i = 0; i < 256; ++i) o[i] = 0;";
  EXPECT_EQ(look(2, (std::string(write) + "if (block == 0) ++params->semaphores[1];").c_str()).finding,
            Finding::left_counters);
  EXPECT_EQ(look(2, (std::string(write) + "++params->semaphores[1]; --params->semaphores[1];").c_str()).finding,
            Finding::inexact);
  EXPECT_EQ(look(0, (std::string(write) + "if (params->semaphores != nullptr) __builtin_trap();").c_str()).finding,
            Finding::inexact);
}

// Where a spot check stops, a launch that is under way has counted some of its blocks. The next block begins from zero.
TEST(Worker, AStoppedLaunchLeavesNoCountersToTheNextBlock) {
  const Workload w = parse_workload("b1h1l16d16:fp32");
  measure::TimedSets sets(w, {.sets = 3, .launches = 6, .replays = 1}, {.workspace_bytes = 0, .semaphores = 1}, 1);
  const auto arena = std::make_shared<Arena>(sets.arena_bytes());
  Worker worker(DeviceKind::cpu, arena);
  LaunchPlan plan = small_plan(1);
  plan.semaphores = 1;
  const char* body =
      "unsigned* done = params->semaphores; if (*done != (unsigned)block) __builtin_trap(); *done = block + 1; "
      "for (volatile int i = 0; i < 300000; i = i + 1) {} if (block == 3) *done = 0;";
  worker.load(0, build_entry(body), plan);
  worker.seal();
  sets.prepare(worker, {{0, plan}}, 5);
  std::vector<ChannelFactors> factors(3, ChannelFactors(16, 1.0F));
  int under_way = 0;
  for (int stop = 1; stop <= 6; ++stop) {
    const Stopped stopped = worker.spot_check(0, 1, stop, factors, {}, sets.image_bytes(), sets.image_bytes(), 5);
    under_way += stopped.complete < stopped.begun ? 1 : 0;
    EXPECT_NO_THROW((void)worker.time(0, 1, sets.flips(2), 5));
    EXPECT_NO_THROW(worker.warm_up(0, 1, 5));
  }
  EXPECT_GT(under_way, 0);
}

// Base and candidate share each set's workspace: partial results of one must not be there when the other is timed.
TEST(Worker, ACandidateFindsNothingInTheWorkspaceThatTheBaseLeft) {
  const Workload w = parse_workload("b1h1l16d16:fp32");
  measure::TimedSets sets(w, {.sets = 3, .launches = 6, .replays = 1}, {.workspace_bytes = 64, .semaphores = 0}, 1);
  const auto arena = std::make_shared<Arena>(sets.arena_bytes());
  Worker worker(DeviceKind::cpu, arena);
  LaunchPlan plan = small_plan(1);
  plan.workspace_bytes = 64;
  worker.load(0, build_entry("static_cast<int*>(params->workspace)[3] = 7;"), plan);
  worker.load(1, build_entry("if (static_cast<int*>(params->workspace)[3] == 7) __builtin_trap();"), plan);
  worker.seal();
  sets.prepare(worker, {{0, plan}, {1, plan}}, 5);
  (void)worker.time(0, 1, sets.flips(2), 5);
  EXPECT_NO_THROW((void)worker.time(1, 1, sets.flips(2), 5));
}

// A runner cannot write to inputs, so they are compared once, after the last block; what it can write to, at every
// stop.
TEST(Worker, WhatTimedLaunchesMustNotChangeIsCompared) {
  const Workload w = parse_workload("b1h1l16d16:fp32");
  const measure::TimingPlan timing{.sets = 3, .launches = 6, .replays = 1};
  measure::TimedSets sets(w, timing, {.workspace_bytes = 0, .semaphores = 0}, 1, verify::InputClass::constant_v);
  const auto arena = std::make_shared<Arena>(sets.arena_bytes());
  const std::string mean =
      "float* o = static_cast<float*>(params->o); const float* v = static_cast<const float*>(params->v);"
      "for (int i = 0; i < 256; ++i) o[i] = v[i % 16];";
  const auto look = [&](const std::string& body, std::optional<std::uint64_t> changed) {
    Worker worker(DeviceKind::cpu, arena);
    worker.load(0, build_entry(body), small_plan(1));
    worker.seal();
    sets.prepare(worker, {{0, small_plan(1)}}, 5);
    (void)worker.time(0, 1, sets.flips(2), 5);
    if (changed) arena->data()[*changed] ^= std::byte{1};
    measure::SpotChecks checks(sets, worker, {0}, 0, 0, 5);
    const auto failure = checks.finish();
    return failure ? failure->comparison : verify::Comparison{};
  };
  EXPECT_EQ(look(mean, {}).text, "");
  const verify::Scene& scene = sets.scene(1);
  for (const verify::Place* input : {&scene.q(), &scene.k(), &scene.v()}) {
    const verify::Comparison found = look(mean, sets.offset_of(1) + input->offset + 1);
    EXPECT_EQ(found.finding, input == &scene.v() ? found.finding : Finding::input_modified) << found.text;
    EXPECT_NE(found.finding, Finding::none) << "V also shows in outputs";
  }
  EXPECT_EQ(look(mean, sets.offset_of(1)).finding, Finding::wrote_outside);
  EXPECT_EQ(look(mean, sets.offset_of(2) - 1).finding, Finding::wrote_outside);
  const verify::Comparison beyond = look(mean + "o[256] = 1;", {});
  EXPECT_EQ(beyond.finding, Finding::wrote_outside);
  EXPECT_THAT(beyond.text, ::testing::HasSubstr("stopped in replay 1"));
}

// K is other before every replay, the lead too, and what a spot check stops in is what the parent expects.
TEST(Worker, KeysAreMultipliedBeforeEveryReplay) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0,
              build_entry("if (block == 0) static_cast<float*>(params->o)[0] = "
                          "static_cast<const float*>(params->k)[0] + 100 * static_cast<const float*>(params->k)[3];"),
              small_plan(1));
  worker.seal();
  auto* image = reinterpret_cast<float*>(arena->data());
  for (int i = 0; i < 4; ++i) image[16 + i] = static_cast<float>(i + 1);
  Launch first = small_launch();
  first.k = 64;
  Launch second = first;
  second.o = 32;
  worker.prepare(0, 4096, {{0, {first, second}}}, {{0, 64}}, {{64, 4, 2, Dtype::fp32}}, 5);
  (void)worker.time(0, 1, {{-1, 1}, {2, 1}}, 5);
  const Stopped stopped = worker.spot_check(0, 1, 1, {{1, -1}, {1, 4}, {-0.5F, 1}}, {{0, 128}}, 8192, 4096, 5);
  const auto* after = reinterpret_cast<const float*>(arena->data() + 8192);
  EXPECT_EQ(after[16], 1);
  EXPECT_EQ(after[19], 4 * -4.0F);
  if (stopped.complete == 1) {
    EXPECT_EQ(after[0], 1 + 100 * -16.0F);
  }
  if (stopped.begun == 1) {
    EXPECT_EQ(after[8], -2 + 100 * -16.0F) << "the replay before it was whole";
  }
}

TEST(Worker, TimesAreOfTheRightSize) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0, build_entry("for (volatile int i = 0; i < 200000; i = i + 1) {}"), small_plan(1));
  worker.seal();
  worker.prepare(0, 4096, {{0, {small_launch(), small_launch()}}}, {{0, 4}}, {}, 5);
  worker.warm_up(0, 5, 5);
  const Worker::Times times = worker.time(0, 3, {{}, {}, {}, {}}, 5);
  ASSERT_EQ(times.us.size(), 3U);
  for (const double us : times.us) {
    EXPECT_GT(us, 4 * 20.0) << "four blocks of 200,000 steps cannot take less";
    EXPECT_LE(us * 2, times.wall_us);
  }
}

TEST(Worker, ACpuHasNoCountersToRead) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  try {
    (void)worker.count(0, 0, 4096, small_launch(), {}, {{"cycles", {"sm__cycles_elapsed.max"}}}, 5);
    ADD_FAILURE() << "counted";
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::launch_failed);
    EXPECT_THAT(failure.what(), ::testing::HasSubstr("NVIDIA GPUs only"));
  }
}

TEST(Protocol, CountersSurviveTheWay) {
  CounterReading reading;
  reading.schedule.chip = "GH100";
  reading.schedule.metrics = {{"cycles", "sm__cycles_elapsed.max"}};
  reading.schedule.missing = {"stall_gmma"};
  reading.schedule.passes = 8;
  reading.values = {{"cycles", 12345.5}};
  const CounterReading back = reading_from_json(nlohmann::json::parse(reading_to_json(reading).dump()));
  EXPECT_EQ(back.schedule.chip, "GH100");
  EXPECT_EQ(back.schedule.metrics, reading.schedule.metrics);
  EXPECT_EQ(back.schedule.missing, reading.schedule.missing);
  EXPECT_EQ(back.schedule.passes, 8U);
  EXPECT_EQ(back.values, reading.values);
}

TEST(Arena, RefusesMoreMemoryThanThereIs) {
  testing_support::expect_error(ErrorCode::unsupported, "of host memory", [] { Arena arena(std::uint64_t{1} << 46); });
}

TEST(Cuda, WithoutAGpuSaysSo) {
  if (probe_cuda().facts) GTEST_SKIP() << "this machine has a GPU";
  testing_support::expect_error(ErrorCode::no_device, "no GPU can be used", [] { choose_device(DeviceChoice::cuda); });
  EXPECT_EQ(choose_device(DeviceChoice::automatic).kind, DeviceKind::cpu);
  testing_support::expect_error(ErrorCode::usage, "unknown device", [] { parse_device_choice("gpu"); });
}

}  // namespace
}  // namespace heed::worker
