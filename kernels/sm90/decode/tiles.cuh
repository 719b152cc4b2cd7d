/// Groups of warps that take whole tiles in turn (config.hpp: GroupSplit::kv_tiles). Other warps merge: tile_parts.cuh.
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/entry_producer.cuh"
#include "kernels/sm90/decode/quantised.cuh"
#include "kernels/sm90/decode/tile_parts.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ByTiles {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using Parts = TileParts<kConfig, kProblem>;
  using Changes = typename Block::Changes;
  using JobIndex = typename Block::JobIndex;
  using KnownJob = typename Block::KnownJob;

  static constexpr int kBlockM = Block::kBlockM;
  static constexpr int kBlockN = Block::kBlockN;
  static constexpr int kDim = Block::kDim;
  static constexpr int kGroups = Block::kGroups;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr int kStages = Block::kStages;
  static constexpr SharedPlan kPlan = Block::kPlan;
  static constexpr bool kBegins = Block::kBegins;
  static constexpr bool kChanges = Block::kChanges;
  static constexpr bool kEntries = Block::kEntries;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr Element kOperand = Block::kOperand;
  static constexpr int kCountedAhead = Parts::kCountedAhead;
  static constexpr int kOutTiles = Parts::kOutTiles;
  static constexpr int kKeyTiles = kBlockN / 8;  // n-tiles of S

  // ---- state
  Block block;

  __device__ __forceinline__ ByTiles(const Params<kProblem>& p, const TensorMaps& m, char* shared)
      : block(p, m, shared) {}

  __device__ __forceinline__ void run() const {
    if constexpr (kEntries)
      if (block.tile_count == 0) return;
    if (block.role == Block::Role::merges) {
      if (Block::merger() == 0) {
        block.prefetch_maps();
        ptx::mbarrier_init(block.ending(), 1);
      }
      Block::barriers_are_set();
      Parts::merge_segments(block);
    } else if (block.role == Block::Role::copies) {
      if constexpr (kEntries)
        EntryProducer<kConfig, kProblem>(block).run();
      else
        block.produce();
    } else {
      consume();
    }
  }

  // ------------------------------------------------------------------------------------------------------ computing

  /// The A operand of Q, straight from global memory; rows beyond the real ones are zeros.
  __device__ __forceinline__ void load_queries(unsigned (&query)[kDim / 16][4], const KnownJob& job) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.warp * kWarpRows + block.lane / 4 + 8 * h;
      const bool inside = row < job.rows;
      const unsigned short* from = block.query_row(job, inside ? row : 0) + 2 * (block.lane % 4);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          query[k][2 * c + h] = inside && (h == 0 || kBlockM > 8) && 16 * k + 8 * c < kHeadDim
                                    ? *reinterpret_cast<const unsigned*>(from + 16 * k + 8 * c)
                                    : 0U;
    }
  }

  /// The same beside K in 8 bits, in fp16. What scores of rows lane / 4 + 8 h are multiplied by is row_factors[h].
  __device__ __forceinline__ void load_queries_of_quantised(unsigned (&query)[kDim / 16][4], float (&row_factors)[2],
                                                            const KnownJob& job) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = block.warp * kWarpRows + block.lane / 4 + 8 * h;
      const bool inside = row < job.rows;
      const unsigned short* from = block.query_row(job, inside ? row : 0);
      QueryScale scale;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          unsigned& pair = query[k][2 * c + h];
          pair = inside && (h == 0 || kBlockM > 8) && 16 * k < kHeadDim
                     ? *reinterpret_cast<const unsigned*>(from + 16 * k + query_column(block.lane, c))
                     : 0U;
          scale.see(pair);
        }
      row_factors[h] = 1.0F;
      if constexpr (scales_queries(kProblem)) {
        const unsigned exponent = scale.exponent();
        row_factors[h] = QueryScale::inverse(exponent);
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            query[k][2 * c + h] = QueryScale::scaled(query[k][2 * c + h], QueryScale::factor(exponent));
      }
    }
  }

  __device__ __forceinline__ void consume() const {
    const float scale_log2 = kChanges ? 1.0F : block.params.scale * attention::kLog2e;
    int t = block.group;  // counted from the block's first tile
    int stage = block.group % kStages;
    unsigned parity = block.group / kStages % 2;
    if (!kConfig.producer_warp) {
      if (block.lane == 0) {
        for (int s = block.group; s < kStages; s += kGroups) ptx::mbarrier_init(block.full(s), 1);
        ptx::fence_mbarrier_init();
      }
      __syncwarp();
    }
    Block::wait_for_launch_before();
    typename Block::Source source{};
    if constexpr (!kConfig.producer_warp) {
      source = block.source_of(block.group);
      if (kConfig.l2_prefetch_kib > 0 && block.group == 0 && block.lane == 0) block.prefetch_first_keys(source);
      if (block.lane == 0) {
#pragma unroll 1
        for (int s = block.group; s < least(kStages, block.tile_count); s += kGroups) block.copy(source, s, kGroups);
      }
    }
    for (JobIndex job_index = block.first_job;; job_index = block.next_job(job_index)) {
      // ---- one segment: tiles t, t + kGroups, ... below `end`
      const int job_first = block.start_of(job_index) - block.first_tile;  // may be before the block's first tile
      const int end = least(block.tile_count, job_first + block.tiles_of(job_index));
      const bool goes_on =
          job_first >= 0 && job_first + block.tiles_of(job_index) > block.tile_count;  // in the next block
      const KnownJob job = block.job_of(job_index);
      unsigned query[kDim / 16][4];
      [[maybe_unused]] float row_factors[2];
      [[maybe_unused]] float key_factors[kQuantised ? kKeyTiles : 1][2];
      if constexpr (kQuantised) {
        load_queries_of_quantised(query, row_factors, job);
        const KeyFactors<kProblem> factors(block.params_of(job), job.batch, job.kv_head);
        if (!factors.differ) fill(key_factors, factors.of(0));
      } else {
        load_queries(query, job);
      }
      if (job_first <= 0) Block::wait_for_barriers();  // the first segment: not before its queries are asked for
      float out[1][kOutTiles][4];
      attention::clear(out[0]);
      attention::RowState<1> state;
      state.reset();
      // Keys that this lane's rows see. Rows beyond the real ones are zeros and see what they like.
      int row_end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = job.first + block.warp * kWarpRows + block.lane / 4 + 8 * h;
        const auto& p = block.params_of(job);
        row_end[h] = visible_keys(kProblem.mask, has_right_bound(kProblem.mask) ? divide(row, p.group_size) : 0,
                                  p.right_offset, p.len_k);
      }

      Changes changes[2];
      if constexpr (kChanges)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          changes[h] = Changes(block.params_of(job), job.batch, job.kv_head,
                               job.first + block.warp * kWarpRows + block.lane / 4 + 8 * h);

#pragma unroll 1
      for (; t < end; t += kGroups) {
        int first_key = (t - job_first) * kBlockN;
        if constexpr (kEntries) first_key += job.first_key;
        if constexpr (kQuantised) {
          const KeyFactors<kProblem> factors(block.params_of(job), job.batch, job.kv_head);
          if (factors.differ && first_key < job.keys_end) load_factors(key_factors, factors, first_key);
        }
        ptx::mbarrier_wait(block.full(stage), parity);
        // At its first tile where it is short.
        const bool is_ending =
            goes_on && (t == end - kCountedAhead || (t > end - kCountedAhead && t == (job_first > 0 ? job_first : 0)));
        if (is_ending && block.warp == 0 && block.lane == 0) ptx::mbarrier_arrive(block.ending());
        if (first_key < job.keys_end) {
          float scores[1][kKeyTiles][4];
          multiply_keys(scores, query, block.stage_address(stage));
          if constexpr (kQuantised) scale_scores(scores, row_factors, key_factors);
          if constexpr (kChanges)
#pragma unroll
            for (int h = 0; h < 2; ++h)
              changes[h].template change<2 * kKeyTiles>(
                  block.params_of(job), first_key + 2 * (block.lane % 4), row_end[h],
                  [&](int i) -> float& { return scores[0][i / 2][2 * h + i % 2]; },
                  [](int i) { return i / 2 * 8 + i % 2; });
          if (first_key + kBlockN > job.keys_plain) hide_keys(scores, first_key, row_end);
          if constexpr (kBegins)
            if (first_key < keys_hidden(kProblem.mask, block.params_of(job), job))
              hide_first_keys(scores, first_key, job);
          attention::softmax_tile<kConfig.exp2, kConfig.rescale>(scores, out, state, scale_log2);
          if constexpr (kEntries) {
            // Values of keys that the job does not have may be NaN, which no weight of 0 does away with.
            const unsigned values = block.stage_address(stage) + kPlan.tile_bytes;
            if (first_key + kBlockN > job.keys_end || first_key < job.keys_begin)
              multiply_values(out, scores, values, [&](int key) {
                return mask_of_values(first_key + key + 2 * (block.lane % 4), job.keys_begin, job.keys_end);
              });
            else
              multiply_values(out, scores, values);
          } else {
            multiply_values(out, scores, block.stage_address(stage) + kPlan.tile_bytes);
          }
        }
        __syncwarp();  // the warp has read the stage
        if constexpr (kConfig.producer_warp) {
          if (block.lane == 0) ptx::mbarrier_arrive(block.empty(stage));
        } else {
          // All products of the tile are under way, so that what they take from the stage is read.
          if (block.lane == 0 && t + kStages < block.tile_count) block.copy(source, stage, kGroups);
        }
        for (stage += kGroups; stage >= kStages; stage -= kStages) parity ^= 1;
      }
      state.reduce();
      Parts::wait_for_room();
      Parts::put_partials(block, out, state, job);
      Parts::partials_are_put();
      if (end == block.tile_count) break;
    }
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[1][kKeyTiles][4], const unsigned (&query)[kDim / 16][4],
                                                unsigned keys) const {
    attention::clear(scores[0]);
    if constexpr (kQuantised) {
      multiply_quantised_keys(scores, query, keys);
    } else {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          unsigned b[4];
          ptx::ldmatrix_x4(b, Block::block_address(keys, 8 * n, 2 * k, tile::ldmatrix_k_address(block.lane)));
          ptx::mma_m16n8k16<kOperand>(scores[0][n], query[k], b[0], b[1]);
          ptx::mma_m16n8k16<kOperand>(scores[0][n + 1], query[k], b[2], b[3]);
        }
    }
  }

  __device__ __forceinline__ void multiply_quantised_keys(float (&scores)[1][kKeyTiles][4],
                                                          const unsigned (&query)[kDim / 16][4], unsigned keys) const {
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2)
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        unsigned bytes[4];
        ptx::ldmatrix_x4(bytes, Block::block_address(keys, 8 * n, k, tile::ldmatrix_k_address(block.lane)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned b[2];
          tile::widen<k_element(kProblem)>(b[0], b[1], bytes[i]);
          ptx::mma_m16n8k16<kOperand>(scores[0][n + i / 2], query[k + i % 2], b[0], b[1]);
        }
      }
  }

  using TileFactors = float[kKeyTiles][2];  // of keys 8 n + 2 (lane % 4) + i
  __device__ __forceinline__ static void fill(TileFactors& factors, float all) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[n][i] = all;
  }
  __device__ __forceinline__ void load_factors(TileFactors& factors, const KeyFactors<kProblem>& of,
                                               int first_key) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[n][i] = of.of(first_key + 8 * n + 2 * (block.lane % 4) + i);
  }
  __device__ __forceinline__ static void scale_scores(float (&scores)[1][kKeyTiles][4], const float (&row_factors)[2],
                                                      const TileFactors& key_factors) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          scores[0][n][2 * h + i] *= scales_queries(kProblem) ? key_factors[n][i] * row_factors[h] : key_factors[n][i];
  }

  struct AllValues {
    __device__ __forceinline__ unsigned operator()(int) const { return 0xffffffffU; }
  };
  /// @param mask_of of the values of two keys, of which the first is given; or all are taken
  template <class MaskOf = AllValues>
  __device__ __forceinline__ void multiply_values(float (&out)[1][kOutTiles][4], const float (&scores)[1][kKeyTiles][4],
                                                  unsigned values, const MaskOf& mask_of = {}) const {
#pragma unroll
    for (int k = 0; k < kBlockN / 16; ++k) {
      unsigned p[4];
      attention::round_to_operand<kOperand>(p, scores[0][2 * k], scores[0][2 * k + 1]);
      if constexpr (kQuantised) {
        multiply_quantised_values(out, p, values, k, mask_of);
      } else {
#pragma unroll
        for (int n = 0; n < kOutTiles; n += 2) {
          unsigned b[4];
          ptx::ldmatrix_x4_trans(b, Block::block_address(values, 16 * k, n, tile::ldmatrix_v_address(block.lane)));
          if constexpr (kEntries) {
#pragma unroll
            for (int i = 0; i < 4; ++i) b[i] &= mask_of(16 * k + 8 * (i % 2));
          }
          ptx::mma_m16n8k16<kOperand>(out[0][n], p, b[0], b[1]);
          ptx::mma_m16n8k16<kOperand>(out[0][n + 1], p, b[2], b[3]);
        }
      }
    }
  }

  /// Of step k of 16 keys. Tiles n and n + 1 of the output get the even and the odd columns of 16 (put_partials).
  template <class MaskOf>
  __device__ __forceinline__ void multiply_quantised_values(float (&out)[1][kOutTiles][4], const unsigned (&p)[4],
                                                            unsigned values, int k, const MaskOf& mask_of) const {
#pragma unroll
    for (int n = 0; n < kOutTiles; n += 4) {
      unsigned bytes[4];
      ptx::ldmatrix_x4_trans(bytes, Block::block_address(values, 16 * k, n / 2, tile::ldmatrix_v_address(block.lane)));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        unsigned even[2];
        unsigned odd[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          tile::widen_alternate<v_element(kProblem)>(even[i], odd[i], bytes[2 * c + i]);
          if constexpr (kEntries) {
            even[i] &= mask_of(16 * k + 8 * i);
            odd[i] &= mask_of(16 * k + 8 * i);
          }
        }
        ptx::mma_m16n8k16<kOperand>(out[0][n + 2 * c], p, even[0], even[1]);
        ptx::mma_m16n8k16<kOperand>(out[0][n + 2 * c + 1], p, odd[0], odd[1]);
      }
    }
  }

  /// Sets scores of hidden keys to -inf. Element positions: tile::accumulator_element.
  __device__ __forceinline__ void hide_keys(float (&scores)[1][kKeyTiles][4], int first_key,
                                            const int (&row_end)[2]) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        attention::hide_columns_from(scores[0][n], h, row_end[h], first_key + 8 * n + 2 * (block.lane % 4));
  }

  /// The same of keys in front of those that a row sees.
  __device__ __forceinline__ void hide_first_keys(float (&scores)[1][kKeyTiles][4], int first_key,
                                                  const KnownJob& job) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int begin = block.first_key_of(job, job.first + block.warp * kWarpRows + block.lane / 4 + 8 * h) -
                        first_key - 2 * (block.lane % 4);
      attention::hide_columns_before(scores[0], h, begin);
    }
  }
};

}  // namespace heed::sm90_decode
