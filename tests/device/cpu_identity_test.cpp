// What is read of /proc/cpuinfo, on the texts of several machines.
#include "device/cpu_identity.hpp"

#include <sstream>

#include "testing.hpp"

namespace heed {
namespace {

CpuIdentity read(const std::string& text, std::string_view machine) {
  std::istringstream stream(text);
  return identity_of(stream, machine);
}

std::string arm(const std::string& part, const std::string& features) {
  return "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: " + features +
         "\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: " + part +
         "\nCPU revision\t: 1\n\nprocessor\t: 1\nFeatures\t: none\nCPU implementer\t: 0x42\nCPU part\t: 0x1\n";
}

TEST(CpuIdentity, OfX86IsModelAndFlags) {
  const CpuIdentity identity =
      read("processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx2\n\nmodel name\t: Another\n", "x86_64");
  EXPECT_EQ(identity.name, "A Processor");
  EXPECT_EQ(identity.instructions, "A Processorfpu avx2");  // the digest of which names programs that were built before
}

TEST(CpuIdentity, OfArmIsImplementerPartAndFeaturesOfTheFirst) {
  const CpuIdentity identity = read(arm("0xd40", "fp asimd sve"), "aarch64");
  EXPECT_EQ(identity.name, "aarch64 0x41 0xd40");
  EXPECT_EQ(identity.instructions, read(arm("0xd40", "fp asimd sve"), "aarch64").instructions);
}

// A program of -march=native on a Neoverse V1 has SVE, which a Cortex-A72 ends with SIGILL.
TEST(CpuIdentity, ProcessorsOfOtherInstructionsDiffer) {
  const std::string own = read(arm("0xd40", "fp asimd sve"), "aarch64").instructions;
  EXPECT_NE(own, read(arm("0xd40", "fp asimd"), "aarch64").instructions);
  EXPECT_NE(own, read(arm("0xd08", "fp asimd sve"), "aarch64").instructions);
}

TEST(CpuIdentity, IsTheMachineWhereTheTextSaysNothing) {
  const CpuIdentity identity = read("processor: 0\nno colon here\n", "riscv64");
  EXPECT_EQ(identity.name, "riscv64");
  EXPECT_EQ(identity.instructions, "");
  EXPECT_EQ(read("", "aarch64").name, "aarch64");
}

}  // namespace
}  // namespace heed
