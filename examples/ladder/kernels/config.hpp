/// The ladder: which steps there are, what was predicted of each, and the resources each takes. Shared by the host,
/// nvcc and NVRTC. A later step is one file and one entry in kSteps.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/shared_tile.hpp"

namespace heed::ladder {

/// What a step keeps in shared memory besides the next one's additions.
enum class Memory {
  none,      ///< everything comes straight from global memory
  one_tile,  ///< K, and after it V in the same place
  tiles,     ///< K and V of every stage
  scores,    ///< Q, K, V, and the scores S in fp32
  output,    ///< Q, K, V, S in fp32, P in 16 bits over S, and O in fp32
};

struct KernelStep {
  const char* name;   ///< value of the knob, e.g. "wmma_both"
  const char* file;   ///< examples/ladder/kernels/<file>.cuh
  const char* type;   ///< class template in that file
  const char* title;  ///< what is new
  double predicted;   ///< time of the step before / time of this one, reasoned before measuring; 0 for the first
  int block_m;        ///< query rows a thread block
  int block_n_64;     ///< keys a tile at head dim 64
  int block_n_128;    ///< keys a tile at head dim 128
  int warps;          ///< warps a block, a producer warp included
  int stages;         ///< tiles of K and V in shared memory
  Memory memory;
  int padding;      ///< floats between rows of S and O beyond their length
  bool persistent;  ///< one block a multiprocessor, which loops over tiles of rows
};

// clang-format off
inline constexpr KernelStep kSteps[] = {
    // name              file             type            title                                             predicted   m    n64  n128 warps stages memory          padding persistent
    {"scalar",           "scalar",        "Scalar",       "minimal scalar: a thread a row",                      0.0, 128,   1,   1,  4, 0, Memory::none,     0, false},
    {"tiled",            "tiled",         "Tiled",        "block tiling: K and V in shared memory",             0.95, 128,  64,  64,  4, 1, Memory::tiles,    0, false},
    {"warp_rows",        "warp_rows",     "WarpRows",     "warp reductions: a warp a row",                       2.5,   4,  32,  32,  4, 1, Memory::one_tile, 0, false},
    {"fewer_barriers",   "fewer_barriers", "FewerBarriers", "fewer barriers: K and V side by side",              1.3,   4,  64,  64,  4, 1, Memory::tiles,    0, false},
    {"eight_warps",      "fewer_barriers", "FewerBarriers", "eight warps share a tile",                          1.2,   8,  64,  64,  8, 1, Memory::tiles,    0, false},
    {"wmma_scores",      "wmma_scores",   "WmmaScores",   "WMMA for the scores",                                0.35,  64,  64,  32,  8, 1, Memory::scores,   0, false},
    {"wmma_both",        "wmma_both",     "WmmaBoth",     "WMMA for both products",                              1.1,  64,  64,  32,  8, 1, Memory::output,   0, false},
    {"producer_2",       "producer",      "Producer",     "cp.async by a producer warp, 2 stages",               1.1,  64,  64,  32,  9, 2, Memory::output,   0, false},
    {"producer_3",       "producer",      "Producer",     "cp.async by a producer warp, 3 stages",               1.0,  64,  64,  32,  9, 3, Memory::output,   0, false},
    {"swizzle",          "swizzle",       "Swizzle",      "XOR swizzle: no bank conflicts",                      2.0,  64,  64,  32,  9, 2, Memory::output,   4, false},
    {"double_buffer",    "double_buffer", "DoubleBuffer", "double buffering without a producer warp",           1.05,  64,  64,  32,  8, 2, Memory::output,   4, false},
    {"fused_epilogue",   "fused_epilogue", "FusedEpilogue", "fused epilogue: divide, round, 16-byte stores",    1.03,  64,  64,  32,  8, 2, Memory::output,   4, false},
    {"persistent",       "persistent",    "Persistent",   "persistent blocks",                                  0.98,  64,  64,  32,  8, 2, Memory::output,   4, true},
};
// clang-format on
inline constexpr int kNumSteps = sizeof(kSteps) / sizeof(kSteps[0]);

/// One point of the family's space.
struct Config {
  int step = 0;  ///< index in kSteps
  constexpr bool operator==(const Config&) const = default;
};

HEED_HOST_DEVICE constexpr int threads(int step) {
  return 32 * kSteps[step].warps;
}

HEED_HOST_DEVICE constexpr int block_n(int step, int head_dim) {
  return head_dim == 128 ? kSteps[step].block_n_128 : kSteps[step].block_n_64;
}

/// Dynamic shared memory, in bytes from its start (aligned to 128).
///
///   | Q | stage 0: K, V | stage 1: K, V | ... | S fp32, later P 16-bit in the same rows | O fp32 |
struct SharedPlan {
  int q;             ///< (block_m, head_dim)
  int stages;        ///< (stages, {K, V}, block_n, head_dim)
  int tile_bytes;    ///< K or V of one stage
  int scores;        ///< (block_m, scores_pitch) fp32
  int scores_pitch;  ///< floats
  int out;           ///< (block_m, out_pitch) fp32
  int out_pitch;     ///< floats
  int total;
};

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(int step, int head_dim) {
  const KernelStep& r = kSteps[step];
  SharedPlan plan{};
  if (r.memory == Memory::none) return plan;
  const int n = block_n(step, head_dim);
  plan.tile_bytes = n * head_dim * 2;
  plan.stages = r.memory == Memory::scores || r.memory == Memory::output ? r.block_m * head_dim * 2 : 0;
  plan.scores = plan.stages + (r.memory == Memory::one_tile ? plan.tile_bytes : r.stages * 2 * plan.tile_bytes);
  plan.total = plan.scores;
  if (r.memory != Memory::scores && r.memory != Memory::output) return plan;
  plan.scores_pitch = n + r.padding;
  plan.out = plan.scores + r.block_m * plan.scores_pitch * 4;
  plan.out_pitch = head_dim + r.padding;
  plan.total = plan.out + (r.memory == Memory::output ? r.block_m * plan.out_pitch * 4 : 0);
  return plan;
}

/// Blocks of a persistent step: one a multiprocessor, never more than there are tiles of rows.
HEED_HOST_DEVICE constexpr long long persistent_blocks(long long tiles, int multiprocessors) {
  const long long most = multiprocessors > 0 ? multiprocessors : 1;
  return tiles < most ? tiles : most;
}

}  // namespace heed::ladder
