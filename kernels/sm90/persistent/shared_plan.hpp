/// fwd_sm90_persistent: the dynamic shared memory of a block and the barriers in it. Shared by the host, nvcc and
/// NVRTC.
#pragma once

#include "kernels/attention/bias_tiles.hpp"
#include "kernels/sm90/persistent/kv_tiles.hpp"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::sm90_persistent {

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of query stage 0: consumer warpgroup 0, 1, .. | 1 | .. | KV group 0: K of stage 0, 1, .. V of stage 0, 1, .. |
///   KV group 1: .. | what KV groups send each other | what consumer warpgroups of a pair do | rows | lines | biases |
///   barriers | row tiles |
///
/// Of several virtual CTAs first all but barriers and Q tiles, virtual CTA by virtual CTA, then those.
struct SharedPlan {
  int q;               ///< (q_stages, m_warpgroups, boxes, 64 rows, 128 bytes)
  int q_stage_bytes;   ///< of one query stage
  int ring;            ///< (kv_groups, {K, V}, stages, boxes, block_n, 128 bytes)
  int box;             ///< bytes of one box of a KV tile
  int operand;         ///< bytes of K or V of one stage
  int exchange;        ///< (m_warpgroups, kv_groups): what a KV group sends, its slices of the others' and two floats a
                       ///< row. In the sender's stages where it is the only one who reads those. Of two blocks of a
                       ///< cluster, what the other one sent
  int exchange_bytes;  ///< from one consumer warpgroup to the next
  int sender_bytes;    ///< from one sender to the next
  int partner_partials;  ///< (pairs, kv_groups, partner_partial_bytes): what one consumer warpgroup of a pair has of
                         ///< the other's rows
  int partner_partial_bytes;  ///< an output, a row maximum and a sum, in fp32, in the order of registers: 16 bytes a
                              ///< thread each
  int rows;   ///< (m_warpgroups, 4 warps, boxes, 16 rows, 128 bytes): finished rows on their way out. Where KV groups
              ///< become one, lines take the place of what has been received; boxes of Scheduler::single_tile that of
              ///< the queries
  int lines;  ///< (consumer threads, 16 bytes), with EpilogueStore::smem_b128_preaddressed: where a thread's lines go,
              ///< and how far it is from one to the next
  /// (consumer warps, bias_tile_bytes), where biases are copied (copies_biases).
  int biases;
  int barriers;
  int q_tiles;            ///< (q_stages, q_tile_bytes): the QTile whose queries a stage holds; index -1: there is none
                          ///< left. With Scheduler::stream_k its piece behind it, and behind all StreamWords
  int virtual_cta_bytes;  ///< from one virtual CTA to the next
  int virtual_cta_barriers;  ///< from one virtual CTA's barriers to the next one's
  int total;
};

/// Barriers, 8 bytes each.
struct BarrierPlan {
  int queries;   ///< (q_stages, m_warpgroups): a consumer warpgroup's queries have arrived
  int q_empty;   ///< (q_stages): every warp has read them
  int ring;      ///< (kv_groups, stages): the keys and values of an iteration have arrived
  int kv_empty;  ///< (kv_groups, stages): every warp of the KV group is done with them
  int mailbox;   ///< (m_warpgroups), in a cluster: what the other block sends has arrived
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.queries = 0;
  b.q_empty = b.queries + c.q_stages * c.m_warpgroups;
  b.ring = b.q_empty + c.q_stages;
  b.kv_empty = b.ring + c.kv_groups * c.stages;
  b.mailbox = b.kv_empty + c.kv_groups * c.stages;
  b.count = b.mailbox + (c.cluster > 1 ? c.m_warpgroups : 0);
  return b;
}

/// Where KV groups become one, each keeps a slice of the output: of two rows that a lane has, one, so that a quad of
/// lanes has 64 bytes of a row and not 32 of each; of four groups, half of that one's columns.
HEED_HOST_DEVICE constexpr int row_slices(const Config& c) {
  return num_splits(c) == 1 ? 1 : 2;
}
HEED_HOST_DEVICE constexpr int column_slices(const Config& c) {
  return num_splits(c) / row_slices(c);
}

/// Whether a KV group keeps whole boxes of columns, so that finished rows can go through shared memory.
HEED_HOST_DEVICE constexpr bool keeps_whole_boxes(const Config& c, int head_dim) {
  return padded_dim(head_dim) / column_slices(c) % tile::kBoxColumns == 0;
}
/// Whether they do, and leave as lines.
HEED_HOST_DEVICE constexpr bool stores_from_smem(const Config& c) {
  return c.epilogue == EpilogueStore::smem_b128 || c.epilogue == EpilogueStore::smem_b128_preaddressed;
}
/// Whether finished boxes lie where the Q tile's queries were, which nobody reads any more.
HEED_HOST_DEVICE constexpr bool o_overwrites_q(const Config& c) {
  return c.epilogue == EpilogueStore::tma && c.scheduler == Scheduler::single_tile;
}
/// Rows of a box that a warp writes.
HEED_HOST_DEVICE constexpr int box_rows(const Config& c) {
  return kWarpgroupRows / 4 / row_slices(c);
}

/// What a part sends of one consumer warpgroup, in bytes: every slice but its own in fp32, and two floats a row.
/// Between blocks of a cluster it is 16 bits a value, and two floats for each row that is sent.
HEED_HOST_DEVICE constexpr int bytes_sent(const Config& c, int head_dim) {
  const int slice = kWarpgroupRows * padded_dim(head_dim) / num_splits(c) * (c.cluster > 1 ? 2 : 4);
  return num_splits(c) == 1 ? 0 : (num_splits(c) - 1) * slice + kWarpgroupRows * 8 / (c.cluster > 1 ? 2 : 1);
}

/// Whether it is sent by way of the sender's stages: nobody else reads those, and nothing comes into them any more.
HEED_HOST_DEVICE constexpr bool sends_in_stages(const Config& c, int head_dim) {
  const int stages = c.stages * 2 * c.block_n * padded_dim(head_dim) * 2;
  return c.kv_groups > 1 && c.m_warpgroups == 1 && c.scheduler == Scheduler::single_tile &&
         stages >= bytes_sent(c, head_dim);
}

/// What consumers are told of a Q tile.
HEED_HOST_DEVICE constexpr int q_tile_bytes(const Config& c) {
  return streams(c) ? 32 : 16;
}
inline constexpr int kStreamWordBytes = 48;  ///< StreamWords

/// Whether warps copy the biases of a tile to shared memory while its products are multiplied. Beyond head dim 128
/// up to 56 bytes were spilled.
HEED_HOST_DEVICE constexpr bool copies_biases(const Config& c, const Problem& problem) {
  return problem.features.bias && c.softmax_overlap != SoftmaxOverlap::pv && c.virtual_ctas == 1 &&
         padded_dim(problem.head_dim) <= 128 && attention::has_bias_tiles(c.block_n);
}

/// @param bias_bytes of a consumer warp's tile of biases
HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim, int bias_bytes = 0) {
  const int dim = padded_dim(head_dim);
  const int boxes = dim / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.q_stage_bytes = c.m_warpgroups * boxes * kWarpgroupRows * tile::kBoxRowBytes;
  p.ring = c.q_stages * p.q_stage_bytes;
  p.box = c.block_n * tile::kBoxRowBytes;
  p.operand = boxes * p.box;
  const int ring_end = p.ring + c.kv_groups * c.stages * 2 * p.operand;
  const bool in_stages = sends_in_stages(c, head_dim);
  p.exchange = in_stages ? p.ring : ring_end;
  p.sender_bytes = in_stages ? c.stages * 2 * p.operand : bytes_sent(c, head_dim);
  p.exchange_bytes = in_stages ? 0 : c.kv_groups * p.sender_bytes;
  const int exchange_end = ring_end + c.m_warpgroups * p.exchange_bytes;
  p.partner_partials = exchange_end;
  p.partner_partial_bytes = (dim / 8 + 1) * 16 * kWarpgroupThreads;
  const int help_end = p.partner_partials + pairs(c) * c.kv_groups * p.partner_partial_bytes;
  p.rows = help_end;
  const bool has_rows =
      (stores_from_smem(c) && num_splits(c) == 1) || (c.epilogue == EpilogueStore::tma && !o_overwrites_q(c));
  p.lines = help_end + (has_rows ? p.q_stage_bytes : 0);
  const int lines_end = p.lines + (c.epilogue == EpilogueStore::smem_b128_preaddressed ? 16 * consumer_threads(c) : 0);
  p.biases = lines_end;
  const int biases_end = p.biases + consumer_threads(c) / 32 * bias_bytes;
  p.virtual_cta_bytes = (biases_end + 1023) / 1024 * 1024;
  p.barriers = (c.virtual_ctas - 1) * p.virtual_cta_bytes + biases_end;
  p.q_tiles = (p.barriers + 8 * barrier_plan(c).count + 15) / 16 * 16;
  const int end = p.q_tiles + q_tile_bytes(c) * c.q_stages + (streams(c) ? kStreamWordBytes : 0);
  p.virtual_cta_barriers = end - p.barriers / 16 * 16;
  p.total = end + (c.virtual_ctas - 1) * p.virtual_cta_barriers;
  return p;
}
HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, const Problem& problem) {
  return shared_plan(c, problem.head_dim, copies_biases(c, problem) ? attention::bias_tile_bytes(c.block_n) : 0);
}

}  // namespace heed::sm90_persistent
