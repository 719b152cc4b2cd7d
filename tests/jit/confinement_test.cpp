// Builds of sources that want more than a build: files of the machine, endless output, the compiler's environment.
#include <gmock/gmock.h>

#include <cstdlib>

#include "base/files.hpp"
#include "jit/build.hpp"
#include "jit/confined_build.hpp"
#include "process/confinement.hpp"
#include "process/process.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::TemporaryFolder;

BuildOutcome built(const TemporaryFolder& folder, DeviceKind device, const std::string& source,
                   const std::string& compiler = {}) {
  BuilderOptions options;
  options.cache_folder = folder.path() / "cache";
  options.jobs = 1;
  options.host_compiler = compiler;
  options.limit_s = 60;
  Builder builder(options);
  return builder.build({.device = device,
                        .arch = device == DeviceKind::cpu ? "test" : "sm_90a",
                        .source = source,
                        .entry = "heed_forward"});
}

// A secret that every process of this user can read, in a place that no compiler needs.
class Secret : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_hide_files()) GTEST_SKIP() << describe_confinement();
    write_file_atomically(folder_.file("secret"), "the_secret_word another_word\n", ErrorCode::cache);
  }
  [[nodiscard]] std::string secret() const { return folder_.file("secret"); }
  TemporaryFolder folder_;
};

const std::string kCpu = "extern \"C\" int heed_forward(int x) { return 2 * x; }\n";

TEST_F(Secret, StaysOutOfBinariesAndLogsOfCpuBuilds) {
  const std::vector<std::string> sources = {"asm(\".incbin \\\"" + secret() + "\\\"\");\n",
                                            "asm(\".include \\\"" + secret() + "\\\"\");\n",
                                            "#include \"" + secret() + "\"\n",
                                            "#include \"/etc/passwd\"\n",
                                            "asm(\".incbin \\\"/etc/passwd\\\"\");\n",
                                            "#include \"/proc/self/environ\"\n",
                                            "#include \"../../../../../../../../../etc/passwd\"\n"};
  for (const char* compiler : {"g++", "clang++"}) {
    if (find_program(compiler).empty()) continue;
    EXPECT_TRUE(built(folder_, DeviceKind::cpu, kCpu, compiler).artifact) << compiler;
    for (const std::string& source : sources) {
      SCOPED_TRACE(compiler + (": " + source));
      const BuildOutcome outcome = built(folder_, DeviceKind::cpu, source + kCpu, compiler);
      EXPECT_FALSE(outcome.artifact);
      EXPECT_THAT(outcome.log, Not(AnyOf(HasSubstr("_secret_word"), HasSubstr("root:"), HasSubstr("daemon"))));
      EXPECT_NE(outcome.log, "");
    }
    const BuildOutcome asked =
        built(folder_, DeviceKind::cpu,
              "#if __has_include(\"" + secret() + "\")\n#include \"" + secret() + "\"\n#endif\n" + kCpu, compiler);
    EXPECT_THAT(asked.log, Not(HasSubstr("_secret_word")));
  }
}

TEST_F(Secret, StaysOutOfCudaBuilds) {
  try {
    (void)describe_nvrtc();
  } catch (const Error&) {
    GTEST_SKIP() << "NVRTC is not installed";
  }
  const std::string kernel = "extern \"C\" __global__ void heed_forward(int* x) { x[0] = 1; }\n";
  EXPECT_TRUE(built(folder_, DeviceKind::cuda, kernel).artifact);
  for (const std::string& path : {secret(), std::string("/etc/passwd"), std::string("/proc/self/environ")}) {
    SCOPED_TRACE(path);
    const BuildOutcome outcome = built(folder_, DeviceKind::cuda, "#include \"" + path + "\"\n" + kernel);
    EXPECT_FALSE(outcome.artifact);
    EXPECT_THAT(outcome.log, Not(AnyOf(HasSubstr("_secret_word"), HasSubstr("root:"), HasSubstr("PATH="))));
  }
}

TEST(ConfinedBuild, WritesNoMoreThanABinaryNeeds) {
  const TemporaryFolder folder;
  for (const char* compiler : {"g++", "clang++"}) {
    if (find_program(compiler).empty()) continue;
    SCOPED_TRACE(compiler);
    const BuildOutcome outcome =
        built(folder, DeviceKind::cpu, "asm(\".section .rodata\\n.zero 400000000\\n.text\");\n" + kCpu, compiler);
    EXPECT_FALSE(outcome.artifact);
    EXPECT_THAT(outcome.log, HasSubstr("more than 64 MiB"));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "cache"))
    EXPECT_THAT(entry.path().filename().string(), Not(AnyOf(HasSubstr(".build."), HasSubstr(".tmp")))) << entry.path();
}

TEST(ConfinedBuild, TheUsersEnvironmentDecidesNothing) {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("extra.hpp"), "#define ANSWER 42\n", ErrorCode::cache);
  for (const char* variable : {"CPATH", "CPLUS_INCLUDE_PATH"}) ::setenv(variable, folder.path().c_str(), 1);
  const BuildOutcome outcome =
      built(folder, DeviceKind::cpu, "#include <extra.hpp>\nextern \"C\" int heed_forward() { return ANSWER; }\n");
  for (const char* variable : {"CPATH", "CPLUS_INCLUDE_PATH"}) ::unsetenv(variable);
  EXPECT_FALSE(outcome.artifact);
}

// A checkout holds files of the names that kernels include, which a confined compiler may not read.
TEST(ConfinedBuild, TheWorkingFolderDecidesNothing) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(folder.path() / "kernels");
  write_file_atomically(folder.file("kernels/contract.hpp"), "#error of the working folder\n", ErrorCode::cache);
  std::filesystem::current_path(folder.path());
  const BuildOutcome outcome = built(folder, DeviceKind::cpu, "#include \"kernels/contract.hpp\"\n" + kCpu);
  std::filesystem::current_path(before);
  EXPECT_TRUE(outcome.artifact) << outcome.log;
}

TEST(ConfinedBuild, LogsSpeakOfTheKernelsSourcesOnly) {
  const std::string log =
      "In file included from <stdin>:1:\n/tree/kernels/a.hpp:3:5: error: own\n    3 | own line\n"
      "/etc/passwd:1:1: error: 'root' does not name a type\n    1 | root:x:0\n      | ^~~~\n"
      "<stdin>:2:1: error: mine\n/etc/shadow(1): error: bad\n  root line\n\nvariant.cu(3): error: mine too\n"
      "../x(1): error: y\n z\n{standard input}:4: Error: no such instruction\n/etc/group:1: Error: `root'\n";
  const std::string kept = without_foreign_files(log, "/tree");
  EXPECT_THAT(kept, Not(AnyOf(HasSubstr("root"), HasSubstr(" z"))));
  for (const char* own : {"error: own", "own line", "error: mine", "mine too", "no such instruction"})
    EXPECT_THAT(kept, HasSubstr(own));
  EXPECT_THAT(kept, HasSubstr("not of the kernel's sources"));
}

TEST(Confinement, HoldsAProgramToItsFilesAndLimits) {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  write_file_atomically(other.file("x"), "hidden", ErrorCode::cache);
  Confinement confinement;
  confinement.readable = {"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"};
  confinement.writable = {folder.path().string()};
  confinement.environment = {"PATH=/usr/bin:/bin", "ONLY=this"};
  confinement.file_bytes = 1 << 20;
  confinement.processor_s = 1;
  confinement.memory_bytes = std::int64_t{1} << 30;
  const auto output = [&](const std::string& command) {
    return run_process({"sh", "-c", command}, {}, 30, confinement).output;
  };
  EXPECT_EQ(output("env | grep -v -e PWD -e _= -e SHLVL | sort"), "ONLY=this\nPATH=/usr/bin:/bin\n");
  EXPECT_EQ(output("ulimit -c"), "0\n");
  EXPECT_EQ(output("ulimit -v"), "1048576\n");
  EXPECT_EQ(output("echo a > " + folder.file("a") + " && cat " + folder.file("a")), "a\n");
  const ProcessResult endless = run_process({"sh", "-c", "while :; do :; done"}, {}, 30, confinement);
  EXPECT_FALSE(endless.timed_out);
  EXPECT_FALSE(endless.ok());
  EXPECT_FALSE(run_process({"sh", "-c", "yes | head -c 3000000 > " + folder.file("b")}, {}, 30, confinement).ok());
  if (!can_hide_files()) GTEST_SKIP() << describe_confinement();
  EXPECT_THAT(output("cat " + other.file("x")), HasSubstr("denied"));
  EXPECT_THAT(output("echo a > " + other.file("y") + "; ls " + other.path().string()), HasSubstr("denied"));
  EXPECT_FALSE(std::filesystem::exists(other.file("y")));
}

}  // namespace
}  // namespace heed::jit
