/// fwd_sm90_stream: a config's one name, and whether it can be built and launched. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/stream/registers.hpp"
#include "kernels/stream/shared_plan.hpp"

namespace heed::stream {

/// Whether row groups come in pairs whose keys differ, and key groups can be cut for all of them alike. One that takes
/// every other tile holds two turns at a time.
HEED_HOST_DEVICE constexpr bool can_pair(const Config& c) {
  return c.tile_order == TileOrder::mirrored && c.stages > 1 && c.row_groups % 2 == 0 &&
         (c.key_groups == 1 || c.row_groups == 2) && c.cluster == 1 && c.teams == 1 && c.overlap != Overlap::products;
}

/// Whether row tiles can be taken to be whole (Sizes::whole).
HEED_HOST_DEVICE constexpr bool can_be_whole(const Config& c, const Problem& problem) {
  const FixedSizes& s = problem.sizes;
  return s.len_q % block_rows(c) == 0 &&
         (!problem.causal || (s.causal_offset >= 0 && s.len_q + s.causal_offset <= s.len_k));
}

/// The config that makes the same program as `c` where knobs have no effect, and the nearest that fits together where
/// they contradict each other. Says nothing about shared memory and registers.
/// @param problem with the sizes of the launches that there will be, or with none where these are not known
HEED_HOST_DEVICE constexpr Config canonical(Config c, const Problem& problem) {
  if (c.tile_order == TileOrder::mirrored && (!problem.causal || c.row_groups == 1))
    c.tile_order = TileOrder::rows_first;
  if (c.schedule != Schedule::one_tile || c.key_groups > 1) c.cluster = 1;
  if (c.tile_order == TileOrder::folded && (!problem.causal || c.schedule != Schedule::one_tile))
    c.tile_order = TileOrder::rows_first;
  if (c.schedule == Schedule::one_tile || c.key_groups > 1) c.teams = 1;
  // More than four teams find no registers on a multiprocessor.
  if (c.teams > 1 && c.teams * c.min_blocks > 4) c.min_blocks = 4 / c.teams;
  if (c.schedule == Schedule::one_tile) c.query_stages = 1;
  if (c.schedule != Schedule::persistent) c.waves = Waves::filled;
  // A row tile a block: all are first ones, and so are nearly all keys.
  if (c.schedule == Schedule::one_tile && first_tiles_that_stay(c.evict_first) > 0) c.evict_first = EvictFirst::values;
  if (c.reference == Reference::exact) c.overlap = Overlap::nothing;
  if (!can_pair(c)) c.pairs = Pairs::apart;
  if (c.row_groups == 1 || c.pairs == Pairs::together) c.turns = Turns::any;
  // Where several row groups share rings, one that waits frees no stage, and the one thread that copies for all key
  // groups would wait for it before it brings what the first key group needs to get to its scores.
  if (c.key_groups == 1 || c.row_groups > 1 || c.schedule != Schedule::one_tile) c.starts = Starts::together;
  if (c.overlap != Overlap::products) c.vote = Vote::at_once;
  if (c.overlap != Overlap::products || !problem.causal) c.masking = Masking::ahead;
  if (c.store == Store::boxes && c.key_groups > 1 && c.schedule != Schedule::one_tile) c.store = Store::rows;
  if ((c.store == Store::boxes || writes_lines(c)) && !keeps_boxes(c, problem.head_dim)) c.store = Store::pieces;
  if (c.store == Store::aimed_rows && c.schedule != Schedule::one_tile) c.store = Store::rows;
  if (c.overlap == Overlap::values) {
    // Its exponentials take their scores' place, in an order of their own.
    c.scaling = Scaling::at_use;
    c.packing = Packing::at_once;
    c.adding = Adding::at_once;
    c.product_order = ProductOrder::scores_first;
    c.arrival = Arrival::at_use;  // it has no register left to keep an answer in, and waits for values behind scores
  }
  if (c.producer == Producer::own_group && !moves_registers(c)) c.producer = Producer::own_warp;
  if (!moves_registers(c)) c.release = Release::at_once;
  // Of several teams some may have no row tile, and hear of that with their queries' barrier.
  if (c.teams > 1) c.shares = Shares::when_due;
  if (c.store == Store::boxes || problem.sizes.len_q == 0) c.outputs = Outputs::any;  // boxes go where a map says
  if (c.outputs == Outputs::dense && c.sizes == Sizes::any) c.sizes = Sizes::fixed;
  if (c.sizes == Sizes::whole && !can_be_whole(c, problem)) c.sizes = Sizes::fixed;
  if (problem.sizes.len_q == 0) c.sizes = Sizes::any;
  if (c.sizes == Sizes::any) c.programs = Programs::all;
  return c;
}

enum class Illegal {
  no,
  head_dim,
  threads,
  tile_keys,
  overlap,
  shared_memory,
  occupancy,
  registers,
  operands,
  same_program,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  if (problem.head_dim % 8 != 0 || problem.head_dim < 8 || problem.head_dim > 256) return Illegal::head_dim;
  if (threads(c) > 1024) return Illegal::threads;
  if (c.tile_keys % kStepKeys != 0 || c.tile_keys < 32 || c.tile_keys > 128) return Illegal::tile_keys;
  if (c.overlap != Overlap::nothing && c.reference == Reference::exact) return Illegal::overlap;
  const int total = shared_plan(c, problem.head_dim).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  // The runtime keeps 1 KiB of each block's shared memory to itself.
  if (static_cast<long long>(c.min_blocks) * (total + 1024) > shared_bytes_per_processor) return Illegal::occupancy;
  if (threads(c) * c.min_blocks > 2048) return Illegal::occupancy;
  if (registers_needed(c, problem.head_dim) > registers_allowed(c)) return Illegal::registers;
  if (registers_named(c, problem.head_dim) > launch_registers(c)) return Illegal::operands;
  if (!(canonical(c, problem) == c)) return Illegal::same_program;
  return Illegal::no;
}

}  // namespace heed::stream
