/// fwd_sm90_stream: the dynamic shared memory of a block and the barriers in it. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/stream/shares.hpp"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::stream {

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of query stage 0: row group 0, 1, .. | 1 | .. | key group 0: K of stage 0, 1, .. V of stage 0, 1, .. |
///   key group 1: .. | what key groups send each other | what row groups of a pair do | rows | lines | barriers | row
///   tiles |
///
/// Of several teams first all but barriers and row tiles, team by team, then those.
struct SharedPlan {
  int q;               ///< (query_stages, row_groups, boxes, 64 rows, 128 bytes)
  int query_bytes;     ///< of one query stage
  int ring;            ///< (key_groups, {K, V}, stages, boxes, tile_keys, 128 bytes)
  int box;             ///< bytes of one box of a key tile
  int operand;         ///< bytes of K or V of one stage
  int exchange;        ///< (row_groups, key_groups): what a key group sends, its slices of the others' and two floats a
                       ///< row. In the sender's stages where it is the only one who reads those. Of two blocks of a
                       ///< cluster, what the other one sent
  int exchange_bytes;  ///< from one row group to the next
  int sender_bytes;    ///< from one sender to the next
  int help;            ///< (pairs, key_groups, help_bytes): what one row group of a pair has of the other's rows
  int help_bytes;      ///< an output, a reference and a sum, in fp32, in the order of registers: 16 bytes a thread each
  int rows;   ///< (row_groups, 4 warps, boxes, 16 rows, 128 bytes): finished rows on their way out. Where key groups
              ///< become one, lines take the place of what has been received; boxes of Schedule::one_tile that of the
              ///< queries
  int lines;  ///< (consumer threads, 16 bytes), with Store::aimed_rows: where a thread's lines go, and how
              ///< far it is from one to the next
  int barriers;
  int row_tiles;   ///< (query_stages, 16 bytes): the RowTile whose queries a stage holds; index -1: there is none left
  int team_bytes;  ///< from one team to the next
  int team_barriers;  ///< from one team's barriers to the next one's
  int total;
};

/// Barriers, 8 bytes each.
struct BarrierPlan {
  int queries;        ///< (query_stages, row_groups): a row group's queries have arrived
  int queries_freed;  ///< (query_stages): every warp has read them
  int ring;           ///< (key_groups, stages): the keys and values of a turn have arrived
  int ring_freed;     ///< (key_groups, stages): every warp of the key group is done with them
  int inbox;          ///< (row_groups), in a cluster: what the other block sends has arrived
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.queries = 0;
  b.queries_freed = b.queries + c.query_stages * c.row_groups;
  b.ring = b.queries_freed + c.query_stages;
  b.ring_freed = b.ring + c.key_groups * c.stages;
  b.inbox = b.ring_freed + c.key_groups * c.stages;
  b.count = b.inbox + (c.cluster > 1 ? c.row_groups : 0);
  return b;
}

/// Where key groups become one, each keeps a slice of the output: of two rows that a lane has, one, so that a quad of
/// lanes has 64 bytes of a row and not 32 of each; of four groups, half of that one's columns.
HEED_HOST_DEVICE constexpr int row_slices(const Config& c) {
  return parts(c) == 1 ? 1 : 2;
}
HEED_HOST_DEVICE constexpr int column_slices(const Config& c) {
  return parts(c) / row_slices(c);
}

/// Whether a key group keeps whole boxes of columns, so that finished rows can go through shared memory.
HEED_HOST_DEVICE constexpr bool keeps_boxes(const Config& c, int head_dim) {
  return padded_dim(head_dim) / column_slices(c) % tile::kBoxColumns == 0;
}
/// Whether they do, and leave as lines.
HEED_HOST_DEVICE constexpr bool writes_lines(const Config& c) {
  return c.store == Store::rows || c.store == Store::aimed_rows;
}
/// Whether finished boxes lie where the row tile's queries were, which nobody reads any more.
HEED_HOST_DEVICE constexpr bool boxes_replace_queries(const Config& c) {
  return c.store == Store::boxes && c.schedule == Schedule::one_tile;
}
/// Rows of a box that a warp writes.
HEED_HOST_DEVICE constexpr int box_rows(const Config& c) {
  return kGroupRows / 4 / row_slices(c);
}

/// What a part sends of one row group, in bytes: every slice but its own in fp32, and two floats a row. Between blocks
/// of a cluster it is 16 bits a value, and two floats for each row that is sent.
HEED_HOST_DEVICE constexpr int bytes_sent(const Config& c, int head_dim) {
  const int slice = kGroupRows * padded_dim(head_dim) / parts(c) * (c.cluster > 1 ? 2 : 4);
  return parts(c) == 1 ? 0 : (parts(c) - 1) * slice + kGroupRows * 8 / (c.cluster > 1 ? 2 : 1);
}

/// Whether it is sent by way of the sender's stages: nobody else reads those, and nothing comes into them any more.
HEED_HOST_DEVICE constexpr bool sends_in_stages(const Config& c, int head_dim) {
  const int stages = c.stages * 2 * c.tile_keys * padded_dim(head_dim) * 2;
  return c.key_groups > 1 && c.row_groups == 1 && c.schedule == Schedule::one_tile && stages >= bytes_sent(c, head_dim);
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  const int boxes = dim / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.query_bytes = c.row_groups * boxes * kGroupRows * tile::kBoxRowBytes;
  p.ring = c.query_stages * p.query_bytes;
  p.box = c.tile_keys * tile::kBoxRowBytes;
  p.operand = boxes * p.box;
  const int ring_end = p.ring + c.key_groups * c.stages * 2 * p.operand;
  const bool in_stages = sends_in_stages(c, head_dim);
  p.exchange = in_stages ? p.ring : ring_end;
  p.sender_bytes = in_stages ? c.stages * 2 * p.operand : bytes_sent(c, head_dim);
  p.exchange_bytes = in_stages ? 0 : c.key_groups * p.sender_bytes;
  const int exchange_end = ring_end + c.row_groups * p.exchange_bytes;
  p.help = exchange_end;
  p.help_bytes = (dim / 8 + 1) * 16 * kGroupThreads;
  const int help_end = p.help + pairs(c) * c.key_groups * p.help_bytes;
  p.rows = help_end;
  const bool has_rows = (writes_lines(c) && parts(c) == 1) || (c.store == Store::boxes && !boxes_replace_queries(c));
  p.lines = help_end + (has_rows ? p.query_bytes : 0);
  const int lines_end = p.lines + (c.store == Store::aimed_rows ? 16 * consumer_threads(c) : 0);
  p.team_bytes = (lines_end + 1023) / 1024 * 1024;
  p.barriers = (c.teams - 1) * p.team_bytes + lines_end;
  p.row_tiles = (p.barriers + 8 * barrier_plan(c).count + 15) / 16 * 16;
  const int end = p.row_tiles + 16 * c.query_stages;
  p.team_barriers = end - p.barriers / 16 * 16;
  p.total = end + (c.teams - 1) * p.team_barriers;
  return p;
}

}  // namespace heed::stream
