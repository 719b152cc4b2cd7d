#include "jit/ptx_tokens.hpp"

#include <fmt/format.h>

namespace heed::jit {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_part(char c) {
  return is_letter(c) || is_digit(c);
}

class TokenReader {
 public:
  explicit TokenReader(std::string_view ptx) : ptx_(ptx) {}

  PtxTokens read() {
    for (std::size_t i = 0; i < ptx_.size() && result_.refusal.empty(); ++i) {
      const char c = ptx_[i];
      if ((c < ' ' || c > '~') && c != '\n' && c != '\t')
        refuse(
            fmt::format("it holds the character 0x{:02x}, and PTX is printable ASCII", static_cast<unsigned char>(c)));
    }
    while (result_.refusal.empty() && skip_blanks()) next();
    return std::move(result_);
  }

 private:
  char at(std::size_t place) const { return place < ptx_.size() ? ptx_[place] : '\0'; }
  void refuse(std::string reason) { result_.refusal = std::move(reason); }

  void add(PtxKind kind, std::size_t begin, std::size_t end) {
    result_.tokens.push_back({kind, ptx_.substr(begin, end - begin)});
    at_ = end;
  }

  /// False at the end of the text, or of what could be read.
  bool skip_blanks() {
    for (;;) {
      if (at_ >= ptx_.size()) return false;
      if (at(at_) == ' ' || at(at_) == '\t' || at(at_) == '\n') {
        ++at_;
      } else if (at(at_) == '/' && at(at_ + 1) == '/') {
        const std::size_t end = ptx_.find('\n', at_);
        // A compiler that joins lines at a backslash would take the next line for a comment too.
        if (end != std::string_view::npos && at(end - 1) == '\\') {
          refuse("a comment ends in a backslash");
          return false;
        }
        at_ = end == std::string_view::npos ? ptx_.size() : end;
      } else if (at(at_) == '/' && at(at_ + 1) == '*') {
        const std::size_t end = ptx_.find("*/", at_ + 2);
        if (end == std::string_view::npos) {
          refuse("a block comment has no end");
          return false;
        }
        // Readers differ in whether comments nest.
        if (ptx_.substr(at_ + 2, end - at_ - 2).find("/*") != std::string_view::npos) {
          refuse("a block comment begins within a block comment");
          return false;
        }
        at_ = end + 2;
      } else {
        return true;
      }
    }
  }

  void next() {
    const std::size_t begin = at_;
    const char c = at(begin);
    std::size_t end = begin + 1;
    if (c == '"') {
      end = ptx_.find_first_of("\"\\\n", begin + 1);
      if (end == std::string_view::npos || at(end) != '"')
        return refuse("a string has an escape or does not end on its line");
      result_.tokens.push_back({PtxKind::string, ptx_.substr(begin + 1, end - begin - 1)});
      at_ = end + 1;
    } else if (is_letter(c) || (c == '%' && is_name_part(at(begin + 1)))) {
      while (is_name_part(at(end))) ++end;
      add(PtxKind::name, begin, end);
    } else if (is_digit(c)) {
      while (is_name_part(at(end)) || at(end) == '.') ++end;
      add(PtxKind::number, begin, end);
    } else if (c == '.' && is_name_part(at(end))) {
      while (is_name_part(at(end)) || (at(end) == ':' && at(end + 1) == ':' && is_name_part(at(end + 2))))
        end += at(end) == ':' ? 2 : 1;
      add(PtxKind::suffix, begin, end);
    } else if (c == '#') {
      refuse("it holds a preprocessor line");
    } else {
      add(PtxKind::mark, begin, end);
    }
  }

  std::string_view ptx_;
  std::size_t at_ = 0;
  PtxTokens result_;
};

}  // namespace

PtxTokens tokens_of_ptx(std::string_view ptx) {
  return TokenReader(ptx).read();
}

std::string text_between(const PtxToken& first, const PtxToken& last) {
  constexpr std::size_t kLongest = 160;
  const std::string_view whole(first.text.data(),
                               static_cast<std::size_t>(last.text.data() + last.text.size() - first.text.data()));
  std::string line;
  for (const char c : whole) {
    const char shown = c == '\n' || c == '\t' ? ' ' : c;
    if (shown != ' ' || (!line.empty() && line.back() != ' ')) line += shown;
    if (line.size() >= kLongest) return line + " ...";
  }
  return line;
}

}  // namespace heed::jit
