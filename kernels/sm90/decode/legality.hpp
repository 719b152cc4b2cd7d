/// fwd_sm90_decode: which configs are legal. Shared by the host and tests.
#pragma once

#include "kernels/sm90/decode/config.hpp"

namespace heed::sm90_decode {

enum class Illegal {
  no,
  head_dim,
  columns,
  columns_rows,
  columns_mergers,
  wide_tiles,
  producer,
  producer_of_entries,
  stages,
  threads,
  shared_memory,
  occupancy,
  registers,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  if (problem.head_dim < 8 || problem.head_dim > 256 || problem.head_dim % 8 != 0) return Illegal::head_dim;
  if (key_bytes(problem) == 1 && problem.head_dim % 16 != 0) return Illegal::head_dim;
  const int dim = padded_dim(problem);
  if (by_columns(c)) {
    if (dim % (16 * c.kv_groups) != 0 || c.block_n % (16 * c.kv_groups) != 0) return Illegal::columns;
    if (c.block_m > 32) return Illegal::columns_rows;  // Q alone would take 128 registers
    if (c.merge_warps != 1 || !c.producer_warp) return Illegal::columns_mergers;
  } else {
    if (dim > 128) return Illegal::wide_tiles;  // a warp merges at most 128 columns of a row at once
    if (!c.producer_warp && warps_per_group(c) != 1) return Illegal::producer;
    if (c.stages % c.kv_groups != 0) return Illegal::stages;  // a stage is always the same group's: see SharedPlan
  }
  if ((problem.features.lengths || problem.features.pages) && !c.producer_warp) return Illegal::producer_of_entries;
  if (threads(c) > 1024) return Illegal::threads;
  const int total = shared_plan(c, dim, key_bytes(problem)).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  // The runtime keeps 1 KiB of each block's shared memory to itself.
  if (static_cast<long long>(c.min_blocks) * (total + 1024) > shared_bytes_per_processor) return Illegal::occupancy;
  if (threads(c) * c.min_blocks > 2048) return Illegal::occupancy;
  if (registers_needed(c, problem) > registers_allowed(c)) return Illegal::registers;
  return Illegal::no;
}

}  // namespace heed::sm90_decode
