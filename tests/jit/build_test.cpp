#include "jit/build.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "compile/embedded.hpp"
#include "device/device.hpp"
#include "jit/builders.hpp"
#include "jit/elf.hpp"
#include "requirements.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

TEST(Nvrtc, OldVersionsSayWhatTheyCost) {
  EXPECT_THAT(std::string(nvrtc_caveat(12, 4)), ::testing::HasSubstr("from 12.8 on"));
  EXPECT_THAT(std::string(nvrtc_caveat(12, 6)), ::testing::HasSubstr("1.7 times as fast"));
  EXPECT_EQ(nvrtc_caveat(12, 8), "");
  EXPECT_EQ(nvrtc_caveat(13, 0), "");
}

TEST(Builder, BuildsOnceAndThenFindsItInTheCache) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome first = builder.build(cpu_request(kTiny));
  ASSERT_TRUE(first.artifact) << first.log;
  EXPECT_FALSE(first.artifact->from_cache);
  EXPECT_TRUE(first.artifact->violation.empty()) << first.artifact->violation;
  EXPECT_GT(first.artifact->resources.code_bytes, 0);
  const BuildOutcome second = builder.build(cpu_request(kTiny));
  EXPECT_TRUE(second.artifact->from_cache);
  EXPECT_EQ(second.artifact->machine_code, first.artifact->machine_code);
  EXPECT_EQ(second.artifact->resources, first.artifact->resources);
  EXPECT_FALSE(builder.build(cpu_request(kTiny), /*fresh=*/true).artifact->from_cache);
}

// Of entries that older ones wrote, and of such as somebody edited.
TEST(Builder, TheCompilersTimeIsKeptWithTheBinary) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome built = builder.build(cpu_request(kTiny));
  ASSERT_TRUE(built.artifact) << built.log;
  EXPECT_GT(built.artifact->processor_s, 0);
  const std::string record = std::filesystem::path(built.artifact->path).replace_extension("json").string();
  auto json = nlohmann::json::parse(read_file(record, ErrorCode::cache));
  const auto found_with = [&](const nlohmann::json& value) {
    if (value.is_null())
      json.erase("processor_s");
    else
      json["processor_s"] = value;
    write_file_atomically(record, json.dump(), ErrorCode::cache);
    return *builder.build(cpu_request(kTiny)).artifact;
  };
  EXPECT_EQ(found_with(built.artifact->processor_s).processor_s, built.artifact->processor_s);
  EXPECT_EQ(found_with(-3).processor_s, 0);
  EXPECT_EQ(found_with(nullptr).processor_s, 0);
  EXPECT_TRUE(found_with(nullptr).from_cache);
  const Artifact again = found_with("long");
  EXPECT_FALSE(again.from_cache);
  EXPECT_GT(again.processor_s, 0);
}

TEST(Builder, EverythingThatMattersIsInTheKey) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const Toolchain& toolchain = builder.toolchain(DeviceKind::cpu);
  const BuildRequest base = cpu_request(kTiny);
  BuildRequest other = base;
  EXPECT_EQ(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  other.source += " ";
  EXPECT_NE(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  other = base;
  other.arch = "other";
  EXPECT_NE(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  other = base;
  other.entry = "x";
  EXPECT_NE(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  other = base;
  other.supports_pdl = true;
  EXPECT_NE(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  other = base;
  other.semaphores = true;
  EXPECT_NE(Cache::key_of(base, toolchain), Cache::key_of(other, toolchain));
  EXPECT_NE(toolchain.identity(base).find("-O3"), std::string::npos);
}

TEST(Builder, SeesTheSameMachineCodeBehindDifferentSources) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome a = builder.build(cpu_request(kTiny));
  const BuildOutcome b = builder.build(cpu_request("extern \"C\" int heed_forward(int x) { return x + x; }\n"));
  EXPECT_EQ(a.artifact->machine_code, b.artifact->machine_code);
  const BuildOutcome c = builder.build(cpu_request("extern \"C\" int heed_forward(int x) { return 3 * x; }\n"));
  EXPECT_NE(a.artifact->machine_code, c.artifact->machine_code);
}

TEST(Builder, ConstantsThatNoCodeReadsMakeNoOtherProgram) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const auto artifact = [&](const std::string& constants, const std::string& value) {
    const BuildOutcome outcome = builder.build(
        {.device = DeviceKind::cuda,
         .arch = "sm_90a",
         .source =
             constants + "extern \"C\" __global__ void heed_forward(int* x) { x[threadIdx.x] = " + value + "; }\n",
         .entry = "heed_forward"});
    EXPECT_TRUE(outcome.artifact) << outcome.log;
    return outcome.artifact.value_or(Artifact{});
  };
  const Artifact plain = artifact("", "3");
  const Artifact named = artifact("namespace n { constexpr int kThree = 3; constexpr int kFour = 4; }\n", "n::kThree");
  EXPECT_EQ(plain.machine_code, named.machine_code);
  EXPECT_GT(plain.processor_s, 0);  // NVRTC's, in a process of its own
  EXPECT_NE(read_file(plain.path, ErrorCode::cache), read_file(named.path, ErrorCode::cache));
  // What code does read counts, where it may read it at all.
  const std::string index = "table[threadIdx.x & 1]";
  const Artifact one = artifact("__constant__ int table[2] = {1, 2};\n", index);
  const Artifact other = artifact("__constant__ int table[2] = {1, 3};\n", index);
  EXPECT_THAT(one.violation, ::testing::HasSubstr("memory of its own"));
  EXPECT_NE(one.machine_code, other.machine_code);
  EXPECT_THAT(artifact("constexpr int table[2] = {1, 2};\n", index).violation,
              ::testing::HasSubstr("memory of its own"));
}

TEST(Builder, ACorruptEntryIsFoundAndBuiltAgain) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const std::filesystem::path binary = builder.build(cpu_request(kTiny)).artifact->path;
  const std::filesystem::path record = std::filesystem::path(binary).replace_extension("json");
  const auto damage = [&](const char* what, const auto& body) {
    SCOPED_TRACE(what);
    body();
    const BuildOutcome again = builder.build(cpu_request(kTiny));
    ASSERT_TRUE(again.artifact);
    EXPECT_FALSE(again.artifact->from_cache);
    EXPECT_TRUE(builder.build(cpu_request(kTiny)).artifact->from_cache);
  };
  damage("a flipped byte", [&] {
    std::string bytes = read_file(binary, ErrorCode::cache);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file_atomically(binary, bytes, ErrorCode::cache);
  });
  damage("a truncated binary", [&] { std::filesystem::resize_file(binary, 100); });
  damage("no binary", [&] { std::filesystem::remove(binary); });
  damage("a truncated record", [&] { std::filesystem::resize_file(record, 20); });
  damage("a record of something else", [&] { write_file_atomically(record, "{\"digest\": 5}", ErrorCode::cache); });
}

// A cache that someone deletes while a run goes on costs builds, not the run.
TEST(Builder, ADeletedCacheIsMadeAgain) {
  const TemporaryFolder folder;
  const std::filesystem::path cache = folder.path() / "cache";
  Builder builder(options_in(cache));
  const BuildRequest includes = cpu_request("#include \"kernels/contract.hpp\"\n" + std::string(kTiny));
  const Artifact first = *builder.build(includes).artifact;
  std::filesystem::remove_all(cache);
  const BuildOutcome again = builder.build(includes);
  ASSERT_TRUE(again.artifact) << again.log;
  EXPECT_FALSE(again.artifact->from_cache);
  EXPECT_EQ(again.artifact->path, first.path);
  EXPECT_TRUE(std::filesystem::exists(first.path));
  // What was built before is needed once more.
  std::filesystem::remove_all(cache);
  builder.keep(first, includes);
  EXPECT_TRUE(std::filesystem::exists(first.path));
  std::filesystem::remove_all(cache);
  expect_error(ErrorCode::cache, "was deleted while it was needed", [&] { builder.keep(first, cpu_request(kTiny)); });
  builder.keep(first, includes);
  builder.keep(first, cpu_request("no C++"));  // it is there: nothing is built
}

// Where programs cannot be loaded no kernel is at fault.
TEST(Builder, AFileSystemWithoutProgramsIsNamed) {
  std::ifstream mounts("/proc/mounts");
  std::string device, point, type, options, rest;
  while (mounts >> device >> point >> type >> options) {
    std::getline(mounts, rest);
    if (("," + options + ",").find(",noexec,") == std::string::npos || ::access(point.c_str(), R_OK | W_OK | X_OK) != 0)
      continue;
    const Cache cache(point);
    expect_error(ErrorCode::cache, "is mounted noexec; name a folder of another", [&] { cache.expect_loadable(); });
    return;
  }
  GTEST_SKIP() << "no file system here is mounted noexec";
}

TEST(Builder, DamagedHeadersAreWrittenAgain) {
  const TemporaryFolder folder;
  Cache cache(folder.path());
  const std::filesystem::path header = cache.include_root() / "kernels/contract.hpp";
  write_file_atomically(header, "broken", ErrorCode::cache);
  EXPECT_EQ(read_file(cache.include_root() / "kernels/contract.hpp", ErrorCode::cache),
            compile::device_file("kernels/contract.hpp"));
}

TEST(Builder, CompileErrorsComeWithTheCompilersWords) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const BuildOutcome outcome = builder.build(cpu_request("extern \"C\" int heed_forward() { return nonsense; }\n"));
  EXPECT_FALSE(outcome.artifact);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_THAT(outcome.log, ::testing::HasSubstr("nonsense"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().extension(), "") << "left behind: " << entry.path();
}

TEST(Builder, ABuildThatDoesNotEndIsKilled) {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("slow-compiler"),
                        "#!/bin/sh\ncase \"$1\" in --version|-dumpmachine) echo slow 1.0; exit 0;; esac\nsleep 60\n",
                        ErrorCode::cache);
  std::filesystem::permissions(folder.file("slow-compiler"), std::filesystem::perms::owner_all);
  BuilderOptions options = options_in(folder.path() / "cache");
  options.host_compiler = folder.file("slow-compiler");
  options.limit_s = 0.3;
  Builder builder(options);
  EXPECT_TRUE(builder.build(cpu_request(kTiny)).timed_out);
}

// Templates that double at each of 40 levels: no compiler ends, and none is waited for.
TEST(Builder, ACompileBombIsKilledAtTheLimit) {
  const TemporaryFolder folder;
  BuilderOptions options = options_in(folder.path());
  options.limit_s = 1;
  Builder builder(options);
  const BuildOutcome outcome = builder.build(cpu_request(
      "template <int n, long long path> struct Bomb : Bomb<n - 1, 2 * path>, Bomb<n - 1, 2 * path + 1> {};\n"
      "template <long long path> struct Bomb<0, path> { char at; };\n"
      "extern \"C\" int heed_forward() { return sizeof(Bomb<40, 0>); }\n"));
  EXPECT_TRUE(outcome.timed_out) << outcome.log;
  EXPECT_FALSE(outcome.artifact);
}

TEST(Builder, ParallelBuildsOfOneThingAgree) {
  const TemporaryFolder folder;
  Builder a(options_in(folder.path()));
  Builder b(options_in(folder.path()));
  std::vector<std::future<BuildOutcome>> builds;
  for (int i = 0; i < 3; ++i) {
    builds.push_back(a.start(cpu_request(kTiny)));
    builds.push_back(b.start(cpu_request(kTiny)));
  }
  std::string code;
  for (auto& build : builds) {
    const BuildOutcome outcome = build.get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    if (code.empty()) code = outcome.artifact->machine_code;
    EXPECT_EQ(outcome.artifact->machine_code, code);
  }
}

// One worker and a row of builds of a later turn before it: one of an earlier turn is not the last.
TEST(Builder, BuildsOfEarlierTurnsGoFirst) {
  const TemporaryFolder folder;
  BuilderOptions options = options_in(folder.path());
  options.jobs = 1;
  Builder builder(options);
  const auto start = [&](int number, std::int64_t turn) {
    return builder.start(cpu_request(fmt::format("#error number {}\n", number)), /*fresh=*/false, turn);
  };
  std::vector<std::future<BuildOutcome>> later;
  for (int i = 0; i < 8; ++i) later.push_back(start(i, 2));
  std::future<BuildOutcome> early = start(8, 1);
  EXPECT_THAT(later.back().get().log, ::testing::HasSubstr("number 7"));
  ASSERT_EQ(early.wait_for(std::chrono::seconds(0)), std::future_status::ready) << "though it was asked for last";
  EXPECT_THAT(early.get().log, ::testing::HasSubstr("number 8"));
}

// Two workers, and one program asked for twice at once: the second waits for the first one's binary.
TEST(Builder, WhatIsBeingBuiltIsNotBuiltTwice) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  std::vector<std::future<BuildOutcome>> builds;
  for (int i = 0; i < 4; ++i) builds.push_back(builder.start(cpu_request(kTiny)));
  int compiled = 0;
  for (auto& build : builds) {
    const BuildOutcome outcome = build.get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    compiled += outcome.artifact->from_cache ? 0 : 1;
  }
  EXPECT_EQ(compiled, 1);
  // One that fails holds up none of the others.
  std::vector<std::future<BuildOutcome>> failing;
  for (int i = 0; i < 3; ++i) failing.push_back(builder.start(cpu_request("#error no\n")));
  for (auto& build : failing) EXPECT_FALSE(build.get().artifact);
}

TEST(Builder, NoCompilerIsAClearError) {
  const TemporaryFolder folder;
  BuilderOptions options = options_in(folder.path());
  options.host_compiler = "no-such-compiler";
  Builder builder(options);
  expect_error(ErrorCode::no_compiler, "\"no-such-compiler\" is not on the PATH",
               [&] { builder.build(cpu_request(kTiny)); });
}

TEST(Builder, AnUnusableCacheFolderIsAClearError) {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("file"), "x", ErrorCode::cache);
  expect_error(ErrorCode::cache, "cannot create the folder", [&] { Cache cache(folder.path() / "file" / "cache"); });
  // Permissions mean nothing to root, so the test is another user for a moment.
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    try {
      Cache cache(folder.path());
      ::_exit(1);
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::cache ? 0 : 3);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

// What a CPU candidate may not bring.
TEST(Contract, ViolationsInSharedObjectsAreSeen) {
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const auto violation = [&](const std::string& source) {
    const BuildOutcome outcome = builder.build(cpu_request(source));
    return outcome.artifact ? outcome.artifact->violation : "did not build: " + outcome.log;
  };
  EXPECT_EQ(violation(kTiny), "");
  EXPECT_EQ(violation("extern \"C\" const int table[4] = {1, 2, 3, 4};\nextern \"C\" int heed_forward(int x) { return "
                      "table[x]; }\n"),
            "");
  EXPECT_THAT(violation("static int n;\nextern \"C\" int heed_forward(int x) { return n += x; }\n"),
              ::testing::HasSubstr("keeps state"));
  EXPECT_THAT(violation("int n = 5;\nextern \"C\" int heed_forward(int x) { return n += x; }\n"),
              ::testing::HasSubstr("keeps state"));
  EXPECT_NE(violation("static thread_local int n;\nextern \"C\" int heed_forward(int x) { return n += x; }\n"), "");
  EXPECT_THAT(violation("extern \"C\" int getpid();\nextern \"C\" int heed_forward(int x) { return x + getpid(); }\n"),
              ::testing::HasSubstr("calls getpid"));
  EXPECT_THAT(
      violation(
          "[[gnu::constructor]] static void f() { asm(\"\"); }\nextern \"C\" int heed_forward(int x) { return x; }\n"),
      ::testing::HasSubstr("while it is loaded"));
  EXPECT_THAT(violation("extern \"C\" int other(int x) { return x; }\n"),
              ::testing::HasSubstr("no function heed_forward"));
}

TEST(Elf, RefusesWhatIsNoElf) {
  expect_error(ErrorCode::cache, "malformed ELF", [] { parse_elf("hello"); });
  expect_error(ErrorCode::cache, "malformed ELF", [] { parse_elf(std::string(64, '\0')); });
  std::string self = read_file("/proc/self/exe", ErrorCode::cache);
  EXPECT_GT(parse_elf(self).sections.size(), 10U);
  Random random(9);
  for (int i = 0; i < 300; ++i) {  // damaged files must not be read past their ends
    std::string damaged = self.substr(0, 4096 + random.below(4096));
    for (int n = 0; n < 20; ++n) damaged[64 + random.below(damaged.size() - 64)] = static_cast<char>(random.next());
    try {
      (void)parse_elf(damaged);
    } catch (const Error&) {
    }
  }
}

TEST(Ptxas, ReportIsRead) {
  const Resources r = parse_ptxas_report(
      "ptxas info : Function properties\n  16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nptxas info "
      ": Used 72 registers, used 1 barriers, 1024 bytes smem, 528 bytes cmem[0]\n");
  EXPECT_EQ(r.registers, 72);
  EXPECT_EQ(r.stack_bytes, 16);
  EXPECT_EQ(r.spill_store_bytes, 4);
  EXPECT_EQ(r.spill_load_bytes, 8);
  EXPECT_EQ(r.static_shared_bytes, 1024);
}

TEST(Ptxas, NumbersThatNoKernelHasReadAsNone) {
  const Resources r = parse_ptxas_report("ptxas info : Used 167777777778 registers, bytes stack frame\n" +
                                         std::string(1 << 20, '9') + " bytes smem\n7 bytes spill stores");
  EXPECT_EQ(r.registers, 0);
  EXPECT_EQ(r.stack_bytes, 0);
  EXPECT_EQ(r.static_shared_bytes, 0);
  EXPECT_EQ(r.spill_store_bytes, 7);
}

}  // namespace
}  // namespace heed::jit
