/// fwd_sm90_decode where entries of the batch have keys of their own (lengths, pages): where jobs lie on the line of
/// all tiles, and what a job knows of its entry.
///
/// Jobs of an entry have as many tiles as its keys need, so that blocks get equal shares of what there is to read
/// whatever the lengths:
///
///   lengths of 3, 1 and 5 tiles, 3 blocks     | 0 1 2 | 0 | 0 1 2 3 4 |
///                                               block 0 |   1   |  2
///
/// Every warp works out where its block's share lies, from the lengths in global memory: 32 entries at a time.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/sm90/decode/config.hpp"

namespace heed::sm90_decode {

/// Whether jobs differ in their tiles of keys. Where keys lie in pages none in front are cut off the launch
/// (kernels/attention/features.hpp), so that tiles begin anywhere too.
HEED_HOST_DEVICE constexpr bool jobs_differ(const Features& f) {
  return f.lengths || f.pages;
}

/// A job on the line of all tiles.
struct LineJob {
  int entry;
  int head;   ///< counts key heads and, within each, tiles of rows
  int start;  ///< of its tiles on the line
  int tiles;  ///< at least one
};

/// A job with its entry's parameters (of_entry).
struct EntryJob : Job {
  ScoreFeatureParams params;
  int first_key;   ///< of its first tile: a multiple of block_n
  int keys_begin;  ///< keys in front may hold NaN
};

/// What jobs are counted by, and what is known of one.
template <bool kEntries>
struct JobTypes {
  using Index = int;
  using Known = Job;
};
template <>
struct JobTypes<true> {
  using Index = LineJob;
  using Known = EntryJob;
};

template <const Config& kConfig, const Problem& kProblem>
struct Line {
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr unsigned kAll = 0xffffffffU;

  const ScoreFeatureParams& launch;
  int heads;  ///< key heads and their tiles of rows

  __device__ __forceinline__ explicit Line(const ScoreFeatureParams& p)
      : launch(p), heads(p.heads_kv * row_tiles(kConfig, p.group_size, p.len_q)) {}

  __device__ __forceinline__ ScoreFeatureParams params_of(int entry) const {
    if constexpr (is_quantised(kProblem)) {
      ScoreFeatureParams own = of_entry(launch, entry, {2, key_bytes(kProblem), key_bytes(kProblem), 2});
      take_scales_of_entry(own, launch, entry);
      return own;
    } else {
      return of_entry(launch, entry, ElementTraits<kProblem.element>::bytes);
    }
  }
  /// The first key that a row of an entry sees.
  __device__ __forceinline__ static int keys_begin(const ScoreFeatureParams& own) {
    return hidden_keys(kProblem.mask, 0, own.left_offset, own.len_k);
  }
  /// Of its first tile. Tiles begin at multiples of block_n, so that boxes of a page lie in it.
  __device__ __forceinline__ static int first_key(const ScoreFeatureParams& own) {
    return divide(keys_begin(own), kBlockN) * kBlockN;
  }
  __device__ __forceinline__ int tiles_of(int entry) const {
    const ScoreFeatureParams own = params_of(entry);
    if (own.len_q == 0) return 1;
    const int end = visible_keys(kProblem.mask, own.len_q - 1, own.right_offset, own.len_k);
    const int tiles = divide(end + kBlockN - 1, kBlockN) - divide(keys_begin(own), kBlockN);
    return tiles > 0 ? tiles : 1;
  }
  __device__ __forceinline__ bool entries_differ() const {
    return launch.seqused_k != nullptr || launch.cu_seqlens_k != nullptr || launch.cu_seqlens_q != nullptr;
  }

  /// Of all jobs. For whole warps.
  __device__ __forceinline__ int all_tiles(int lane) const {
    if (!entries_differ()) return launch.batch * heads * tiles_of(0);
    int sum = 0;
    for (int entry = lane; entry < launch.batch; entry += 32) sum += tiles_of(entry);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) sum += __shfl_xor_sync(kAll, sum, mask);
    return sum * heads;
  }

  /// The job that a tile of the line is in. For whole warps.
  __device__ __forceinline__ LineJob job_with(int tile, int lane) const {
    if (!entries_differ()) {
      const int tiles = tiles_of(0);
      const int job = divide(tile, tiles);
      const int entry = divide(job, heads);
      return {entry, job - entry * heads, job * tiles, tiles};
    }
    int before = 0;  // tiles of entries in front of these 32
    for (int first = 0;; first += 32) {
      const int tiles = first + lane < launch.batch ? tiles_of(first + lane) * heads : 0;
      int end = tiles;  // of those up to the lane's
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int others = __shfl_sync(kAll, end, lane - by);
        if (lane >= by) end += others;
      }
      const int all = __shfl_sync(kAll, end, 31);
      if (tile < before + all || first + 32 >= launch.batch) {
        int in_front = before + end <= tile ? 1 : 0;
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2) in_front += __shfl_xor_sync(kAll, in_front, mask);
        const int own_tiles = divide(__shfl_sync(kAll, tiles, in_front), heads);
        const int start = before + __shfl_sync(kAll, end - tiles, in_front);
        const int head = divide(tile - start, own_tiles);
        return {first + in_front, head, start + head * own_tiles, own_tiles};
      }
      before += all;
    }
  }

  /// The one after it; behind the last one of the line none that there is.
  __device__ __forceinline__ LineJob next(const LineJob& job) const {
    const int start = job.start + job.tiles;
    if (job.head + 1 < heads) return {job.entry, job.head + 1, start, job.tiles};
    return {job.entry + 1, 0, start, job.entry + 1 < launch.batch ? tiles_of(job.entry + 1) : 1};
  }

  __device__ __forceinline__ EntryJob job_at(const LineJob& at) const {
    EntryJob job;
    job.params = params_of(at.entry);
    const ScoreFeatureParams& own = job.params;
    const int tiles = row_tiles(kConfig, own.group_size, launch.len_q);
    job.batch = at.entry;
    job.kv_head = tiles == 1 ? at.head : divide(at.head, tiles);
    job.first = (at.head - job.kv_head * tiles) * kConfig.block_m;
    job.rows = least(kConfig.block_m, own.group_size * own.len_q - job.first);
    job.keys_begin = keys_begin(own);
    job.first_key = first_key(own);
    job.keys_end = job.keys_plain = 0;
    if (job.rows <= 0) {  // of an entry with fewer queries than others
      job.rows = 0;
      return job;
    }
    constexpr bool kEnds = has_right_bound(kProblem.mask);
    job.keys_end = visible_keys(kProblem.mask, kEnds ? divide(job.first + job.rows - 1, own.group_size) : 0,
                                own.right_offset, own.len_k);
    job.keys_plain =
        visible_keys(kProblem.mask, kEnds ? divide(job.first, own.group_size) : 0, own.right_offset, own.len_k);
    return job;
  }
};

/// Which of a pair of 16-bit values of keys `key` and `key` + 1 count: those of keys in [begin, end).
__device__ __forceinline__ unsigned mask_of_values(int key, int begin, int end) {
  return (key >= begin && key < end ? 0xffffU : 0U) | (key + 1 >= begin && key + 1 < end ? 0xffff0000U : 0U);
}

}  // namespace heed::sm90_decode
