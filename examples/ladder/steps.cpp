#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "examples/ladder/kernels/config.hpp"
#include "ladder/ladder.hpp"

namespace heed::ladder {
namespace {

// FlashAttention-2's tile: four warps of 16 rows, tiles of 64 keys.
constexpr const char* kFirstConfig =
    "fwd_sm80:block_m=64,block_n=64,warp_rows=16,kv_groups=1,stages=2,smem_layout=swizzled,q_in_registers=on,"
    "split_wait=off,overlap=off,late_loads=off,exp2=hardware,rescale=when_grown,epilogue=shared,tile_order=descending,"
    "min_blocks=1";
constexpr const char* kGoodConfig =
    "fwd_sm80:block_m=32,block_n=64,warp_rows=16,kv_groups=4,stages=3,smem_layout=swizzled,q_in_registers=on,"
    "split_wait=off,overlap=off,late_loads=off,exp2=hardware,rescale=always,epilogue=shared,tile_order=ascending,min_"
    "blocks=1";

}  // namespace

std::vector<Step> steps() {
  std::vector<Step> all;
  const auto add = [&](Step step) {
    if (!all.empty()) step.before = all.back().name;
    all.push_back(std::move(step));
  };
  for (const KernelStep& kernel : kSteps) {
    // The founders' detour comes before the tensor cores are programmed by hand. Predicted: about 50 us of shuffles and
    // multiply-adds become two matrix products and a softmax of about 4 us each, which write S and P to memory.
    if (kernel.name == std::string_view("wmma_scores"))
      add({.name = "hybrid",
           .title = "matrix library, softmax, matrix library: three kernels",
           .variant = {},
           .backend = "sdpa_hybrid",
           .predicted = 4.0,
           .before = {}});
    add({.name = kernel.name,
         .title = kernel.title,
         .variant = fmt::format("ladder:step={}", kernel.name),
         .backend = {},
         .predicted = kernel.predicted,
         .before = {}});
  }
  // S, P and O never leave the registers: three round trips through shared memory and two of three barriers a tile go.
  add({.name = "mma_registers",
       .title = "mma.sync, everything in registers: fwd_sm80 with FlashAttention-2's tile",
       .variant = kFirstConfig,
       .backend = {},
       .predicted = 1.7,
       .before = {}});
  // 128 blocks instead of 64 fill the multiprocessors (1.40 times as fast), and four groups of warps split the keys of
  // each (1.61): evidence/h200/evolve_1000_fwd_sm80_b1h8l512d64.json.
  add({.name = "mma_tuned",
       .title = "the same kernel, its config found by search",
       .variant = kGoodConfig,
       .backend = {},
       .predicted = 1.65,
       .before = {}});
  return all;
}

std::vector<Step> choose(std::span<const Step> all, const std::string& names) {
  if (names.empty()) return {all.begin(), all.end()};
  std::vector<std::string> wanted = split(names, ',');
  std::vector<std::string_view> known;
  for (const Step& step : all) known.push_back(step.name);
  for (const std::string& name : wanted)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(ErrorCode::usage, fmt::format("unknown step \"{}\"; {}", name, one_of(name, known)), name);
  std::vector<Step> chosen;
  for (const Step& step : all)
    if (std::find(wanted.begin(), wanted.end(), step.name) != wanted.end()) chosen.push_back(step);
  return chosen;
}

}  // namespace heed::ladder
