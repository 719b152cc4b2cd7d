#include "source/tokens.hpp"

#include <fmt/format.h>

#include "base/digest.hpp"

namespace heed::source {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// One pass over a text, behind spliced lines.
class TokenReader {
 public:
  explicit TokenReader(std::string_view text) : text_(text) {}

  Tokens read() {
    while (result_.refusal.empty() && skip_space()) read_one();
    if (in_directive_) end_directive();
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool ended() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void next() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
    splice();
  }
  // A backslash at the end of a line joins it with the next.
  void splice() {
    while (peek() == '\\' && peek(1) == '\n') {
      at_ += 2;
      ++line_;
    }
  }

  void refuse(std::string why) {
    if (!result_.refusal.empty()) return;
    result_.refusal = std::move(why);
    result_.line = line_;
  }

  void end_directive() {
    in_directive_ = false;
    result_.tokens.push_back({Kind::line_end, "", line_, false});
  }

  bool skip_space() {
    space_ = false;
    splice();
    while (!ended()) {
      const char c = peek();
      if (c == '\n') {
        if (in_directive_) end_directive();
        starts_line_ = true;
        next();
      } else if (c == ' ' || c == '\t') {
        next();
      } else if (c == '/' && peek(1) == '/') {
        while (!ended() && peek() != '\n') next();
      } else if (c == '/' && peek(1) == '*') {
        skip_comment();
      } else {
        return true;
      }
      space_ = true;
    }
    return false;
  }

  void skip_comment() {
    const int begin = line_;
    next();
    next();
    while (!ended() && !(peek() == '*' && peek(1) == '/')) next();
    if (ended()) {
      line_ = begin;
      refuse("has a comment without an end");
      return;
    }
    next();
    next();
  }

  void read_one() {
    const char c = peek();
    const int line = line_;
    const bool starts = starts_line_;
    starts_line_ = false;
    if (c < ' ' || c > '~')
      return refuse(fmt::format("has a character outside printable ASCII (code {})",
                                static_cast<int>(static_cast<unsigned char>(c))));
    if (c == '%' && peek(1) == ':') return refuse("has the digraph %:, which stands for #");
    if (c == '?' && peek(1) == '?') return refuse("has the beginning of a trigraph, two question marks");
    if (c == '#' && starts) return read_directive(line);
    if (is_letter(c)) return read_word(line);
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return read_number(line);
    if (c == '"' || c == '\'') return read_text(line);
    result_.tokens.push_back({Kind::mark, std::string(1, c), line, space_});
    next();
  }

  void read_directive(int line) {
    next();
    while (peek() == ' ' || peek() == '\t') next();
    std::string name;
    for (; is_letter(peek()) || is_digit(peek()); next()) name += peek();
    in_directive_ = true;
    result_.tokens.push_back({Kind::directive, name, line, false});
  }

  void read_word(int line) {
    std::string word;
    for (; is_letter(peek()) || is_digit(peek()); next()) word += peek();
    if (peek() == '"' && (word == "R" || word == "LR" || word == "uR" || word == "UR" || word == "u8R"))
      return refuse("has a raw string");
    if ((peek() == '"' || peek() == '\'') && (word == "L" || word == "u" || word == "U" || word == "u8"))
      return read_text(line);
    result_.tokens.push_back({Kind::word, std::move(word), line, space_});
  }

  void read_number(int line) {
    std::string number;
    for (;; next()) {
      const char c = peek();
      const bool exponent_sign = (c == '+' || c == '-') && !number.empty() &&
                                 std::string_view("eEpP").find(number.back()) != std::string_view::npos;
      if (!is_letter(c) && !is_digit(c) && c != '.' && c != '\'' && !exponent_sign) break;
      number += c;
    }
    result_.tokens.push_back({Kind::number, std::move(number), line, space_});
  }

  void read_text(int line) {
    const char quote = peek();
    next();
    std::string contents;
    while (!ended() && peek() != quote && peek() != '\n') {
      if (peek() < ' ' || peek() > '~') return refuse("has a literal with characters outside printable ASCII");
      if (peek() == '\\') {
        contents += peek();
        next();
        if (ended()) break;
      }
      contents += peek();
      next();
    }
    if (peek() != quote || ended()) return refuse("has a string or character without an end");
    next();
    result_.tokens.push_back({Kind::text, std::move(contents), line, space_});
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  bool in_directive_ = false;
  bool space_ = false;
  Tokens result_;
};

}  // namespace

Tokens tokens_of(std::string_view text) {
  return TokenReader(text).read();
}

std::string tokens_digest(const Overlay& overlay) {
  Digester digester;
  for (const auto& [path, text] : overlay.files) {
    digester.add(path);
    const Tokens split = tokens_of(text);
    if (!split.refusal.empty()) {
      digester.add(text);
      continue;
    }
    bool in_directive = false;
    for (const Token& token : split.tokens) {
      if (token.kind == Kind::directive) in_directive = true;
      if (token.kind == Kind::line_end) in_directive = false;
      digester.add(fmt::format("{}{}", static_cast<int>(token.kind), in_directive && token.space_before ? " " : ""))
          .add(token.text);
    }
  }
  return digester.hex();
}

}  // namespace heed::source
