/// Tokens of PTX: https://docs.nvidia.com/cuda/parallel-thread-execution/#syntax
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heed::jit {

enum class PtxKind {
  name,    ///< mov, %r1, heed_forward, $L__BB0_1
  suffix,  ///< with its dot: .global, .shared::cta, .L2::cache_hint, .x
  number,  ///< 1.0, 0f3F800000, 0x10
  string,  ///< without its quotes
  mark,    ///< one character
};

struct PtxToken {
  PtxKind kind = PtxKind::mark;
  std::string_view text;  ///< points into the PTX
  [[nodiscard]] bool is(std::string_view other) const { return kind != PtxKind::string && text == other; }
};

struct PtxTokens {
  std::vector<PtxToken> tokens;
  std::string refusal;  ///< why the text is refused as a whole; empty when it was read to its end
};

/// Splits PTX into tokens; comments and white space only separate them. What two readers could read in two ways is
/// refused: characters outside printable ASCII, escapes in strings, preprocessor lines, comments and strings without
/// an end. `ptx` must outlive the result.
PtxTokens tokens_of_ptx(std::string_view ptx);

/// The text from one token to another, both included, on one line and not longer than a message should be.
std::string text_between(const PtxToken& first, const PtxToken& last);

}  // namespace heed::jit
