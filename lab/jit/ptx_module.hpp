/// The shape of a PTX module: its variables, its one kernel, and that kernel's statements.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/ptx_tokens.hpp"

namespace heed::jit {

struct PtxStatement {
  enum class Kind { instruction, label, brace, directive };
  Kind kind = Kind::instruction;
  std::span<const PtxToken> tokens;  ///< without a guard and without ';'
  bool guarded = false;              ///< has a predicate in front

  /// Of an instruction: the word before the first dot, its modifiers, what follows them.
  [[nodiscard]] std::string_view base() const { return tokens.front().text; }
  [[nodiscard]] std::span<const PtxToken> modifiers() const;
  [[nodiscard]] std::span<const PtxToken> operands() const { return tokens.subspan(1 + modifiers().size()); }
  [[nodiscard]] bool has(std::string_view modifier) const;
  [[nodiscard]] std::string text() const { return text_between(tokens.front(), tokens.back()); }
};

struct PtxModule {
  std::vector<PtxToken> tokens;            ///< the statements point into these
  std::set<std::string_view> variables;    ///< module-scope .global and .const; code may not name them
  std::vector<std::string_view> kernels;   ///< names of the .entry functions
  std::map<std::string_view, int> params;  ///< bytes of each parameter
  std::set<std::string_view> registers;    ///< declared names, "%r" for .reg .b32 %r<10>
  std::vector<PtxStatement> statements;    ///< of the kernels, in order
};

/// Takes a module apart. `ptx` must outlive the result; the result may be moved, not copied.
/// @throws PtxRefusal for a declaration that the kernel contract has no place for
PtxModule parse_ptx(std::string_view ptx);

/// Why PTX is refused.
struct PtxRefusal {
  std::string reason;
};

}  // namespace heed::jit
