// Names after https://docs.nvidia.com/cuda/parallel-thread-execution/
#include "jit/ptx_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace heed::jit {
namespace {

using Names = std::unordered_set<std::string_view>;

// Computing, control within the kernel, memory, tensor cores, bulk copies, barriers and clusters. Not among them, by
// what they could be used for: call, tex, tld4, txq, suld, sust, sured, suq (memory that no gate looks at), alloca,
// stacksave, stackrestore (the stack, which the next launch finds), nanosleep (a clock), pmevent and brkpt (signals to
// the outside), discard and applypriority (the L2 of the next launch), tensormap (tensor maps in memory), multimem
// (memory of other GPUs), clusterlaunchcontrol (blocks of other launches).
const Names& instructions() {
  static const Names names = {
      // integers and bits
      "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "div", "rem", "abs", "neg", "min", "max", "addc", "subc",
      "madc", "popc", "clz", "bfind", "fns", "brev", "bfe", "bfi", "szext", "bmsk", "dp2a", "dp4a", "and", "or", "xor",
      "not", "cnot", "lop3", "shf", "shl", "shr", "prmt",
      // floating point
      "fma", "testp", "copysign", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh",
      // comparing, selecting, converting, moving
      "set", "setp", "selp", "slct", "mov", "cvt", "cvta", "isspacep",
      // between lanes
      "shfl", "vote", "match", "activemask", "redux", "elect",
      // memory
      "ld", "st", "atom", "red", "prefetch", "createpolicy", "cp", "mapa", "getctarank", "membar", "fence",
      // tensor cores
      "ldmatrix", "stmatrix", "movmatrix", "mma", "wmma", "wgmma", "setmaxnreg",
      // barriers and control
      "bar", "barrier", "mbarrier", "griddepcontrol", "bra", "brx", "ret", "exit", "trap"};
  return names;
}

}  // namespace

bool is_allowed_instruction(std::string_view base) {
  return instructions().count(base) != 0;
}

std::string refusal_of_register(std::string_view name) {
  if (name.empty() || name.front() != '%') return {};
  static const Names allowed = {"%tid",
                                "%ntid",
                                "%ctaid",
                                "%nctaid",
                                "%laneid",
                                "%warpid",
                                "%lanemask_eq",
                                "%lanemask_le",
                                "%lanemask_lt",
                                "%lanemask_ge",
                                "%lanemask_gt",
                                "%clusterid",
                                "%nclusterid",
                                "%cluster_ctaid",
                                "%cluster_nctaid",
                                "%cluster_ctarank",
                                "%cluster_nctarank",
                                "%is_explicit_cluster",
                                "%dynamic_smem_size",
                                "%total_smem_size",
                                "%aggr_smem_size"};
  if (allowed.count(name) != 0) return {};
  for (const std::string_view clock : {"%clock", "%globaltimer"})
    if (name.starts_with(clock)) return fmt::format("it looks at the time ({})", name);
  for (const std::string_view launch :
       {"%gridid", "%current_graph_exec", "%envreg", "%smid", "%nsmid", "%nwarpid", "%pm", "%reserved_smem"})
    if (name.starts_with(launch))
      return fmt::format("it reads {}, which tells launches, processors or measurements apart", name);
  return {};
}

std::string refusal_of_modifier(std::string_view base, std::string_view modifier) {
  // Lines of L2 that are marked to persist stay when the kernel is done: in an interleaved measurement the candidate's
  // next launch gains and the base, which finds less cache, pays. Hints that cannot outlive the launch are allowed: L1
  // (empty at each launch), evict_first (which only gives up the line itself), and how much a miss fetches.
  if (modifier.starts_with(".L2::")) {
    constexpr std::array kHarmless = {".L2::64B", ".L2::128B", ".L2::256B", ".L2::evict_first"};
    if (std::find(kHarmless.begin(), kHarmless.end(), modifier) == kHarmless.end())
      return "it changes what the L2 cache keeps for whoever runs next";
  }
  if (modifier == ".sys" || modifier == ".mmio")
    return "it orders memory beyond the GPU, where nothing of a kernel's is";
  if (modifier == ".const") return "it reaches for constant memory, which outlives the launch";
  if (modifier == ".tex" || modifier == ".unified") return "it reaches for memory that no launch is given";
  if ((modifier == ".param" || modifier == ".param::entry") && base != "ld" && base != "cvta" && base != "isspacep")
    return "it writes to its parameters";
  if (modifier == ".param::func") return "it calls a function outside the kernel contract";
  return {};
}

bool is_allowed_launch_directive(std::string_view directive) {
  static const Names names = {".maxntid", ".reqntid",           ".minnctapersm",    ".maxnctapersm",
                              ".maxnreg", ".reqnctapercluster", ".explicitcluster", ".maxclusterrank"};
  return names.count(directive) != 0;
}

bool is_allowed_pragma(std::string_view text) {
  constexpr std::string_view kMask = "used_bytes_mask ";  // which bytes of a vector load are used
  return text == "nounroll" || (text.starts_with(kMask) && text.size() > kMask.size() &&
                                text.find_first_not_of("0123456789abcdefx", kMask.size()) == std::string_view::npos);
}

}  // namespace heed::jit
