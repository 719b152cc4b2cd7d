/// Tokens of C++ and CUDA C++ ([lex] of the standard), as far as edited device sources are read before they are built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "variant/overlay.hpp"

namespace heed::source {

enum class Kind {
  word,       ///< identifiers and keywords
  number,     ///< 0x10, 1.0F, 1'000
  text,       ///< the contents of a string or character literal, without quotes and prefix
  mark,       ///< one character of punctuation
  directive,  ///< the name behind a # that begins a line: include, define, pragma; empty for a # alone
  line_end,   ///< of a directive
};

struct Token {
  Kind kind = Kind::mark;
  std::string text;
  int line = 1;               ///< counted from 1, where it begins
  bool space_before = false;  ///< macros with and without arguments differ by it

  [[nodiscard]] bool is(std::string_view other) const { return kind != Kind::text && text == other; }
};

struct Tokens {
  std::vector<Token> tokens;
  std::string refusal;  ///< why the text is refused as a whole; empty when it was read to its end
  int line = 0;         ///< where
};

/// Splits a text into tokens; comments, white space and spliced lines only separate or join them. What compilers could
/// read in another way is refused: characters outside printable ASCII, raw strings, trigraphs, the digraph %:, comments
/// and literals without an end.
Tokens tokens_of(std::string_view text);

/// 32 hexadecimal digits over the paths and tokens of an overlay: what differs in white space and comments alone has
/// one. A text that cannot be split counts as it is.
std::string tokens_digest(const Overlay& overlay);

}  // namespace heed::source
