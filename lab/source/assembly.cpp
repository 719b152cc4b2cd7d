// Names after Intel's and Arm's manuals and https://docs.nvidia.com/cuda/parallel-thread-execution/
#include "source/assembly.hpp"

#include <fmt/format.h>

#include <array>
#include <unordered_set>
#include <utility>
#include <vector>

namespace heed::source {
namespace {

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '%' || c == '$' || c == ':';
}

// Mnemonics, directives, registers and labels, in lower case; "\n" and "\t" of a literal separate them.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      if (!words.back().empty()) words.emplace_back();
    } else if (is_word_character(text[i])) {
      const char c = text[i];
      words.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

using Use = std::pair<std::string_view, std::string_view>;

constexpr std::array kWhole = {Use{"rdtsc", "looks at the time"},
                               Use{"rdtscp", "looks at the time"},
                               Use{"rdpmc", "looks at the time"},
                               Use{"rdpru", "looks at the time"},
                               Use{"umwait", "looks at the time"},
                               Use{"tpause", "looks at the time"},
                               Use{"rdrand", "draws random numbers"},
                               Use{"rdseed", "draws random numbers"},
                               Use{"syscall", "calls the system"},
                               Use{"sysenter", "calls the system"},
                               Use{"int", "calls the system"},
                               Use{"int3", "calls the system"},
                               Use{"svc", "calls the system"},
                               Use{"brk", "calls the system"},
                               Use{"cpuid", "tells machines apart"},
                               Use{"mrs", "reads registers of the system"},
                               Use{"msr", "changes registers of the system"},
                               Use{"ldmxcsr", "changes the state that the next launch finds"},
                               Use{"fldcw", "changes the state that the next launch finds"},
                               Use{"rdfsbase", "reads what outlives a launch"},
                               Use{"rdgsbase", "reads what outlives a launch"},
                               Use{"wrfsbase", "changes the state that the next launch finds"},
                               Use{"wrgsbase", "changes the state that the next launch finds"},
                               Use{"std", "changes the state that the next launch finds"},
                               Use{"clflush", "changes what caches keep for others"},
                               Use{"clflushopt", "changes what caches keep for others"},
                               Use{"clwb", "changes what caches keep for others"},
                               Use{"cldemote", "changes what caches keep for others"},
                               Use{"wbinvd", "changes what caches keep for others"},
                               Use{"jmp", "leaves its function"},
                               Use{"call", "calls a function"}};

constexpr std::array kBeginnings = {Use{"%clock", "looks at the time"},
                                    Use{"%%clock", "looks at the time"},
                                    Use{"%globaltimer", "looks at the time"},
                                    Use{"%%globaltimer", "looks at the time"},
                                    Use{"nanosleep", "looks at the time"},
                                    Use{"%gridid", "tells launches apart"},
                                    Use{"%%gridid", "tells launches apart"},
                                    Use{"%smid", "tells processors apart"},
                                    Use{"%%smid", "tells processors apart"},
                                    Use{"%%pm", "reads counters of the device"},
                                    Use{"discard.", "changes what the L2 keeps for others"},
                                    Use{"applypriority", "changes what the L2 keeps for others"},
                                    Use{"pmevent", "signals to the outside"},
                                    Use{"brkpt", "signals to the outside"},
                                    Use{"vote.sync.exit", "signals to the outside"}};

constexpr std::array kInside = {Use{".l2::evict_last", "changes what the L2 keeps for others"},
                                Use{".l2::evict_unchanged", "changes what the L2 keeps for others"},
                                Use{".pragma", "hides from the reader of PTX"}};

// Directives of assemblers that read files, move code or data, or name symbols, and of PTX that declare what lies
// outside the entry. A word with a dot may also be the rest of an instruction that a macro put together.
bool is_directive(std::string_view word) {
  static const std::unordered_set<std::string_view> names = {
      ".incbin", ".include", ".section", ".pushsection", ".popsection", ".previous", ".subsection", ".text",   ".data",
      ".bss",    ".rodata",  ".init",    ".fini",        ".fill",       ".space",    ".skip",       ".zero",   ".org",
      ".globl",  ".global",  ".weak",    ".hidden",      ".local",      ".comm",     ".type",       ".size",   ".set",
      ".equ",    ".symver",  ".byte",    ".short",       ".long",       ".quad",     ".word",       ".int",    ".ascii",
      ".asciz",  ".string",  ".macro",   ".rept",        ".irp",        ".irpc",     ".altmacro",   ".inst",   ".align",
      ".balign", ".p2align", ".visible", ".extern",      ".entry",      ".func",     ".const",      ".pragma", ".file",
      ".loc",    ".ident",   ".version", ".target",      ".code16",     ".code32",   ".att_syntax", ".arch",   ".cpu"};
  return names.count(word) != 0;
}

}  // namespace

std::string refusal_of_assembly(std::string_view instructions, bool has_operands) {
  const std::vector<std::string> words = words_of(instructions);
  const auto refused = [](const std::string& word, std::string_view why) {
    return fmt::format("has assembly that {} ({})", why, word);
  };
  for (const std::string& word : words) {
    for (const auto& [name, why] : kWhole)
      if (word == name) return refused(word, why);
    for (const auto& [name, why] : kBeginnings)
      if (word.starts_with(name)) return refused(word, why);
    for (const auto& [name, why] : kInside)
      if (word.find(name) != std::string::npos) return refused(word, why);
    if (is_directive(word)) return refused(word, "has a directive");
    if (word.back() == ':' && word.find_first_not_of("0123456789:") != std::string::npos && words.size() == 1)
      return refused(word, "defines a symbol");
  }
  if (!has_operands && words.size() == 1) return refused(words.front(), "names a symbol or a register");
  return {};
}

}  // namespace heed::source
