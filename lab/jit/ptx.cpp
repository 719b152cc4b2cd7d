// What a kernel's PTX must not do: https://docs.nvidia.com/cuda/parallel-thread-execution/
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>

#include "jit/ptx_module.hpp"
#include "jit/toolchain.hpp"

namespace heed::jit {
namespace {

using Statement = PtxStatement;
using Operands = std::span<const PtxToken>;

bool is_mark(const PtxToken& token, std::string_view text) {
  return token.kind == PtxKind::mark && token.text == text;
}

bool names_any(Operands operands, const std::set<std::string_view>& names) {
  return std::any_of(operands.begin(), operands.end(), [&](const PtxToken& token) {
    return token.kind == PtxKind::name && names.count(token.text) != 0;
  });
}

// The operands up to the first comma outside brackets: what an instruction writes to, if it writes to registers.
Operands destination(Operands operands) {
  int depth = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (is_mark(operands[i], "{") || is_mark(operands[i], "[")) ++depth;
    if (is_mark(operands[i], "}") || is_mark(operands[i], "]")) --depth;
    if (depth == 0 && is_mark(operands[i], ",")) return operands.first(i);
  }
  return operands;
}

// The register that a statement sets to the policy evict_first for all of an access; empty when it does anything else.
// A policy is an opaque number that need not come from createpolicy, so every cache hint that takes one is refused, but
// where the statement before makes that very number and nothing can come between.
std::string_view evict_first_policy(const Statement& statement) {
  if (statement.kind != Statement::Kind::instruction || statement.guarded) return {};
  const Operands t = statement.tokens;
  const bool fits = t.size() == 7 && t[0].is("createpolicy") && t[1].is(".fractional") && t[2].is(".L2::evict_first") &&
                    t[3].is(".b64") && t[4].kind == PtxKind::name && t[5].is(",") && t[6].is("1.0");
  return fits ? t[4].text : std::string_view();
}

// Whether a bulk copy takes its policy from a register.
bool takes_policy(const Statement& statement, std::string_view policy) {
  const Operands t = statement.tokens;
  return !policy.empty() && !statement.guarded && t.size() > 3 && t[0].is("cp") && t[1].is(".async") &&
         t[2].is(".bulk") && is_mark(t[t.size() - 2], ",") && t.back().text == policy && t.back().kind == PtxKind::name;
}

class Audit {
 public:
  Audit(const PtxModule& module, const PtxRules& rules) : module_(module), rules_(rules) {}

  /// @throws PtxRefusal
  void run() {
    if (module_.kernels.size() > 1) throw PtxRefusal{fmt::format("it holds a second kernel, {}", module_.kernels[1])};
    if (module_.kernels.empty() || module_.kernels[0] != rules_.entry)
      throw PtxRefusal{fmt::format("it has no kernel {}", rules_.entry)};
    std::string_view policy;
    for (const Statement& statement : module_.statements) {
      if (statement.kind == Statement::Kind::instruction) check(statement, policy);
      policy = evict_first_policy(statement);
    }
    check_addresses_of_parameters();
    if (rules_.supports_pdl && !waits_)
      throw PtxRefusal{
          "its launch plan lets it begin before the launch before it has ended, and it has no griddepcontrol.wait"};
  }

 private:
  [[noreturn]] static void refuse(std::string_view reason, const Statement& statement) {
    throw PtxRefusal{fmt::format("{}: {}", reason, statement.text())};
  }

  void check(const Statement& statement, std::string_view policy) {
    const std::string_view base = statement.base();
    if (base == "call") refuse("it calls a function outside the kernel contract", statement);
    if (base == "discard" || base == "applypriority")
      refuse("it changes what the L2 cache keeps for whoever runs next", statement);
    if (base == "nanosleep") refuse("it lets time pass, by which it could tell when it is timed", statement);
    if (!is_allowed_instruction(base)) refuse("it uses an instruction outside the kernel contract", statement);
    check_names(statement);
    check_modifiers(statement, policy);
    if (base == "griddepcontrol") {
      // It lets the next launch of the stream begin while this one still runs: time that a clock around the launches
      // does not see as this one's. Where the launch plan says dependent it is allowed: without the attribute, which
      // is how everything is timed that counts, it does nothing, and the gate's chains show whether the waiting is
      // right.
      if (!rules_.supports_pdl) refuse("it lets the next launch begin before it is done", statement);
      waits_ = waits_ || statement.has(".wait");
    }
    const bool within_blocks =
        statement.has(".shared") || statement.has(".shared::cta") || statement.has(".shared::cluster");
    if (!rules_.semaphores && ((base == "atom" || base == "red") && !within_blocks))
      refuse("it counts in global memory, and its launch plan has no semaphores", statement);
    if (!rules_.semaphores && base == "cp" && statement.has(".reduce") && statement.has(".global"))
      refuse("it adds to global memory, and its launch plan has no semaphores", statement);
    if (base == "ld") check_parameter_offsets(statement);
  }

  void check_names(const Statement& statement) {
    for (const PtxToken& token : statement.operands()) {
      if (token.kind == PtxKind::string) refuse("it holds a string among operands", statement);
      if (token.kind != PtxKind::name) continue;
      if (module_.variables.count(token.text) != 0)
        throw PtxRefusal{fmt::format("it keeps state between launches in device memory of its own ({})", token.text)};
      if (token.text == rules_.entry) refuse("it takes the address of its own code", statement);
      if (const std::string reason = refusal_of_register(token.text); !reason.empty()) throw PtxRefusal{reason};
    }
  }

  void check_modifiers(const Statement& statement, std::string_view policy) {
    const bool hinted = statement.has(".L2::cache_hint");
    const bool makes_policy = statement.base() == "createpolicy";
    if ((hinted && !takes_policy(statement, policy)) || (makes_policy && evict_first_policy(statement).empty()))
      refuse("it changes what the L2 cache keeps for whoever runs next", statement);
    for (const PtxToken& modifier : statement.modifiers()) {
      if (modifier.text == ".L2::cache_hint") continue;
      if (const std::string reason = refusal_of_modifier(statement.base(), modifier.text); !reason.empty())
        refuse(reason, statement);
    }
  }

  // What lies below and beyond the parameters in their bank tells the driver's launches apart.
  void check_parameter_offsets(const Statement& statement) {
    const Operands operands = statement.operands();
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const auto param =
          operands[i].kind == PtxKind::name ? module_.params.find(operands[i].text) : module_.params.end();
      if (param == module_.params.end() || i + 1 >= operands.size() || !is_mark(operands[i + 1], "+")) continue;
      const std::string_view digits = i + 2 < operands.size() ? operands[i + 2].text : std::string_view();
      int offset = -1;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), offset);
      if (error != std::errc() || end != digits.data() + digits.size() || offset < 0 || offset >= param->second)
        refuse(fmt::format("it reads outside its parameters, which have {} bytes", param->second), statement);
    }
  }

  // A generic address of a parameter serves bulk copies, whose tensor map lies there. As an address of memory it leads,
  // with an offset, to what the driver keeps beside the parameters: the number of the launch, and memory that no gate
  // looks at.
  void check_addresses_of_parameters() {
    std::set<std::string_view> addresses;
    for (std::size_t known = 0, before = 1; known != before;) {
      before = addresses.size();
      for (const Statement& s : module_.statements) {
        if (s.kind != Statement::Kind::instruction || s.operands().empty()) continue;
        const Operands to = destination(s.operands());
        const bool makes = s.base() == "cvta" && (s.has(".param") || s.has(".param::entry"));
        if (!makes && !names_any(s.operands().subspan(to.size()), addresses)) continue;
        if (!makes && s.base() != "mov" && s.base() != "add" && s.base() != "selp") continue;
        for (const PtxToken& token : to)
          if (token.kind == PtxKind::name && token.text != "_") addresses.insert(token.text);
      }
      known = addresses.size();
    }
    for (const Statement& s : module_.statements) {
      if (s.kind != Statement::Kind::instruction || !names_any(s.operands(), addresses)) continue;
      const bool follows = s.base() == "mov" || s.base() == "add" || s.base() == "selp" || s.base() == "setp" ||
                           (s.base() == "cvta" && (s.has(".param") || s.has(".param::entry")));
      const bool copies = (s.base() == "cp" && s.has(".tensor")) || (s.base() == "prefetch" && s.has(".tensormap"));
      if (!follows && !copies) refuse("it uses the address of its parameters for more than tensor maps", s);
    }
  }

  const PtxModule& module_;
  const PtxRules& rules_;
  bool waits_ = false;
};

}  // namespace

std::string contract_violation_in_ptx(std::string_view ptx, const PtxRules& rules) {
  try {
    const PtxModule module = parse_ptx(ptx);
    Audit(module, rules).run();
    return {};
  } catch (const PtxRefusal& refusal) {
    return refusal.reason;
  }
}

}  // namespace heed::jit
