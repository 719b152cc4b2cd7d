/// What a Linux kernel says of a processor in /proc/cpuinfo, which has other fields on x86 and on Arm.
#pragma once

#include <istream>
#include <string>
#include <string_view>

namespace heed {

struct CpuIdentity {
  std::string name;          ///< "Intel(R) Xeon(R) Platinum 8481C", "aarch64 0x41 0xd40"
  std::string instructions;  ///< differs where -march=native may choose other instructions
};

/// Of the first processor listed. Arm's kernel has no name for it: implementer and part stand for one, as the main ID
/// register has them (Arm ARM, MIDR_EL1).
/// @param machine as uname says: the name where the text says nothing
CpuIdentity identity_of(std::istream& cpuinfo, std::string_view machine);

}  // namespace heed
