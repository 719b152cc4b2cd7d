/// What PTX a kernel may be made of. Everything else is refused, so that an instruction of a later PTX version has to
/// be thought about before it is let in.
#pragma once

#include <string>
#include <string_view>

namespace heed::jit {

/// What a kernel's launch plan allows its code.
struct PtxRules {
  bool supports_pdl = false;                ///< griddepcontrol, and then it must wait
  bool semaphores = false;                  ///< atomics and reductions on global memory
  std::string_view entry = "heed_forward";  ///< the one kernel
};

/// Whether an instruction may be used that is spelled with this word before its first dot.
bool is_allowed_instruction(std::string_view base);

/// Why a special register (its name with '%', without ".x") may not be read; empty when it may, or is none.
std::string refusal_of_register(std::string_view name);

/// Why a modifier (with its dot) may not stand on any instruction; empty when it may. The cache hint of a policy is
/// another matter: it depends on the instruction before.
std::string refusal_of_modifier(std::string_view base, std::string_view modifier);

/// Whether a performance directive may stand behind the kernel's parameters.
bool is_allowed_launch_directive(std::string_view directive);

/// Whether a pragma is one of those that only guide the optimiser.
bool is_allowed_pragma(std::string_view text);

}  // namespace heed::jit
