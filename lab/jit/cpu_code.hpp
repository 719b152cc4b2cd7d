/// Machine code of CPU candidates: instructions that neither a runner nor a reader of sources holds back.
#pragma once

#include <string>
#include <string_view>

namespace heed::jit {

enum class CpuMachine { x86_64, aarch64 };

/// What code holds that no kernel may: a flush of cache lines, which takes them from whoever runs next; on aarch64 also
/// a look at the counter of time, which older kernels leave open. x86-64 is looked through at every byte, for a jump
/// may lead into the middle of an instruction: a constant can hold another one. Empty when nothing was found.
/// @param code contents of an executable segment; of aarch64 from an address that instructions begin at
std::string violation_in_cpu_code(std::string_view code, CpuMachine machine);

}  // namespace heed::jit
