/// fwd_sm90_split: the dynamic shared memory of a CTA and the barriers in it. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/sm90/split/config.hpp"

namespace heed::sm90_split {

/// Room of what four lanes, two rows, send at once: 64 bytes and a gap.
inline constexpr int kQuadBytes = 80;
/// Room of 16 bytes of every thread of a consumer warpgroup.
HEED_HOST_DEVICE constexpr int piece_bytes() {
  return kWarpgroupThreads / 4 * kQuadBytes;
}

/// Columns of a row that a part keeps and writes.
HEED_HOST_DEVICE constexpr int slice_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) / num_splits(c);
}
/// 16-byte pieces that a thread sends of `columns` columns.
HEED_HOST_DEVICE constexpr int sent_pieces(MergeDtype sent, int columns) {
  return is_pairs(sent) ? columns / 16 : sent == MergeDtype::bits24 ? columns / 32 * 3 : columns / 8;
}
/// Bytes that go with the rows of a part: log2-sum-exps, and with MergeDtype::fixed16 exponents.
HEED_HOST_DEVICE constexpr int row_sums_bytes(const Config& c) {
  return kWarpgroupRows * (c.merge_dtype == MergeDtype::fixed16 ? 8 : 4);
}
/// EpilogueStore::tma: what one copy writes, the rows of a warp and the columns that four lanes have of a row.
inline constexpr int kStoredRows = 16;
inline constexpr int kStoredColumns = 32;
inline constexpr int kStoredBytes = kStoredRows * kStoredColumns * 2;

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of every consumer warpgroup | KV group 0: iteration 0: K n-block 0, 1, .. V part 0, 1, .. | iteration 1 | .. |
///   KV group 1:
///   .. | | ones | rows on their way out | what other parts send, for every consumer warpgroup of every KV group |
///   barriers |
struct SharedPlan {
  int q;              ///< (m_warpgroups, boxes, 64 rows, 128 bytes)
  int ring;           ///< (kv_groups, stages, {K, V}, iteration)
  int key_box;        ///< bytes of one box of an n-block of K: (n-block, 128)
  int value_box;      ///< bytes of one box of the values behind one barrier: (iteration_keys / v_barriers, 128)
  int operand_bytes;  ///< K or V of one iteration
  int ones;           ///< (16 rows, 128 bytes) of ones; 0 bytes without ones columns
  int rows;     ///< (kv_groups, m_warpgroups, 4 warps, slice columns / 32, 16 rows, 64 bytes) with EpilogueStore::tma
  int mailbox;  ///< (kv_groups, m_warpgroups, mailbox_bytes)
  int mailbox_bytes;  ///< of one consumer warpgroup: (parts - 1, slice of a partial output), (parts - 1,
                      ///< row_sums_bytes)
  int slice_bytes;    ///< place of one sender's 64 rows of head dim / parts columns
  int sent_bytes;     ///< what the other parts send to one mailbox, counted on its barrier
  int sums_bytes;     ///< and on that of its log2-sum-exps
  int barriers;
  int total;
};

/// Barriers, 8 bytes each. Of every KV group: n-block k of stage s at s * n-blocks + k, and so on.
struct BarrierPlan {
  int q;
  int keys;  ///< (kv_groups, stages, n-blocks): an n-block of K has arrived (the first with Q, in the first iteration)
  int values;   ///< (kv_groups, stages, v_barriers)
  int freed;    ///< (kv_groups, stages): an iteration has been read; only a producer warp waits for it
  int again;    ///< (kv_groups): an n-block has arrived for the second computation
  int mailbox;  ///< (kv_groups, m_warpgroups): every other split's share has arrived
  int sums;     ///< (kv_groups, m_warpgroups): with LseFirst::on, its log2-sum-exps
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.q = 0;
  b.keys = b.q + 1;
  b.values = b.keys + c.kv_groups * c.stages * c.n_blocks_per_stage;
  b.freed = b.values + c.kv_groups * c.stages * c.v_barriers;
  b.again = b.freed + c.kv_groups * c.stages;
  b.mailbox = b.again + c.kv_groups;
  b.sums = b.mailbox + c.kv_groups * c.m_warpgroups;
  b.count = b.sums + (c.lse_first == LseFirst::on ? c.kv_groups * c.m_warpgroups : 0);
  return b;
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  const int boxes = padded_dim(head_dim) / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.ring = c.m_warpgroups * boxes * kWarpgroupRows * tile::kBoxRowBytes;
  p.key_box = c.block_n * tile::kBoxRowBytes;
  p.value_box = iteration_keys(c) / c.v_barriers * tile::kBoxRowBytes;
  p.operand_bytes = boxes * iteration_keys(c) * tile::kBoxRowBytes;
  p.ones = p.ring + c.kv_groups * c.stages * 2 * p.operand_bytes;
  p.rows = p.ones + (c.rowsum == Rowsum::mma ? kMmaK * tile::kBoxRowBytes : 0);
  p.mailbox = p.rows + (c.epilogue == EpilogueStore::tma
                            ? c.kv_groups * c.m_warpgroups * 2 * kWarpgroupRows * slice_columns(c, head_dim)
                            : 0);
  const int pieces = sent_pieces(c.merge_dtype, slice_columns(c, head_dim));
  p.slice_bytes = pieces * piece_bytes();
  p.mailbox_bytes = (num_splits(c) - 1) * (p.slice_bytes + row_sums_bytes(c));
  const int sums = (num_splits(c) - 1) * row_sums_bytes(c);
  p.sums_bytes = c.lse_first == LseFirst::on ? sums : 0;
  p.sent_bytes = (num_splits(c) - 1) * pieces * 16 * kWarpgroupThreads + sums - p.sums_bytes;
  p.barriers = p.mailbox + c.kv_groups * c.m_warpgroups * p.mailbox_bytes;
  p.total = p.barriers + 8 * barrier_plan(c).count;
  return p;
}

}  // namespace heed::sm90_split
