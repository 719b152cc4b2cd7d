#include "source/refusals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "source/assembly.hpp"
#include "source/tokens.hpp"

namespace heed::source {
namespace {

using Words = std::unordered_set<std::string_view>;

const Words& keywords() {
  static const Words words = {
      "alignas",   "asm",       "auto",      "bool",     "break",    "case",   "char",         "class",   "const",
      "consteval", "constexpr", "continue",  "default",  "do",       "double", "else",         "enum",    "explicit",
      "extern",    "false",     "float",     "for",      "friend",   "goto",   "if",           "inline",  "int",
      "long",      "mutable",   "namespace", "operator", "private",  "public", "return",       "short",   "signed",
      "sizeof",    "static",    "struct",    "switch",   "template", "this",   "true",         "typedef", "typename",
      "union",     "unsigned",  "using",     "void",     "volatile", "while",  "static_assert"};
  return words;
}

// What a name would be used for, where there is no honest use of it in a kernel; empty for others.
std::string use_of(std::string_view word) {
  static const Words clocks = {"clock",  "clock64", "__clock",  "__clock64",   "globaltimer", "__globaltimer",
                               "_rdtsc", "__rdtsc", "__rdtscp", "__nanosleep", "_rdpmc",      "__rdpmc"};
  if (clocks.count(word) != 0 || word.starts_with("__builtin_ia32_rdtsc") || word.starts_with("__builtin_ia32_rdpmc") ||
      word.starts_with("__builtin_readcyclecounter") || word.starts_with("__nvvm_read_ptx_sreg_clock"))
    return "looks at the time";
  if (word.starts_with("__builtin_ia32_rdrand") || word.starts_with("__builtin_ia32_rdseed"))
    return "draws random numbers";
  // Clang's and GCC's for Arm, which name any register of the system: its counter of time, too.
  for (const char* compiler : {"__builtin_arm_", "__builtin_aarch64_"}) {
    if (!word.starts_with(compiler)) continue;
    const std::string_view what = word.substr(std::string_view(compiler).size());
    if (what.starts_with("rndr")) return "draws random numbers";
    if (what.starts_with("rsr")) return "reads registers of the system";
    if (what.starts_with("wsr") || what.starts_with("set_fpcr") || what.starts_with("set_fpsr"))
      return "changes registers of the system";
  }
  static const Words kept = {"thread_local", "__thread", "_Thread_local", "__managed__", "__constant__"};
  if (kept.count(word) != 0) return "keeps memory between launches";
  static const Words dates = {"__DATE__", "__TIME__", "__TIMESTAMP__"};
  if (dates.count(word) != 0) return "is another program at another time";
  static const Words looks = {"__has_include", "__has_include_next", "__has_embed",
                              "__FILE__",      "__BASE_FILE__",      "__FILE_NAME__"};
  if (looks.count(word) != 0) return "asks which files there are";
  static const Words stack = {"__builtin_return_address", "__builtin_frame_address", "__builtin_extract_return_addr",
                              "__builtin_thread_pointer", "__builtin_apply_args",    "__builtin_apply",
                              "__builtin_longjmp",        "__builtin_setjmp",        "__builtin_eh_return",
                              "__builtin_dwarf_cfa",      "__builtin_stack_address", "__builtin_unwind_init"};
  if (stack.count(word) != 0) return "reaches for memory that no launch is given";
  if (word.starts_with("__builtin_ia32_clflush") || word.starts_with("__builtin_ia32_clwb") ||
      word.starts_with("__builtin_ia32_cldemote") || word == "__builtin___clear_cache")
    return "changes what caches keep for others";
  return {};
}

// Attributes that change how a function or a type is compiled, not where it lies or when it runs.
bool is_allowed_attribute(std::string_view name) {
  static const Words names = {"gnu",
                              "always_inline",
                              "noinline",
                              "flatten",
                              "hot",
                              "cold",
                              "pure",
                              "const",
                              "vector_size",
                              "may_alias",
                              "aligned",
                              "packed",
                              "unused",
                              "maybe_unused",
                              "nodiscard",
                              "likely",
                              "unlikely",
                              "fallthrough",
                              "no_unique_address",
                              "assume",
                              "assume_aligned",
                              "returns_nonnull",
                              "nonnull",
                              "noreturn",
                              "clang",
                              "using"};
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) name = name.substr(2, name.size() - 4);
  return names.count(name) != 0;
}

// One file of an overlay.
class RefusalReader {
 public:
  RefusalReader(std::string_view path, std::string_view text) : path_(path), text_(text), read_(tokens_of(text)) {}

  std::string refusal() {
    if (!read_.refusal.empty()) return at_line(read_.line, read_.refusal);
    for (at_ = 0; at_ < read_.tokens.size() && refusal_.empty(); ++at_) {
      const Token& token = read_.tokens[at_];
      if (token.kind == Kind::directive)
        see_directive(token);
      else if (token.kind == Kind::word)
        see_word(token);
      else if (token.is("[") && token_at(at_ + 1).is("["))
        see_attributes(at_ + 2, 1);
      else if (token.is("#") && token_at(at_ + 1).is("#"))
        refuse(token.line, "joins words by ##, so that no reader sees them");
    }
    return refusal_;
  }

 private:
  [[nodiscard]] const Token& token_at(std::size_t at) const {
    static const Token none{Kind::line_end, "", 0, false};
    return at < read_.tokens.size() ? read_.tokens[at] : none;
  }

  [[nodiscard]] std::string at_line(int line, const std::string& what) const {
    return fmt::format("line {} of {} {}", line, path_ == Overlay::kEntry ? "the entry" : path_, what);
  }
  void refuse(int line, const std::string& what) {
    if (refusal_.empty()) refusal_ = at_line(line, what);
  }

  void see_directive(const Token& token) {
    static const Words allowed = {"define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", ""};
    if (token.text == "include") return see_include(token);
    if (token.text == "pragma") return see_pragma(token.line, pragma_text());
    if (allowed.count(token.text) == 0) return refuse(token.line, fmt::format("has the directive #{}", token.text));
    if (token.text == "define" || token.text == "undef") {
      const std::string& name = token_at(at_ + 1).text;
      if (keywords().count(name) != 0 || name.starts_with("__"))
        refuse(token.line, fmt::format("gives the word {} another meaning", name));
    }
  }

  void see_include(const Token& token) {
    const Token& name = token_at(at_ + 1);
    if (name.kind != Kind::text || token_at(at_ + 2).kind != Kind::line_end)
      return refuse(token.line, "includes something by other means than #include \"...\" with a device source");
    if (compile::device_files().count(name.text) == 0)
      return refuse(token.line, fmt::format("includes \"{}\", which is no device source of Heed", name.text));
    // What the key of the build cache covers is found by this very form (compile::included_by).
    const std::vector<std::string> lines = split(text_, '\n');
    const auto line = static_cast<std::size_t>(token.line);
    if (line > lines.size() || !lines[line - 1].starts_with(fmt::format("#include \"{}\"", name.text)))
      refuse(token.line, "has an #include that does not begin its line, or not as #include \"...\"");
  }

  [[nodiscard]] std::string pragma_text() const {
    std::string text;
    for (std::size_t i = at_ + 1; token_at(i).kind != Kind::line_end; ++i)
      text += (text.empty() ? "" : " ") + token_at(i).text;
    return text;
  }

  void see_pragma(int line, const std::string& text) {
    for (const std::string_view known : {"unroll", "GCC unroll", "nounroll", "GCC ivdep"})
      if (text == known || text.starts_with(fmt::format("{} ", known))) return;
    if (text != "once") refuse(line, fmt::format("has #pragma {}; once and unroll are allowed", text));
  }

  void see_word(const Token& token) {
    const std::string& word = token.text;
    if (const std::string use = use_of(word); !use.empty())
      return refuse(token.line, fmt::format("has {}, which {}", word, use));
    if (word == "_Pragma") return see_pragma(token.line, token_at(at_ + 2).text);
    if (word == "__pragma") return refuse(token.line, "has __pragma");
    if (word == "asm" || word == "__asm" || word == "__asm__") return see_assembly(token);
    if (word == "__attribute__" || word == "__attribute") return see_attributes(at_ + 1, 0);
    if (word == "__declspec") return refuse(token.line, "has __declspec");
    if (word == "extern") return see_extern(token);
    if (word == "static") return see_static(token);
    if (word == "import" || word == "module" || word == "export")
      if (token_at(at_ + 1).kind == Kind::word || token_at(at_ + 1).is("<") || token_at(at_ + 1).kind == Kind::text)
        refuse(token.line, fmt::format("has {}: device code has no modules", word));
  }

  // [[gnu::name(...), name]] from behind its brackets, or __attribute__((name)).
  void see_attributes(std::size_t from, int open) {
    int depth = open;
    const char* const opening = open == 0 ? "(" : "[";
    const char* const closing = open == 0 ? ")" : "]";
    int inner = 0;
    for (std::size_t i = from; i < read_.tokens.size(); ++i) {
      const Token& token = read_.tokens[i];
      if (open == 0 ? token.is(opening) : inner == 0 && token.is(opening)) {
        ++depth;
      } else if (open == 0 ? token.is(closing) : inner == 0 && token.is(closing)) {
        if (--depth <= 0) return;
      } else if (open != 0 && token.is("(")) {
        ++inner;
      } else if (open != 0 && token.is(")")) {
        --inner;
      } else if (token.kind == Kind::word && (open == 0 ? depth == 2 : inner == 0) &&
                 !is_allowed_attribute(token.text)) {
        return refuse(token.line, fmt::format("has the attribute {}", token.text));
      }
    }
  }

  void see_assembly(const Token& token) {
    std::size_t i = at_ + 1;
    while (token_at(i).is("volatile") || token_at(i).is("__volatile__") || token_at(i).is("__volatile") ||
           token_at(i).is("inline") || token_at(i).is("goto"))
      ++i;
    std::string instructions;
    int depth = 0;
    bool has_operands = false;
    for (; i < read_.tokens.size(); ++i) {
      const Token& part = read_.tokens[i];
      if (part.is("(")) ++depth;
      if (part.is(")") && --depth == 0) break;
      if (part.is(":") && depth == 1) has_operands = true;
      if (part.kind == Kind::text && !has_operands) instructions += part.text;
      // A template of a macro's parts is read with what stands there.
    }
    if (const std::string what = refusal_of_assembly(instructions, has_operands); !what.empty())
      refuse(token.line, what);
  }

  void see_extern(const Token& token) {
    const Token& behind = token_at(at_ + 1);
    if (behind.is("__shared__")) return;
    if (behind.kind == Kind::text && behind.text == "C" && path_ == Overlay::kEntry) return;
    refuse(token.line, "has extern: nothing but the entry is known outside, and nothing outside to it");
  }

  // A variable that outlives the call: static without const, constexpr or the parentheses of a function.
  void see_static(const Token& token) {
    for (std::size_t i = at_ + 1; i < at_ + 40; ++i) {
      const Token& part = token_at(i);
      if (part.is("const") || part.is("constexpr") || part.is("consteval") || part.is("inline") ||
          part.is("__shared__") || part.is("(") || part.kind == Kind::line_end || part.line == 0)
        return;
      if (part.is(";") || part.is("=") || part.is("{") ||
          (part.is("[") && !token_at(i + 1).is("[") && !token_at(i - 1).is("[")))
        return refuse(token.line, "has a static variable, which keeps memory between launches");
    }
  }

  std::string_view path_;
  std::string_view text_;
  Tokens read_;
  std::size_t at_ = 0;
  std::string refusal_;
};

}  // namespace

std::optional<std::string> refusal_of(const Overlay& overlay) {
  for (const auto& [path, text] : overlay.files)
    if (std::string refusal = RefusalReader(path, text).refusal(); !refusal.empty()) return refusal;
  return std::nullopt;
}

}  // namespace heed::source
