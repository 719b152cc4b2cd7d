// What a candidate sees of the machine, and what lives on when it has run.
#include "worker/runner.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <vector>

#include "testing.hpp"
#include "worker/arena_views.hpp"
#include "worker/cpu_entry.hpp"
#include "worker/executor.hpp"
#include "worker/runner_process.hpp"

namespace heed::worker {
namespace {

TEST(Runner, RunsOnThisMachine) {
  EXPECT_EQ(why_no_runner(), std::nullopt);
#if defined(__x86_64__)
  EXPECT_FALSE(runner_has_a_clock());
#endif
}

// Every register of this processor but rights to memory, whose place in the area that XRSTOR reads is there.
TEST(Runner, ClearsEveryRegister) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "XRSTOR is of x86-64";
#else
  unsigned a = 0;
  unsigned bytes = 0;
  unsigned c = 0;
  unsigned d = 0;
  ASSERT_NE(__get_cpuid_count(0xd, 0, &a, &bytes, &c, &d), 0);
  EXPECT_LE(bytes, sizeof(inside::InitialRegisters));
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  const auto plan = std::make_unique<inside::Plan>();
  inside::describe_registers(*plan);
  EXPECT_EQ(plan->register_components, (static_cast<std::uint64_t>(d) << 32 | a) & ~(std::uint64_t{1} << 9));
#endif
}

#if defined(__x86_64__)
// Code that ends by a fault where its last launch left anything, and leaves something, in two launches.
void run_twice(std::span<const unsigned char> instructions) {
  void* code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(code, MAP_FAILED);
  std::memcpy(code, instructions.data(), instructions.size());
  ::mprotect(code, 4096, PROT_READ | PROT_EXEC);
  const std::vector<CpuLaunch> launches(2, CpuLaunch{.params = {}, .blocks = 1});
  RunnerTask task;
  task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
  task.code_bytes = 4096;
  task.launches = launches;
  Runner runner(task);
  runner.begin(2);
  EXPECT_NO_THROW(runner.wait());
  ::munmap(code, 4096);
}
#endif

TEST(Runner, ComesToRestWhenItsLaunchesAreDone) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "these are instructions of x86-64";
#else
  const auto awake_us = [](std::span<const unsigned char> instructions, bool waits) {
    void* code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(code, MAP_FAILED);
    std::memcpy(code, instructions.data(), instructions.size());
    ::mprotect(code, 4096, PROT_READ | PROT_EXEC);
    const CpuLaunch launch{.params = {}, .blocks = 1};
    RunnerTask task;
    task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
    task.code_bytes = 4096;
    task.launches = {&launch, 1};
    task.threads = 2;
    Runner runner(task);
    runner.begin(1);
    if (waits) runner.wait();
    const double result = runner.awake_us();
    ::munmap(code, 4096);
    return result;
  };
  std::vector<double> honest;  // one may be long where the machine is busy
  for (int i = 0; i < 5; ++i) honest.push_back(awake_us(std::to_array<unsigned char>({0xc3}), true));
  const double spinning = awake_us(std::to_array<unsigned char>({0xeb, 0xfe}), false);
  EXPECT_LT(*std::min_element(honest.begin(), honest.end()), spinning / 10) << "ret, and jmp .";
#endif
}

TEST(Runner, ALaunchFindsNoSelectorOfTheOneBefore) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "segments are of x86-64";
#else
  // mov %es, %eax; test %eax, %eax; jnz .+8; mov $3, %eax; mov %eax, %es; ret; ud2
  run_twice(std::to_array<unsigned char>(
      {0x8c, 0xc0, 0x85, 0xc0, 0x75, 0x08, 0xb8, 0x03, 0, 0, 0, 0x8e, 0xc0, 0xc3, 0x0f, 0x0b}));
#endif
}

TEST(Runner, ALaunchFindsNoRightsOfTheOneBefore) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "protection keys are of x86-64";
#else
  const auto plan = std::make_unique<inside::Plan>();
  inside::describe_registers(*plan);
  if (plan->has_protection_keys == 0) GTEST_SKIP() << "this processor or kernel has no protection keys";
  // xor %ecx, %ecx; rdpkru; test %eax, %eax; js .+11; or $1 << 31, %eax; xor %edx, %edx; wrpkru; ret; ud2
  run_twice(std::to_array<unsigned char>({0x31, 0xc9, 0x0f, 0x01, 0xee, 0x85, 0xc0, 0x78, 0x0b, 0x0d, 0,
                                          0,    0,    0x80, 0x31, 0xd2, 0x0f, 0x01, 0xef, 0xc3, 0x0f, 0x0b}));
#endif
}

// Pages of an image, by what the launches do with the tensors that begin in them.
TEST(Runner, InputsAreReadOutputsAreWrittenAndNothingElseIsInReach) {
  alignas(4096) static std::byte image[12 * 4096];
  CpuLaunch launch{};
  launch.params.q = image + 4096 + 64;
  launch.params.k = image + 3 * 4096;
  launch.params.o = image + 6 * 4096 + 256;
  launch.params.lse = reinterpret_cast<float*>(image + 8 * 4096);
  const auto pages = [&](std::span<const CpuLaunch> launches) {
    std::string text;
    for (const PageRange& range : pages_in_reach(launches, image, sizeof image, 4096))
      text +=
          std::to_string(range.begin / 4096) + "-" + std::to_string(range.end / 4096) + (range.writable ? "w " : "r ");
    return text;
  };
  EXPECT_EQ(pages({&launch, 1}), "1-6r 6-12w ");
  // A chain: the output of one launch is the input of the next.
  CpuLaunch next = launch;
  next.params.k = launch.params.o;
  next.params.o = image + 10 * 4096;
  const std::vector<CpuLaunch> chain = {launch, next};
  EXPECT_EQ(pages(chain), "1-6r 6-12w ");
  // Tensors that share a page: what is written decides.
  launch.params.o = image + 3 * 4096 + 128;
  launch.params.lse = nullptr;
  EXPECT_EQ(pages({&launch, 1}), "1-3r 3-12w ");
}

// Of the worker's memory nothing is left: no library, no heap, no vDSO, and no writable memory but what is shared.
TEST(Runner, KeepsNothingOfTheWorkersMemory) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the instructions are written for x86-64";
#else
  constexpr unsigned char kSpin[] = {0xeb, 0xfe};
  void* code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(code, MAP_FAILED);
  std::memcpy(code, kSpin, sizeof kSpin);
  ::mprotect(code, 4096, PROT_READ | PROT_EXEC);
  const CpuLaunch launch{.params = {}, .blocks = 2};
  RunnerTask task;
  task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
  task.code_bytes = 4096;
  task.launches = {&launch, 1};
  task.threads = 2;
  task.scratch_bytes = 100;
  Runner runner(task);
  runner.begin(1);
  runner.freeze();
  std::ifstream maps("/proc/" + std::to_string(runner.pid()) + "/maps");
  int lines = 0;
  for (std::string line; std::getline(maps, line); ++lines) {
    for (const char* gone : {"vdso", "vvar", "heap", "libc", "[stack]"})
      EXPECT_EQ(line.find(gone), std::string::npos) << line;
    const bool writable = line.find(" rw") != std::string::npos;
    EXPECT_FALSE(writable && line.find("rw-s") == std::string::npos) << "private writable memory: " << line;
    EXPECT_EQ(line.find("wx"), std::string::npos) << line;
  }
  EXPECT_GE(lines, 5);
  EXPECT_LE(lines, 14);
  std::ifstream status("/proc/" + std::to_string(runner.pid()) + "/status");
  bool filtered = false;
  for (std::string line; std::getline(status, line);) filtered = filtered || line == "Seccomp:\t2";
  EXPECT_TRUE(filtered);
  EXPECT_NE(::access(("/proc/" + std::to_string(runner.pid()) + "/fd/0").c_str(), F_OK), 0) << "no file is open";
  ::munmap(code, 4096);
#endif
}

TEST(Runner, OneThatIsKilledFromOutsideIsNoCandidatesFault) {
#if defined(__x86_64__)
  constexpr unsigned char kSpin[] = {0xeb, 0xfe};
  void* code = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(code, MAP_FAILED);
  std::memcpy(code, kSpin, sizeof kSpin);
  const CpuLaunch launch{.params = {}, .blocks = 1};
  RunnerTask task;
  task.code = task.entry = reinterpret_cast<std::uintptr_t>(code);
  task.code_bytes = 4096;
  task.launches = {&launch, 1};
  Runner runner(task);
  runner.begin(1);
  ::kill(runner.pid(), SIGKILL);
  try {
    runner.wait();
    ADD_FAILURE() << "it did not end";
  } catch (const DeviceFailure& failure) {
    EXPECT_EQ(failure.kind, DeviceFailure::Kind::killed);
  }
  ::munmap(code, 4096);
#endif
}

// A mark in every place a candidate can write to and nobody looks at: the next operation finds none of them.
TEST(Runner, NothingSurvivesAnOperation) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0,
              build_entry("auto* below = static_cast<char*>(__builtin_frame_address(0)) - 50000;\n"
                          "auto* behind = reinterpret_cast<char*>(reinterpret_cast<unsigned long>(scratch) | 4095);\n"
                          "auto* out = static_cast<unsigned char*>(params->o);\n"
                          "if (block != 0) return;\n"
                          "out[0] = *below; out[1] = *behind; *below = 7; *behind = 7;"),
              small_plan(1));
  worker.seal();
  for (int i = 0; i < 2; ++i) {
    worker.run(0, 0, 4096, 8192, small_launch(), 5);
    EXPECT_EQ(arena->data()[8192], std::byte{0});
    EXPECT_EQ(arena->data()[8193], std::byte{0xff});
  }
}

#if defined(__x86_64__)
// Fails with the sentence of a worker that ran `body`.
std::string end_of(const std::string& body) {
  const auto arena = std::make_shared<Arena>(1 << 16);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0, build_entry(body), small_plan());
  worker.seal();
  Launch launch = small_launch();
  launch.k = 0;
  launch.o = 8192;
  launch.grid = {1, 1, 1};
  try {
    worker.run(0, 0, 12288, 16384, launch, 5);
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::crashed);
    return failure.what();
  }
  return "ended well";
}

TEST(Runner, EveryOtherDoorIsShut) {
  const auto forbidden = ::testing::HasSubstr("system call that the sandbox forbids");
  EXPECT_THAT(end_of("long r = 20; asm volatile(\"int $0x80\" : \"+a\"(r) : : \"memory\");"), forbidden);
  const auto call = [](const std::string& number, const std::string& arguments) {
    return "long r = " + number + "; long limit[2] = {0, 1000}; register long r10 asm(\"r10\") = " + arguments +
           "; unsigned word = 1; asm volatile(\"syscall\" : \"+a\"(r) : \"D\"(&word), \"S\"(OP), \"d\"(2), \"r\"(r10) "
           ": "
           "\"rcx\", \"r11\", \"memory\"); (void)limit;";
  };
  const auto with = [](std::string text, const char* operation) { return text.replace(text.find("OP"), 2, operation); };
  EXPECT_THAT(end_of(with(call("0x40000000 | 39", "0"), "0")), forbidden) << "x32";
  EXPECT_THAT(end_of(with(call("202", "(long)limit"), "0")), forbidden) << "a wait with a limit";
  EXPECT_THAT(end_of(with(call("202", "0"), "9")), forbidden) << "a wait for bits, whose limit is another";
  EXPECT_THAT(end_of(with(call("231", "0"), "0")), forbidden) << "exit_group";
  EXPECT_THAT(end_of(with(call("219", "0"), "0")), forbidden) << "restart_syscall";
  EXPECT_EQ(end_of(with(call("202", "0"), "1")), "ended well") << "waking";
  EXPECT_EQ(end_of(with(call("202", "0"), "0")), "ended well") << "waiting for a word that has changed";
  EXPECT_EQ(end_of("long r = 24; asm volatile(\"syscall\" : \"+a\"(r) : : \"rcx\", \"r11\", \"memory\");"),
            "ended well");
}

TEST(Runner, InputsCannotBeWritten) {
  const std::string write = "*static_cast<volatile char*>(const_cast<void*>(static_cast<const void*>(params->";
  EXPECT_THAT(end_of(write + "k))) = 1;"), ::testing::HasSubstr("signal 11"));
  EXPECT_EQ(end_of(write + "o))) = 1;"), "ended well");
  EXPECT_THAT(end_of("reinterpret_cast<volatile char*>(const_cast<heed::ForwardParams*>(params))[0] = 1;"),
              ::testing::HasSubstr("signal 11"))
      << "the list of launches";
}
#endif

// A spot check finds outputs as they are when it stops, not as they would have become.
TEST(Runner, ASpotCheckStopsInTheMiddle) {
  const auto arena = std::make_shared<Arena>(1 << 18);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0,
              build_entry("for (volatile int i = 0; i < 300000; i = i + 1) {}\n"
                          "if (block == 0) static_cast<unsigned char*>(params->o)[0] = 1;"),
              small_plan(1));
  worker.seal();
  std::vector<Launch> launches(20, small_launch());
  for (std::size_t i = 0; i < launches.size(); ++i) launches[i].o = 4096 * i;
  std::memset(arena->data(), 0, arena->size());
  worker.prepare(0, 20 * 4096, {{0, launches}}, {{0, 20 * 4096}}, {}, 10);
  for (const int stop : {1, 7, 12}) {
    const Stopped stopped = worker.spot_check(0, 0, stop, {{}, {}}, {{0, 20 * 4096}}, 20 * 4096, 20 * 4096, 10);
    EXPECT_LE(stopped.begun, 20);  // how many are complete is the machine's: a stop also comes at a moment
    const auto at = [&](int launch) { return arena->data()[20 * 4096 + launch * 4096]; };
    for (int i = 0; i < stopped.complete; ++i) EXPECT_EQ(at(i), std::byte{1}) << i;
    for (int i = std::max(stopped.begun, 10); i < 20; ++i)
      EXPECT_EQ(at(i), std::byte{0xff}) << i << "; the lead has 10";
  }
}

}  // namespace
}  // namespace heed::worker
