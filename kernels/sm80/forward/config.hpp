/// fwd_sm80: the knobs, what is legal, and the resources a config takes. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/contract.hpp"
#include "kernels/element.hpp"
#include "kernels/sm80/groups.hpp"
#include "kernels/tile/shared_tile.hpp"

namespace heed::sm80 {

/// How finished rows leave the block. A block with key splits always goes through shared memory, where its parts meet.
enum class Epilogue {
  direct,  ///< each lane writes its pairs of elements: 4-byte stores
  shared,  ///< staged in shared memory, written in 16-byte pieces
};

/// How the warps of a group learn that a tile is there and that a stage may be overwritten.
enum class PipelineSync {
  group,  ///< all meet once a round
  stage,  ///< at two mbarriers a stage: copies arrive at one and warps that have read it at the other, so that warps
          ///< may be a round apart
};

using attention::TileOrder;  ///< ascending, descending, lpt and lpt_then_spt

/// (Q tiles, heads, batch), or heads first: where Q tiles of all heads come in one order.
HEED_HOST_DEVICE constexpr attention::GridAxes grid_axes(TileOrder order) {
  return order == TileOrder::lpt || order == TileOrder::lpt_then_spt ? attention::GridAxes::heads_batch_tiles
                                                                     : attention::GridAxes::tiles_heads_batch;
}

/// One point of the space. Every field changes speed, never results beyond the rounding the gate allows.
struct Config {
  int block_m = 64;    ///< query rows a thread block
  int block_n = 64;    ///< keys a tile
  int warp_rows = 16;  ///< query rows a warp: 16 or 32
  int kv_groups = 1;   ///< groups of warps that hold the same rows and take the tiles of keys in turn
  int stages = 2;      ///< tiles of K and V a group keeps in shared memory
  tile::SharedLayout smem_layout = tile::SharedLayout::swizzled;
  bool q_in_registers = true;  ///< else Q is read from shared memory again for every tile
  bool split_wait = false;     ///< wait for K and V separately: scores start before V has arrived, at one more barrier
  bool overlap = false;        ///< multiply a tile's values one tile later, beside the next tile's exponentials
  bool late_loads = false;     ///< start a round's copies after its scores, else before them
  PipelineSync pipeline_sync = PipelineSync::group;
  attention::Exp2 exp2{};
  attention::Rescale rescale{};
  attention::Rowsum rowsum{};  ///< fadd or mma. A knob of accuracy: more exact where a row maximum is stale
  Epilogue epilogue = Epilogue::shared;
  TileOrder tile_order = TileOrder::descending;
  int min_blocks = 1;  ///< thread blocks a multiprocessor the compiler must leave registers for
  constexpr bool operator==(const Config&) const = default;
};

/// The grid of a launch.
HEED_HOST_DEVICE constexpr attention::Grid3 launch_grid(const Config& c, long long len_q, long long heads,
                                                        long long batch) {
  return attention::grid_of(grid_axes(c.tile_order), attention::q_tiles_of_head(len_q, c.block_m), heads, batch);
}

using sm80_groups::blocks_fit, sm80_groups::registers_allowed, sm80_groups::threads, sm80_groups::threads_per_group,
    sm80_groups::warps_per_group;
using sm80_groups::named_barriers, sm80_groups::NamedBarrier;

/// Dynamic shared memory, in bytes from its start (aligned to 128).
///
///   during the loop:  | Q | group 0: stage 0 K, V | stage 1 K, V | ... | group 1: ... |
///   afterwards:       | partial O of all groups, fp32 | (row_max, sum) of all groups and rows |  kv_groups > 1
///                     | O |                                                                      epilogue=shared
///   throughout:       .. | barriers |                                                            pipeline_sync=stage
struct SharedPlan {
  int q;              ///< (block_m, head_dim)
  int stages;         ///< (kv_groups, stages, {K, V}, block_n, head_dim)
  int stage_bytes;    ///< K and V of one stage
  int partial_out;    ///< (kv_groups, block_m, partial_pitch) fp32
  int partial_pitch;  ///< floats; 4 more than the head dim, so that rows start in different banks
  int row_state;      ///< (kv_groups, block_m, 2) fp32
  int barriers;       ///< (kv_groups, stages, {full, freed}), 8 bytes each
  int total;
};

/// Whether V is of 8 bits, which become fp16 in front of the product with P.
HEED_HOST_DEVICE constexpr bool widens_values(const Problem& problem) {
  return bytes_of(v_element(problem)) == 1;
}
/// What P is rounded to, and V is where it is multiplied: of V in 8 bits fp16, in which each of its numbers is exact.
HEED_HOST_DEVICE constexpr Element value_operand(const Problem& problem) {
  return widens_values(problem) ? Element::fp16 : problem.element;
}

/// Elements of 16 bits that take the room of a row: tiles in shared memory are laid out by them.
HEED_HOST_DEVICE constexpr int row_width(const Problem& problem) {
  return problem.head_dim * bytes_of(problem.element) / 2;
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, const Problem& problem) {
  SharedPlan plan{};
  const int head_dim = problem.head_dim;
  const int kv_bytes = tile::tile_bytes(c.smem_layout, row_width(problem), c.block_n);
  plan.q = 0;
  plan.stages = tile::tile_bytes(c.smem_layout, row_width(problem), c.block_m);
  plan.stage_bytes = 2 * kv_bytes;
  const int loop_bytes = plan.stages + c.kv_groups * c.stages * plan.stage_bytes;
  plan.partial_out = 0;
  plan.partial_pitch = head_dim + 4;
  plan.row_state = c.kv_groups * c.block_m * plan.partial_pitch * 4;
  const int merge_bytes = c.kv_groups > 1 ? plan.row_state + c.kv_groups * c.block_m * 2 * 4 : 0;
  plan.barriers = loop_bytes > merge_bytes ? loop_bytes : merge_bytes;
  plan.total = plan.barriers + (c.pipeline_sync == PipelineSync::stage ? 16 * c.kv_groups * c.stages : 0);
  return plan;
}

/// Registers a thread needs at least: output and score accumulators, Q and the probabilities of the tile before where
/// they are kept, 24 for addresses and row state. In fp32 also the sums of a tile's values and both parts of an operand
/// (kernels/sm80/forward/gemms_fp32.cuh).
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, const Problem& problem) {
  const int fragments = c.warp_rows / 16;
  const int out = fragments * (problem.head_dim / 2 + (c.rowsum == attention::Rowsum::mma ? 4 : 0));
  const int scores = fragments * c.block_n / 2;
  const int bytes = bytes_of(problem.element);
  const int query = c.q_in_registers ? fragments * problem.head_dim * bytes_of(q_element(problem)) / 8 : 0;
  const int probabilities = c.overlap ? fragments * c.block_n * bytes / 8 : 0;
  const int parts = problem.element == Element::fp32 ? fragments * 16 + 24 : 0;
  return out + scores + query + probabilities + parts + 24;
}

enum class Illegal {
  no,
  head_dim,
  block_m,
  kv_groups,
  threads,
  shared_memory,
  occupancy,
  registers,
  overlap,
  polynomial,
  polynomial_fp32,
  rowsum_fp32,
  rowsum_dropout,
  late_loads,
  pipeline_sync,
  same_program,
  listed_blocks,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  if (problem.head_dim != 64 && problem.head_dim != 128 && problem.head_dim != 256) return Illegal::head_dim;
  if (c.block_m % c.warp_rows != 0) return Illegal::block_m;
  if (!attention::are_disjoint(named_barriers(c))) return Illegal::kv_groups;
  if (threads(c) > 1024) return Illegal::threads;
  const int total = shared_plan(c, problem).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  if (!blocks_fit(c, total, shared_bytes_per_processor)) return Illegal::occupancy;
  if (registers_needed(c, problem) > registers_allowed(c)) return Illegal::registers;
  // Values are waited for one tile later as it is, and their tile must not give way to the next one's.
  if (c.overlap && (c.split_wait || c.stages < 2)) return Illegal::overlap;
  // A stale row maximum relies on overflow that shows as an infinity, and the polynomial's wraps around.
  if (c.rescale == attention::Rescale::stale_tile && c.exp2 != attention::Exp2::hardware) return Illegal::polynomial;
  // Of degree 3, as fp16 needs.
  if (problem.element == Element::fp32 && c.exp2 != attention::Exp2::hardware) return Illegal::polynomial_fp32;
  // In fp32 the products take probabilities as they are; of rows with dropout they take those that are kept alone.
  if (c.rowsum == attention::Rowsum::mma && problem.element == Element::fp32) return Illegal::rowsum_fp32;
  if (c.rowsum == attention::Rowsum::mma && problem.features.dropout) return Illegal::rowsum_dropout;
  if (c.late_loads && c.stages < 2) return Illegal::late_loads;  // the only stage is free after a tile's values
  // A stage is waited for as a whole, and copies of more than the next round are what warps may be apart by. Warps of
  // their own need nobody.
  if (c.pipeline_sync == PipelineSync::stage && (c.split_wait || c.stages < 2 || warps_per_group(c) < 2))
    return Illegal::pipeline_sync;
  // Rows of a block walk one list, and a tile of keys lies in one of its blocks.
  if (problem.features.blocks && (kLeastBlock % c.block_m != 0 || kLeastBlock % c.block_n != 0))
    return Illegal::listed_blocks;
  if (c.kv_groups > 1 && c.epilogue == Epilogue::direct) return Illegal::same_program;  // the merge has one way out
  return Illegal::no;
}

}  // namespace heed::sm80
