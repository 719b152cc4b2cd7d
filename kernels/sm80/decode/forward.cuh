/// fwd_sm80_decode: few queries, many keys, grouped heads. Bound by memory: every key and value is read once.
///
/// The query rows that share a key head are one matrix of group_size * len_q packed rows (config.hpp: PackedRow), cut
/// into tiles of block_m. The keys of a tile of rows are split evenly over gridDim.x thread blocks, those of a block
/// over groups of warps, tile of block_n keys after tile:
///
///      split 0 (blockIdx.x = 0)          split 1                           groups = 2, warps_per_group = 1
///   | g0 | g1 | g0 | g1 | g0 |  | g0 | g1 | g0 | g1 | g0 |   ...
///     one ring of stages a group, filled by the group itself with cp.async: no block barrier in the loop
///
/// A stage's K is asked for anew as soon as its scores are done, its V as soon as its product is: while a group waits,
/// all of its stages are under way. Partial outputs meet twice: those of the groups in shared memory, those of the
/// splits in the workspace, where the block that arrives last at the row tile's counter merges them in fixed order.
/// After Flash-Decoding (Dao et al. 2023), without its second kernel.
#pragma once

#include "kernels/attention/packed_scores.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm80/decode/block.cuh"
#include "kernels/sm80/decode/merge.cuh"
#include "kernels/sm80/decode/paged_copies.cuh"
#include "kernels/sm80/decode/quantised.cuh"
#include "kernels/tile/fragment.hpp"

namespace heed::sm80_decode {

template <const Config& kConfig, const Problem& kProblem>
struct Forward {
  using Block = sm80_decode::Block<kConfig, kProblem>;
  using Quantised = QuantisedGemms<kConfig, kProblem>;
  using Merge = sm80_decode::Merge<kConfig, kProblem>;
  using Scores = typename Quantised::Scores;
  using Query = typename Quantised::Query;

  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = Block::kFragments;
  static constexpr int kOutTiles = Block::kOutTiles;
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = Block::kGroupThreads;
  static constexpr int kThreads = Block::kThreads;
  static constexpr int kChunks = Block::kChunks;
  static constexpr int kStages = kConfig.stages;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kBegins = Block::kBegins;
  static constexpr bool kHasOrigin = Block::kHasOrigin;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr int kKeyTiles = kBlockN / 8;  // n-tiles of S
  static constexpr int kKeyBytes = key_bytes(kProblem);
  static constexpr int kKeyPairs = kDim * kKeyBytes / 2;
  static constexpr int kKeyChunks = kKeyPairs / 8;              // 16-byte chunks a row of K
  static constexpr int kCopyRows = kGroupThreads / kKeyChunks;  // rows a group copies at once
  static constexpr int kCopies = kBlockN / kCopyRows;           // copies a thread for K or V of a tile
  static constexpr int kPending = 2 * kStages - 1;              // commit groups after the one waited for
  static constexpr int kFetchBytes = 128 * static_cast<int>(kConfig.l2_prefetch_size);  // L2PrefetchSize: 0, 128, 256
  static constexpr auto kLayout = kConfig.smem_layout;
  static constexpr bool kPages = kProblem.features.pages;
  // Of the first copies: instructions that run once are fetched once, but pages looked up for every stage lie in
  // registers.
  static constexpr int kUnrolled = kPages ? kStages : 1;
  static constexpr bool kChanges = changes_scores(kProblem.features);

  static_assert(kDim % 16 == 0 && kBlockN % 16 == 0, "mma.m16n8k16 takes 16 of the head dim and 16 keys at a time");
  static_assert(kBlockM % kConfig.warp_rows == 0, "warps must share the rows evenly");
  static_assert(kGroupThreads % kKeyChunks == 0 && kBlockN % kCopyRows == 0, "a group copies whole rows, evenly");
  static_assert(static_cast<int>(L2PrefetchSize::b128) == 1 && static_cast<int>(L2PrefetchSize::b256) == 2);

  using Changes = attention::PackedRowChanges<kProblem>;
  using Pages = PagesOfTile<kConfig, kProblem>;

  // ---- state
  Block block;

  __device__ __forceinline__ Forward(const Params<kProblem>& launch, char* shared) : block(launch, shared) {}

  /// This thread's share of a group's tiles of K, or of V: kCopies chunks of 16 bytes a tile, tile after tile.
  struct Source {
    unsigned long long next;  // of the next tile: an integer, since it may run past the tensor's end
    long long row_bytes;

    __device__ __forceinline__ Source(const void* tensor, long long offset, long long row_stride, int row, int chunk)
        : next(reinterpret_cast<unsigned long long>(tensor) +
               kKeyBytes * (offset + row * row_stride + 16 / kKeyBytes * chunk)),
          row_bytes(kKeyBytes * row_stride) {}

    /// Starts copying the next tile of the group, whose first key is `first`, to `tile`; keys from `end` on, which is
    /// behind the first, become zeros.
    __device__ __forceinline__ void copy(unsigned tile, int first, int end, const Pages&, long long) {
      const int copy_row = threadIdx.x % kGroupThreads / kKeyChunks;
      const int chunk = threadIdx.x % kKeyChunks;
      const auto start = [&](int i, unsigned long long from, int bytes) {
        ptx::cp_async_cg_16_fetch<kFetchBytes>(
            tile + key_chunk_offset(kLayout, kKeyPairs, copy_row + i * kCopyRows, chunk), from, bytes);
      };
      if (first + kBlockN <= end) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) start(i, next + i * kCopyRows * row_bytes, 16);
      } else {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const bool inside = first + copy_row + i * kCopyRows < end;
          // The address of a key that exists, even if nothing is read from it: the tile's first.
          start(i, next + (inside ? i * kCopyRows : -copy_row) * row_bytes, inside ? 16 : 0);
        }
      }
      next += kGroups * kBlockN * row_bytes;
    }
  };

  /// Of K or V: where keys may lie in pages, offsets are of the first page.
  using KeySource = typename SourceWhere<kPages, Source, PagedSource<kConfig, kProblem>>::Type;

  /// Copies the block's packed rows of Q into shared memory; rows beyond the real ones become zeros.
  __device__ __forceinline__ void copy_queries() const {
#pragma unroll
    for (int i = 0; i < (kBlockM * kChunks + kThreads - 1) / kThreads; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      if (kBlockM * kChunks % kThreads == 0 || index < kBlockM * kChunks) {
        const bool inside = row < block.rows.rows;
        const PackedRow at = packed_row(block.rows.first + (inside ? row : 0), block.params.group_size);
        const long long offset =
            block.batch * block.params.q_strides.batch +
            (block.rows.kv_head * block.params.group_size + at.head) * block.params.q_strides.head +
            at.query * block.params.q_strides.row + 8 * chunk;
        ptx::cp_async_cg_16(block.shared_base + kPlan.q + tile::chunk_offset(kLayout, kDim, row, chunk),
                            static_cast<const unsigned short*>(block.params.q) + offset, inside ? 16 : 0);
      }
    }
  }

  /// Address a lane gives to ldmatrix for a 16 x 16 block at (row, 8 * chunk) of a tile.
  __device__ __forceinline__ static unsigned block_address(unsigned tile, int row, int chunk,
                                                           tile::Coordinate lane_offset) {
    return tile + tile::chunk_offset(kLayout, kDim, row + lane_offset.row, chunk + lane_offset.column / 8);
  }

  __device__ __forceinline__ void load_query(unsigned (&a)[4], int m, int k) const {
    ptx::ldmatrix_x4(a, block_address(block.shared_base + kPlan.q, block.warp * kConfig.warp_rows + 16 * m, 2 * k,
                                      tile::ldmatrix_a_address(block.lane)));
  }

  __device__ __forceinline__ void look_up(Pages& pages, int first) const {
    if constexpr (kPages) pages.look_up(block.params, block.batch, first, block.keys_end);
  }

  __device__ __forceinline__ void run() {
    if constexpr (kProblem.features.lengths)
      if (block.rows.rows <= 0) return;  // all blocks of this tile of rows: none waits to be counted
    const TileRange tiles =
        tiles_of_split(kHasOrigin ? block.keys_end - block.origin() : block.keys_end, kBlockN, gridDim.x, blockIdx.x);
    const int group_tiles = tiles_of_group(tiles.count, kGroups, block.group);

    // ---- K and V of the first stages, each a commit group; Q belongs to the first
    int copy_key = (tiles.first + block.group) * kBlockN;  // first key of the next tile to ask for
    if constexpr (kHasOrigin) copy_key += block.origin();
    constexpr int kLookedUp = kPages ? kStages + 1 : 1;
    Pages pages[kLookedUp];
#pragma unroll
    for (int s = 0; s < kLookedUp; ++s) look_up(pages[s], copy_key + s * kGroups * kBlockN);
    const int thread_key = copy_key + static_cast<int>(threadIdx.x) % kGroupThreads / kKeyChunks;
    const int chunk = threadIdx.x % kKeyChunks;
    KeySource source_k(
        block.params.k,
        (kPages ? 0 : block.batch) * block.params.k_strides.batch + block.rows.kv_head * block.params.k_strides.head,
        block.params.k_strides.row, thread_key, chunk);
    KeySource source_v(
        block.params.v,
        (kPages ? 0 : block.batch) * block.params.v_strides.batch + block.rows.kv_head * block.params.v_strides.head,
        block.params.v_strides.row, thread_key, chunk);
    if (group_tiles > 0)
      source_k.copy(block.stage_address(0), copy_key, block.keys_end, pages[0], block.params.k_strides.batch);
    copy_queries();  // not before: its addresses take two divisions
    ptx::cp_async_commit_group();
#pragma unroll kUnrolled
    for (int s = 0; s < kStages; ++s) {
      if (s < group_tiles)
        source_v.copy(block.stage_address(s) + kPlan.tile_bytes, copy_key, block.keys_end, pages[kPages ? s : 0],
                      block.params.v_strides.batch);
      ptx::cp_async_commit_group();
      copy_key += kGroups * kBlockN;
      if (s + 1 < kStages) {
        if (s + 1 < group_tiles)
          source_k.copy(block.stage_address(s + 1), copy_key, block.keys_end, pages[kPages ? s + 1 : 0],
                        block.params.k_strides.batch);
        ptx::cp_async_commit_group();
      }
    }
    Pages& next = pages[kLookedUp - 1];  // of the next tile to ask for

    float out[kFragments][kOutTiles][4];
#pragma unroll
    for (int m = 0; m < kFragments; ++m) attention::clear(out[m]);
    attention::RowState<kFragments> state;
    state.reset();
    const float scale_log2 = kChanges ? 1.0F : block.params.scale * attention::kLog2e;

    // Keys that this lane's rows see. Rows beyond the real ones are zeros and see what they like.
    int row_end[kFragments][2];
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = block.rows.first + block.warp * kConfig.warp_rows + 16 * m + block.lane / 4 + 8 * h;
        row_end[m][h] =
            visible_keys(kProblem.mask, has_right_bound(kProblem.mask) ? divide(row, block.params.group_size) : 0,
                         block.params.right_offset, block.params.len_k);
      }

    Changes changes[kFragments][2];
    if constexpr (kChanges)
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          changes[m][h] = Changes(block.params, block.batch, block.rows.kv_head,
                                  block.rows.first + block.warp * kConfig.warp_rows + 16 * m + block.lane / 4 + 8 * h);

    // ---- Q: it has arrived with the first commit group of every thread
    ptx::cp_async_wait_group<kPending>();
    __syncthreads();
    Query query;
    [[maybe_unused]] typename Quantised::Factors factors;
    if constexpr (kQuantised) {
      Quantised::take_queries(block, query, factors);
    } else if constexpr (kConfig.q_in_registers) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) load_query(query[m][k], m, k);
    }

    // ---- the loop over this group's tiles
    int stage = 0;
    int first_key = (tiles.first + block.group) * kBlockN;
    if constexpr (kHasOrigin) first_key += block.origin();
    for (int t = 0; t < group_tiles; ++t) {
      const unsigned keys = block.stage_address(stage);
      const unsigned values = keys + kPlan.tile_bytes;
      const bool ask = t + kStages < group_tiles;
      if constexpr (kQuantised) Quantised::load_factors(block, factors, first_key);

      ptx::cp_async_wait_group<kPending>();
      block.group_barrier();  // every thread's part of K is there
      Scores scores;
#pragma unroll
      for (int m = 0; m < kFragments; ++m) attention::clear(scores[m]);
      if constexpr (kQuantised) {
        Quantised::multiply_keys(block, scores, query, keys);
        Quantised::scale_scores(scores, factors);
      } else {
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
          unsigned a[kFragments][4];
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
            if constexpr (kConfig.q_in_registers) {
#pragma unroll
              for (int i = 0; i < 4; ++i) a[m][i] = query[m][k][i];
            } else {
              load_query(a[m], m, k);
            }
          }
#pragma unroll
          for (int n = 0; n < kKeyTiles; n += 2) {
            unsigned b[4];
            ptx::ldmatrix_x4(b, block_address(keys, 8 * n, 2 * k, tile::ldmatrix_k_address(block.lane)));
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
              ptx::mma_m16n8k16<kProblem.element>(scores[m][n], a[m], b[0], b[1]);
              ptx::mma_m16n8k16<kProblem.element>(scores[m][n + 1], a[m], b[2], b[3]);
            }
          }
        }
      }
      block.group_barrier();  // K is read: its place is free
      if (ask) source_k.copy(keys, copy_key, block.keys_end, next, block.params.k_strides.batch);
      ptx::cp_async_commit_group();  // empty groups keep the count of pending groups the same in every round

      if constexpr (kChanges) change_scores(scores, changes, row_end, first_key);
      if (first_key + kBlockN > block.keys_plain) hide_keys(scores, first_key, row_end);
      if constexpr (kBegins)
        if (first_key < keys_hidden()) hide_first_keys(scores, first_key);
      attention::softmax_tile<kConfig.exp2, kConfig.rescale>(scores, out, state, scale_log2);

      ptx::cp_async_wait_group<kPending>();
      block.group_barrier();  // and V
#pragma unroll
      for (int k = 0; k < kBlockN / 16; ++k) {
        unsigned p[kFragments][4];
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
          attention::round_to_operand<Block::kOperand>(p[m], scores[m][2 * k], scores[m][2 * k + 1]);
        if constexpr (kQuantised) {
          Quantised::multiply_values(block, out, p, values, k);
        } else {
#pragma unroll
          for (int n = 0; n < kOutTiles; n += 2) {
            unsigned b[4];
            ptx::ldmatrix_x4_trans(b, block_address(values, 16 * k, n, tile::ldmatrix_v_address(block.lane)));
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
              ptx::mma_m16n8k16<kProblem.element>(out[m][n], p[m], b[0], b[1]);
              ptx::mma_m16n8k16<kProblem.element>(out[m][n + 1], p[m], b[2], b[3]);
            }
          }
        }
      }
      block.group_barrier();  // V is read
      if (ask) source_v.copy(values, copy_key, block.keys_end, next, block.params.v_strides.batch);
      ptx::cp_async_commit_group();

      copy_key += kGroups * kBlockN;
      look_up(next, copy_key);
      first_key += kGroups * kBlockN;
      if (++stage == kStages) stage = 0;
    }
    ptx::cp_async_wait_group<0>();
    state.reduce();
    __syncthreads();  // no group reads Q, K or V any more
    Merge::put_partials(block, out, state);
    __syncthreads();
    Merge::merge_groups(block);
    if (gridDim.x > 1 && Merge::arrives_last(block)) Merge::merge_splits(block);
  }

  __device__ __forceinline__ void change_scores(Scores& scores, const Changes (&changes)[kFragments][2],
                                                const int (&row_end)[kFragments][2], int first_key) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        changes[m][h].template change<2 * kKeyTiles>(
            block.params, first_key + 2 * (block.lane % 4), row_end[m][h],
            [&](int i) -> float& { return scores[m][i / 2][2 * h + i % 2]; }, [](int i) { return i / 2 * 8 + i % 2; });
  }

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(Scores& scores, int first_key, const int (&row_end)[kFragments][2]) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
      for (int h = 0; h < 2; ++h)
        attention::hide_columns_from(scores[m], h, row_end[m][h], first_key + 2 * (block.lane % 4));
  }

  // ---- masks with a left bound
  __device__ __forceinline__ int keys_hidden() const {
    return keys_some_hide(kProblem.mask, block.rows, block.params.group_size, block.params.left_offset,
                          block.params.len_k);
  }
  /// The same of keys in front of those that a row sees.
  __device__ __forceinline__ void hide_first_keys(Scores& scores, int first_key) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = block.rows.first + block.warp * kConfig.warp_rows + 16 * m + block.lane / 4 + 8 * h;
        const int begin = hidden_keys(kProblem.mask, divide(row, block.params.group_size), block.params.left_offset,
                                      block.params.len_k) -
                          first_key - 2 * (block.lane % 4);
        attention::hide_columns_before(scores[m], h, begin);
      }
  }
};

}  // namespace heed::sm80_decode
