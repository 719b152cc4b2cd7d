/// The thread that asks for Q tiles, keys and transposed values of fwd_sm90_fp8.
#pragma once

#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/fp8/layout.cuh"
#include "kernels/sm90/fp8/transposed_values.cuh"
#include "kernels/sm90/page_boxes.cuh"
#include "kernels/sm90/rows_in_maps.cuh"

namespace heed::sm90_fp8 {

template <const Config& kConfig, const Problem& kProblem>
struct Producer {
  using Smem = Layout<kConfig, kProblem>;
  using Values = TransposedValues<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kStages = kConfig.stages;
  /// KV tiles before the last of a Q tile when the next Q tile is drawn: late, so that CTAs draw when they are nearly
  /// done, and early enough for the answer to be there.
  static constexpr int kDrawnAhead = 2;
  static constexpr bool kLengths = kProblem.features.lengths;
  using Rows = sm90::RowsInMaps<kLengths>;

  const ScoreFeatureParams& params;  ///< of the launch
  const TensorMaps& maps;
  Smem smem;
  [[no_unique_address]] typename Values::Pieces pieces;
  Ring<kConfig.q_stages> query{0, 1};  // what no fill has used yet counts as freed
  Ring<kStages> keys{0, 1};
  Ring<kStages> values{0, 1};
  bool has_values = false;  // whether all of V lies transposed

  __device__ __forceinline__ int total() const {
    return (params.len_q + block_rows(kConfig) - 1) / block_rows(kConfig) * params.heads * params.batch;
  }

  __device__ __forceinline__ void run() {
    const int all = total();
    int next = static_cast<int>(blockIdx.x);
    while (next < all) next = load_q_tile(q_tile_of<kConfig, kProblem>(params, next), all);
    ptx::mbarrier_wait(smem.q_empty(query.stage), query.parity);
    ptx::st_shared_v4(smem.q_tile(query.stage), 0xffffffffU);
    ptx::mbarrier_arrive(smem.q_full(query.stage));
    if (!has_values) Values{params}.wait(pieces);  // or counts might come in after they were set back
    Values{params}.leave();
    ptx::griddepcontrol_launch_dependents();
  }

 private:
  /// Queries, then keys and, behind the keys of the next tile, values: as consumers take them.
  /// @return the index of the next Q tile
  __device__ __forceinline__ int load_q_tile(const attention::QTile& tile, int all) {
    const attention::ParamsOfEntry<kProblem> own = attention::params_of_entry<kProblem>(params, tile.batch);
    [[maybe_unused]] Rows rows;
    if constexpr (kLengths) {
      // Consumers do not hear of Q tiles behind the end of an entry.
      if (tile.index * block_rows(kConfig) >= own.len_q) return draw(all);
      sm90::find_rows(rows, params, tile.batch);
    }
    const int kv_head = params.group_size == 1 ? tile.head : tile.head / params.group_size;
    const KvTiles tiles = kv_tiles<kConfig, kProblem>(own, tile.index);
    const int draw_at = min(tiles.first + kDrawnAhead, tiles.end - 1);
    ptx::mbarrier_wait(smem.q_empty(query.stage), query.parity);
    ptx::st_shared_v4(smem.q_tile(query.stage), static_cast<unsigned>(tile.index), static_cast<unsigned>(tile.head),
                      static_cast<unsigned>(tile.batch), 0);
    ptx::mbarrier_arrive_expect_tx(smem.q_full(query.stage), Smem::kPlan.q_stage);
#pragma unroll 1
    for (int w = 0; w < kConfig.m_warpgroups; ++w)
#pragma unroll
      for (int b = 0; b < Smem::kBoxes; ++b)
        ptx::cp_async_bulk_tensor_4d(smem.queries(query.stage, w) + b * Smem::kQBox, maps.q, smem.q_full(query.stage),
                                     b * Smem::kColumns,
                                     row_of_map(rows, tile.index * block_rows(kConfig) + w * kWarpgroupRows), tile.head,
                                     batch_of_map(rows, tile.batch));
    query.advance();
    int next = all;
    if (tiles.first >= tiles.end) next = draw(all);
#pragma unroll 1
    for (int n = tiles.end - 1; n >= tiles.first; --n) {
      load_keys(own, rows, n, kv_head, tile.batch);
      if (n + 1 < tiles.end) load_values(n + 1, kv_head, tile.batch);
      if (n == draw_at) next = draw(all);
    }
    if (tiles.first < tiles.end) load_values(tiles.first, kv_head, tile.batch);
    return next;
  }

  /// CTAs together draw as many tickets as there are Q tiles, so that the counter is back at zero then.
  __device__ __forceinline__ int draw(int all) const {
    const unsigned ticket = ptx::atom_inc_relaxed_gpu(params.semaphores + drawn_tiles, static_cast<unsigned>(all - 1));
    return static_cast<int>(gridDim.x + ticket);
  }

  __device__ __forceinline__ static int row_of_map(const Rows& rows, int row) {
    if constexpr (kLengths) return rows.first_q + row;
    return row;
  }
  __device__ __forceinline__ static int batch_of_map(const Rows& rows, int batch) {
    if constexpr (kLengths) return rows.q_batch;
    return batch;
  }

  /// @param own the launch as the entry has it
  __device__ __forceinline__ void load_keys(const ScoreFeatureParams& own, const Rows& rows, int n, int kv_head,
                                            int batch) {
    const unsigned barrier = smem.k_full(keys.stage);
    ptx::mbarrier_wait(smem.k_empty(keys.stage), keys.parity);
    ptx::mbarrier_arrive_expect_tx(barrier, Smem::kPlan.operand);
    if constexpr (kProblem.features.pages)
      if (params.page_table != nullptr) {
        load_keys_from_pages(own, barrier, n * kConfig.block_n, kv_head, batch);
        keys.advance();
        return;
      }
    int first = n * kConfig.block_n;
    if constexpr (kLengths) {
      first += rows.first_k;
      batch = rows.k_batch;
    }
#pragma unroll
    for (int b = 0; b < Smem::kBoxes; ++b)
      ptx::cp_async_bulk_tensor_4d(smem.keys(keys.stage) + b * Smem::kKBox, maps.k, barrier, b * Smem::kColumns, first,
                                   kv_head, batch);
    keys.advance();
  }

  /// The tile from `key` on out of pages.
  __device__ __forceinline__ void load_keys_from_pages(const ScoreFeatureParams& own, unsigned barrier, int key,
                                                       int kv_head, int batch) const {
    const auto load = [&](int at, int row, int page) {
#pragma unroll 1
      for (int b = 0; b < Smem::kBoxes; ++b)
        ptx::cp_async_bulk_tensor_4d(smem.keys(keys.stage) + b * Smem::kKBox + at * Smem::kColumns, maps.k, barrier,
                                     b * Smem::kColumns, row, kv_head, page);
    };
    const int rows = rows_of_page_box(kConfig, own.page_size);
    if (rows < kConfig.block_n) return sm90::for_boxes_in_pages<kConfig.block_n>(own, key, batch, rows, load);
    const sm90::PlaceInPages place = sm90::place_in_pages(own, key, batch);
    load(0, place.row, place.page);
  }

  __device__ __forceinline__ void load_values(int n, int kv_head, int batch) {
    if (!has_values) Values{params}.wait(pieces);
    has_values = true;
    const unsigned barrier = smem.v_full(values.stage);
    ptx::mbarrier_wait(smem.v_empty(values.stage), values.parity);
    ptx::mbarrier_arrive_expect_tx(barrier, Smem::kPlan.operand);
    ptx::cp_async_bulk(smem.values(values.stage),
                       Values{params}.slab_at(batch, kv_head, n * (kConfig.block_n / kSlabKeys)), Smem::kPlan.operand,
                       barrier);
    values.advance();
  }
};

}  // namespace heed::sm90_fp8
