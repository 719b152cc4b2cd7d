/// A second look at a kernel, in its machine code: what its PTX was read to hold back must not be there either.
#pragma once

#include <string>
#include <string_view>

#include "jit/elf.hpp"
#include "jit/ptx_rules.hpp"

namespace heed::jit {

struct MachineCodeAudit {
  bool decoded = false;   ///< false: of an architecture whose encoding is not known here
  std::string violation;  ///< of the kernel contract; empty when nothing was found
};

/// Looks through the code of a cubin for sm_80 to sm_90a: clocks and other special registers, module-scope memory and
/// constants, words of the parameter bank that tell launches apart, atomics on global memory without semaphores in the
/// launch plan, cache control, calls by address, textures.
MachineCodeAudit audit_machine_code(const ElfFile& cubin, std::string_view arch, const PtxRules& rules);

}  // namespace heed::jit
