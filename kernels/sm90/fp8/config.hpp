/// fwd_sm90_fp8: the knobs, what is legal, the shared memory. Shared by the host, nvcc and NVRTC.
///
/// Words of this family:
///   consumer warpgroup   128 threads with 64 query rows of their own
///   Q tile               the query rows of one CTA at a time: 64 a consumer warpgroup
///   KV tile              block_n keys, the N of one QK GEMM
///   slab                 32 keys of V transposed, what one PV wgmma takes: a row of 32 bytes for each value column
///
/// Shared memory of a stage, bytes; D the head dim:
///
///     Q   m_warpgroups x boxes of (64 rows, up to 128 columns)       rows of 128 bytes, of 64 at D = 64, swizzled
///     K   boxes of (block_n rows, up to 128 columns)                 the same
///     V   block_n / 32 slabs of (D rows, 32 keys)                    rows of 32 bytes, swizzled
/// and once, where promote_every is not 0, the sums of each consumer warpgroup: 64 x D in bf16, and the row maxima that
/// each of its threads had when it last added to them, 8 bytes.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/attention/scales.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/contract.hpp"
#include "kernels/sm90/warpgroup.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_fp8 {

using attention::Exp2;
using attention::TileOrder;
using sm90::kWarpgroupRows, sm90::kWarpgroupThreads, sm90::Pingpong;

inline constexpr int kSlabKeys = 32;

struct Config {
  int m_warpgroups = 2;
  int block_n = 128;
  int stages = 2;    ///< of K, and as many of V
  int q_stages = 1;  ///< Q tiles in shared memory
  Pingpong pingpong = Pingpong::off;
  TileOrder tile_order = TileOrder::row_major;
  Exp2 exp2 = Exp2::hardware;
  int min_blocks = 1;
  /// KV tiles after which unfinished outputs are added to sums in shared memory, as tensor cores add products of 8 bits
  /// in 13 bits: what is 2^-13 of a sum is lost. 0: never. A mode of accuracy, which no search moves.
  int promote_every = 0;
  constexpr bool operator==(const Config&) const = default;
};

HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return kWarpgroupThreads * c.m_warpgroups;
}
/// The producer is a warpgroup, of which one thread issues loads: it gives its registers to the consumers.
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return consumer_threads(c) + kWarpgroupThreads;
}
HEED_HOST_DEVICE constexpr int block_rows(const Config& c) {
  return c.m_warpgroups * kWarpgroupRows;
}
HEED_HOST_DEVICE constexpr bool moves_registers(const Config& c) {
  return tile::launch_registers(c) < tile::kMostRegisters;
}
HEED_HOST_DEVICE constexpr int registers_allowed(const Config& c) {
  return moves_registers(c) ? tile::registers_of_consumers(tile::launch_registers(c), threads(c), consumer_threads(c))
                            : tile::launch_registers(c);
}
/// Output, scores, their probabilities in 8 bits, and what addresses and row state take: 12 more where a thread has 128
/// at launch, with which ptxas spills from a count of 152 of 160 on (NVRTC 13.0). Capped scores take 8 more, and so do
/// windows of entries that differ, whose bounds are none of the launch's parameters: else the loops over keys spill.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, const Problem& problem) {
  const Features& f = problem.features;
  const bool has_more = f.softcap || (has_left_bound(problem.mask) && (f.lengths || f.pages));
  const int rest = (tile::launch_registers(c) > 128 ? 28 : 40) + (has_more ? 8 : 0);
  return problem.head_dim / 2 + c.block_n / 2 + c.block_n / 8 + rest;
}

/// Columns of a box of Q or K, one swizzled row of shared memory.
HEED_HOST_DEVICE constexpr int box_columns(int head_dim) {
  return head_dim < 128 ? head_dim : 128;
}

/// Named barriers: 0 is __syncthreads', from here on one a consumer warpgroup (Pingpong).
inline constexpr int kFirstTurn = 1;

/// Barriers in shared memory, by index: each stage of Q, K and V is filled and freed.
struct BarrierPlan {
  int q_full;
  int q_empty;
  int k_full;
  int k_empty;
  int v_full;
  int v_empty;
  int count;
};
HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  const int q = c.q_stages;
  const int s = c.stages;
  return {0, q, 2 * q, 2 * q + s, 2 * q + 2 * s, 2 * q + 3 * s, 2 * q + 4 * s};
}

/// Offsets in shared memory, bytes.
struct SharedPlan {
  int q;
  int q_stage;  ///< from stage to stage
  int k;
  int v;
  int operand;   ///< of a tile of K or of V, from stage to stage
  int sums;      ///< what outputs were before, (warpgroup, D / 16, thread, 8) in bf16
  int sums_max;  ///< row maxima of that time, (warpgroup, thread, 2) in fp32
  int barriers;  ///< 8 bytes each
  int q_tiles;   ///< 16 bytes for each stage of Q: index, head and batch entry
  int claim;     ///< two words: the pieces of V that the block transposes in turn
  int total;
};
HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  SharedPlan p{};
  p.q_stage = block_rows(c) * head_dim;
  p.operand = c.block_n * head_dim;
  p.k = c.q_stages * p.q_stage;
  p.v = p.k + c.stages * p.operand;
  p.sums = p.v + c.stages * p.operand;
  p.sums_max = p.sums + (c.promote_every > 0 ? 2 * block_rows(c) * head_dim : 0);
  p.barriers = p.sums_max + (c.promote_every > 0 ? 8 * consumer_threads(c) : 0);
  p.q_tiles = (p.barriers + 8 * barrier_plan(c).count + 15) / 16 * 16;
  p.claim = p.q_tiles + 16 * c.q_stages;
  p.total = p.claim + 16;
  return p;
}

/// Counters in global memory, zero between launches.
enum Semaphore {
  drawn_tiles,     ///< Q tiles that CTAs have drawn
  claimed_pieces,  ///< pieces of V that CTAs have claimed to transpose
  done_pieces,     ///< those that lie transposed in the workspace
  ctas_done,       ///< CTAs that look at the two before no more: the last one sets them back
  kSemaphores,
};

/// Keys of a launch in whole KV tiles.
HEED_HOST_DEVICE constexpr long long padded_keys(const Config& c, long long keys) {
  return (keys + c.block_n - 1) / c.block_n * c.block_n;
}
/// Bytes of all heads' values, transposed.
HEED_HOST_DEVICE constexpr long long workspace_bytes(const Config& c, int head_dim, long long len_k, long long heads_kv,
                                                     long long batch) {
  return padded_keys(c, len_k) * head_dim * heads_kv * batch;
}

enum class Illegal { no, head_dim, block_n, threads, shared_memory, registers, operands };

HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_of_block) {
  const int d = problem.head_dim;
  if (d != 64 && d != 128 && d != 256) return Illegal::head_dim;
  if (c.block_n % kSlabKeys != 0 || c.block_n < 64 || c.block_n > 256) return Illegal::block_n;
  if (threads(c) > 1024) return Illegal::threads;
  if (shared_plan(c, d).total > shared_of_block) return Illegal::shared_memory;
  if (registers_needed(c, problem) > registers_allowed(c)) return Illegal::registers;
  if (tile::registers_named(d > c.block_n ? d : c.block_n) > tile::launch_registers(c)) return Illegal::operands;
  return Illegal::no;
}

}  // namespace heed::sm90_fp8
