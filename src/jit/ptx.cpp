// Reading PTX: https://docs.nvidia.com/cuda/parallel-thread-execution/
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "jit/toolchain.hpp"

namespace heed::jit {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

// Names and directives of a line, comments left out.
std::vector<std::string> words_of(std::string_view line) {
  line = line.substr(0, line.find("//"));
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && !is_name_character(line[at])) ++at;
    const std::size_t start = at;
    while (at < line.size() && is_name_character(line[at])) ++at;
    if (at > start) words.emplace_back(line.substr(start, at - start));
  }
  return words;
}

// The register that a line sets to the policy evict_first, if it does that and nothing else; else nothing.
std::string evict_first_policy(std::string_view line) {
  constexpr std::string_view kBegin = "createpolicy.fractional.L2::evict_first.b64 ";
  constexpr std::string_view kEnd = ", 1.0;";
  const std::string text = trim(line.substr(0, line.find("//")));
  if (!text.starts_with(kBegin) || !text.ends_with(kEnd)) return {};
  const std::vector<std::string> words = words_of(text);
  return words.size() == 4 ? words[2] : "";  // a colon ends a word
}

// Whether a line is one copy, whose policy is in the register `policy`.
bool takes_policy(std::string_view line, const std::string& policy) {
  const std::string text = trim(line);
  return !policy.empty() && text.starts_with("cp.async.bulk.") && text.find(';') == text.size() - 1 &&
         text.ends_with(", " + policy + ";");
}

// Instructions whose effect outlives the launch and falls on whoever runs next.
//
// Lines of L2 that are marked to persist stay when the kernel is done: in an interleaved measurement the candidate's
// next launch gains and the base, which finds less cache, pays. A policy is an opaque number that need not come from
// createpolicy, so every cache hint that takes one is refused, not only those that say evict_last, but where the line
// before makes that very number, evict_first for all of the access, and nothing can come between. `discard` throws
// other data out. Hints that cannot outlive the launch stay allowed: L1 (empty at each launch), evict_first and
// no_allocate (which only give up one's own lines), prefetch sizes, and prefetches: what a prefetch of the next
// launch's inputs could gain is taken away by timing the input sets in an order that no kernel knows.
// griddepcontrol lets the next launch of the stream begin while this one still runs: time that a clock around the
// launches does not see as this one's. Where the launch plan says dependent it is allowed: without the attribute, which
// is how everything is timed that counts, it does nothing, and the gate's chains show whether the waiting is right.
std::string skews_others(std::string_view line, const std::string& policy_before, const PtxRules& rules) {
  line = line.substr(0, line.find("//"));
  if (!evict_first_policy(line).empty() || takes_policy(line, policy_before)) return {};
  for (const std::string_view word : {"createpolicy", "applypriority", "discard.", "::cache_hint", "L2::evict_last"})
    if (line.find(word) != std::string_view::npos)
      return fmt::format("it changes what the L2 cache keeps for whoever runs next: {}", trim(line));
  if (!rules.dependent && line.find("griddepcontrol") != std::string_view::npos)
    return fmt::format("it lets the next launch begin before it is done: {}", trim(line));
  return {};
}

}  // namespace

std::string contract_breach_of_ptx(std::string_view ptx, const PtxRules& rules) {
  // Every line is looked at, wherever it stands: inline assembly puts braces of its own at line starts, so they do not
  // tell where a function ends.
  std::set<std::string> globals;
  bool waits = false;
  std::string policy;  // that the line before made
  for (const std::string& line : split(ptx, '\n')) {
    if (line.find("/*") !=
        std::string::npos)  // the compiler writes none; one could hide what follows from this reading
      return fmt::format("it holds a block comment: {}", trim(line));
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    // A module-scope variable: ".visible .global .align 4 .u32 name = ...;", the name before '[', '=' or ';'. It may
    // hold the address of another; only code makes state of it.
    const bool declares = std::find(words.begin(), words.end(), ".global") != words.end();
    if (declares) {
      const std::vector<std::string> declaration =
          words_of(std::string_view(line).substr(0, line.find_first_of("[=;")));
      if (!declaration.empty()) globals.insert(declaration.back());
    }
    if (const std::string skew = skews_others(line, policy, rules); !skew.empty()) return skew;
    policy = evict_first_policy(line);
    for (const std::string& word : words) {
      waits = waits || word == "griddepcontrol.wait";
      if (word == "%clock" || word == "%clock64" || word == "%clock_hi" || word.substr(0, 12) == "%globaltimer")
        return fmt::format("it looks at the time ({})", word);
      if (word == "call" || word.substr(0, 5) == "call.")
        return fmt::format("it calls a function outside the kernel contract: {}", trim(line));
      if (!declares && globals.count(word) != 0)
        return fmt::format("it keeps state between launches in device memory of its own ({})", word);
    }
  }
  if (rules.dependent && !waits)
    return "its launch plan lets it begin before the launch before it has ended, and it has no griddepcontrol.wait";
  return {};
}

}  // namespace heed::jit
