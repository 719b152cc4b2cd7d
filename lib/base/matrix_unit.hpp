/// A CPU's matrix unit (Intel AMX), which a process must ask the kernel for before it runs code that uses it.
#pragma once

namespace heed {

/// Asks for the unit for this process, its threads and the children it forks (not for programs they execute); whether
/// bf16 tiles may be used. Where the CPU has none, or the kernel keeps it back, the answer is no and nothing changes.
/// https://docs.kernel.org/arch/x86/xstate.html
bool allow_matrix_unit();

}  // namespace heed
