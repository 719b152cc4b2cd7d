#include "jit/ptx_module.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "jit/ptx_rules.hpp"

namespace heed::jit {
namespace {

// Of one parameter and of all:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#global-function-argument-processing
constexpr int kMostParameterBytes = 32764;

int bytes_of_type(std::string_view type) {
  const std::size_t digits = type.find_first_of("0123456789");
  int bits = 0;
  if (digits != std::string_view::npos) std::from_chars(type.data() + digits, type.data() + type.size(), bits);
  return bits / 8;
}

class Parser {
 public:
  explicit Parser(PtxModule& module) : module_(module), tokens_(module.tokens) {}

  void parse() {
    while (at_ < tokens_.size()) top_level();
  }

 private:
  [[nodiscard]] bool sees(std::string_view text) const { return at_ < tokens_.size() && tokens_[at_].is(text); }
  [[nodiscard]] bool sees(PtxKind kind) const { return at_ < tokens_.size() && tokens_[at_].kind == kind; }

  const PtxToken& take() {
    if (at_ >= tokens_.size()) throw PtxRefusal{"it ends in the middle of a statement"};
    return tokens_[at_++];
  }
  bool skip(std::string_view text) {
    if (!sees(text)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!skip(text)) unexpected();
  }
  [[noreturn]] void unexpected() {
    const PtxToken& first = take();
    throw PtxRefusal{fmt::format("it holds what no kernel needs: {}",
                                 text_between(first, tokens_[std::min(at_ + 6, tokens_.size()) - 1]))};
  }

  void top_level() {
    if (skip(".version") || skip(".address_size")) {
      if (!sees(PtxKind::number)) unexpected();
      ++at_;
    } else if (skip(".target")) {
      do take();
      while (skip(","));
    } else if (sees(".pragma")) {
      pragma();
    } else {
      const bool external = sees(".extern");
      while (skip(".visible") || skip(".extern") || skip(".weak")) {
      }
      if (skip(".entry")) {
        entry();
      } else if (sees(".global") || sees(".const")) {
        if (external) throw PtxRefusal{"it uses memory of another module"};
        ++at_;
        variables(/*of_module=*/true);
      } else if (skip(".shared")) {
        variables(/*of_module=*/false);
      } else if (sees(".func")) {
        throw PtxRefusal{"it calls a function outside the kernel contract: " + rest_of_statement()};
      } else {
        unexpected();
      }
    }
  }

  std::string rest_of_statement() {
    const PtxToken& first = take();
    while (at_ < tokens_.size() && !sees(";") && !sees("{")) ++at_;
    return text_between(first, tokens_[at_ - 1]);
  }

  void pragma() {
    ++at_;
    do {
      const PtxToken& text = take();
      if (text.kind != PtxKind::string || !is_allowed_pragma(text.text))
        throw PtxRefusal{fmt::format("it has a pragma that is not known to be harmless: \"{}\"", text.text)};
    } while (skip(","));
    expect(";");
  }

  // After the state space: alignment and type, names with dimensions, initialisers.
  void variables(bool of_module) {
    while (sees(PtxKind::suffix)) {
      if (sees(".attribute") || sees(".texref") || sees(".samplerref") || sees(".surfref")) unexpected();
      if (take().text == ".align") take();
    }
    do {
      if (!sees(PtxKind::name)) unexpected();
      const std::string_view name = take().text;
      if (of_module) module_.variables.insert(name);
      while (skip("[")) {
        if (sees(PtxKind::number)) ++at_;
        expect("]");
      }
      if (skip("=")) initialiser();
    } while (skip(","));
    expect(";");
  }

  void initialiser() {
    for (int depth = 0; depth > 0 || (!sees(",") && !sees(";"));) {
      const PtxToken& token = take();
      if (token.is("{") || token.is("(")) ++depth;
      if (token.is("}") || token.is(")")) --depth;
    }
  }

  void entry() {
    if (!sees(PtxKind::name)) unexpected();
    module_.kernels.push_back(take().text);
    if (skip("(") && !skip(")")) {
      do parameter();
      while (skip(","));
      expect(")");
    }
    while (!sees("{")) {
      if (!sees(PtxKind::suffix) || !is_allowed_launch_directive(tokens_[at_].text)) unexpected();
      ++at_;
      while (sees(PtxKind::number) || sees(",")) ++at_;
    }
    ++at_;
    body();
  }

  void parameter() {
    expect(".param");
    int bytes = 0;
    while (sees(PtxKind::suffix)) {
      const std::string_view word = take().text;
      if (word == ".align")
        take();
      else if (const int known = bytes_of_type(word); known != 0)
        bytes = known;
    }
    if (!sees(PtxKind::name)) unexpected();
    const std::string_view name = take().text;
    if (skip("[")) {
      const std::string_view count = take().text;
      int elements = 0;
      std::from_chars(count.data(), count.data() + count.size(), elements);
      if (elements < 0 || elements > kMostParameterBytes || bytes > kMostParameterBytes) unexpected();
      bytes *= elements;
      expect("]");
    }
    module_.params[name] = bytes;
  }

  void body() {
    for (int depth = 1; depth > 0;) {
      if (sees("{") || sees("}")) {
        depth += sees("{") ? 1 : -1;
        add(PtxStatement::Kind::brace, at_, at_ + 1, false);
        ++at_;
      } else if (sees(PtxKind::suffix)) {
        directive();
      } else if (sees(PtxKind::name) && at_ + 1 < tokens_.size() && tokens_[at_ + 1].is(":")) {
        add(PtxStatement::Kind::label, at_, at_ + 1, false);
        at_ += 2;
      } else {
        instruction();
      }
    }
  }

  void directive() {
    const std::size_t begin = at_;
    if (sees(".pragma")) {
      pragma();
    } else if (skip(".reg")) {
      registers();
    } else if (skip(".shared") || skip(".local")) {
      variables(/*of_module=*/false);
    } else if (skip(".branchtargets")) {
      do take();
      while (skip(","));
      expect(";");
    } else if (sees(".global") || sees(".const")) {
      throw PtxRefusal{"it declares memory of its own within the kernel: " + rest_of_statement()};
    } else if (sees(".param") || sees(".callprototype") || sees(".calltargets")) {
      throw PtxRefusal{"it calls a function outside the kernel contract: " + rest_of_statement()};
    } else {
      unexpected();
    }
    add(PtxStatement::Kind::directive, begin, at_, false);
  }

  void registers() {
    while (sees(PtxKind::suffix)) ++at_;
    do {
      if (!sees(PtxKind::name)) unexpected();
      module_.registers.insert(take().text);
      if (skip("<")) {
        take();
        expect(">");
      }
    } while (skip(","));
    expect(";");
  }

  void instruction() {
    const bool guarded = skip("@");
    if (guarded) {
      skip("!");
      if (!sees(PtxKind::name)) unexpected();
      ++at_;
    }
    if (!sees(PtxKind::name)) unexpected();
    const std::size_t begin = at_;
    while (!sees(";")) take();
    add(PtxStatement::Kind::instruction, begin, at_, guarded);
    ++at_;
  }

  void add(PtxStatement::Kind kind, std::size_t begin, std::size_t end, bool guarded) {
    module_.statements.push_back({kind, std::span<const PtxToken>(tokens_).subspan(begin, end - begin), guarded});
  }

  PtxModule& module_;
  const std::vector<PtxToken>& tokens_;
  std::size_t at_ = 0;
};

}  // namespace

std::span<const PtxToken> PtxStatement::modifiers() const {
  std::size_t end = 1;
  while (end < tokens.size() && tokens[end].kind == PtxKind::suffix) ++end;
  return tokens.subspan(1, end - 1);
}

bool PtxStatement::has(std::string_view modifier) const {
  const std::span<const PtxToken> all = modifiers();
  return std::any_of(all.begin(), all.end(), [&](const PtxToken& token) { return token.text == modifier; });
}

PtxModule parse_ptx(std::string_view ptx) {
  PtxTokens read = tokens_of_ptx(ptx);
  if (!read.refusal.empty()) throw PtxRefusal{read.refusal};
  PtxModule module;
  module.tokens = std::move(read.tokens);
  Parser(module).parse();
  return module;
}

}  // namespace heed::jit
