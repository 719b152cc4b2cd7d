/// Stream-K in fwd_sm90_persistent (stream_k.hpp): a CTA's part of the stream, and pieces of a Q tile that become one.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/entries.cuh"
#include "kernels/sm90/persistent/smem_layout.cuh"
#include "kernels/sm90/persistent/stream_k.hpp"

namespace heed::sm90_persistent {

/// What of a Q tile a CTA computes. Without Scheduler::stream_k an empty type.
template <bool kStreamK>
struct TilePiece {};
template <>
struct TilePiece<true> {
  Range tiles;  ///< KV tiles of its list
  int pieces;   ///< of the Q tile, 1 where it is whole
  int first_cta;
};

/// Goes through the Q tiles of a launch in their order (q_tile_of_all, row_major), and tells how many blocks each has.
template <const Config& kConfig>
struct ListWalk {
  const ScoreFeatureParams& params;
  int q_tiles;
  int row;  ///< Q tile of the head
  int head;
  int batch;

  __device__ __forceinline__ ListWalk(const ScoreFeatureParams& p, int q_tiles_of_head, int index)
      : params(p), q_tiles(q_tiles_of_head) {
    const int all_heads = index / q_tiles;
    row = q_tiles - 1 - (index - all_heads * q_tiles);
    batch = all_heads / p.heads;
    head = all_heads - batch * p.heads;
  }
  __device__ __forceinline__ int blocks() const {
    const int list = params.block_rows == block_rows(kConfig) ? row : row / 2;
    const TensorStrides& c = params.block_count_strides;
    return clamped(params.block_counts[batch * c.batch + head * c.head + list * c.row], 0, params.block_most);
  }
  __device__ __forceinline__ void advance() {
    if (--row >= 0) return;
    row = q_tiles - 1;
    if (++head < params.heads) return;
    head = 0;
    ++batch;
  }
};

/// A CTA's part of the stream in shared memory, 16 bytes each: begin {first Q tile, blocks of it that are another
/// CTA's, its pieces, the first CTA that has one}, end {Q tiles end before, blocks of the last that are this CTA's or 0
/// for all, its pieces, their first CTA}, and whether Q tiles are divided. Where they are not, CTAs draw whole ones:
/// begin has the first, and end all.
struct StreamWords {
  static constexpr int begin = 0;
  static constexpr int end = 16;
  static constexpr int divided = 32;
};

/// How long the lists of a launch are, which has some, as if each was of as many Q tiles as its rows are for. A whole
/// warp: lanes read side by side, a line a load, and counts that heads or entries share once.
template <const Config& kConfig>
__device__ __forceinline__ Stream count_lists(const ScoreFeatureParams& p, int q_tiles, int ctas) {
  constexpr int kAtOnce = 16;  // counts that are on their way to a lane together
  const TensorStrides& c = p.block_count_strides;
  const int rows = p.block_rows == block_rows(kConfig) ? q_tiles : (q_tiles + 1) / 2;
  const int heads = c.head == 0 ? 1 : p.heads;
  const int batch = c.batch == 0 ? 1 : p.batch;
  const bool without_gaps = (heads == 1 || c.head == rows * c.row) && (batch == 1 || c.batch == heads * rows * c.row);
  const int together = without_gaps ? batch * heads * rows : rows;
  Stream stream{.ctas = ctas};
  const auto add = [&](const int* counts) {
#pragma unroll 1
    for (int index = static_cast<int>(threadIdx.x % 32); index < together; index += 32 * kAtOnce) {
      int blocks[kAtOnce];
      // The last count for those behind it: under conditions ptxas asks for as many as it has predicates.
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) blocks[i] = counts[min(index + 32 * i, together - 1) * c.row];
      int sum = 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        blocks[i] = clamped(blocks[i], 0, p.block_most);
        sum += index + 32 * i < together ? blocks[i] : 0;
        stream.longest = max(stream.longest, blocks[i]);
      }
      stream.total += sum;
    }
  };
#pragma unroll 1
  for (int b = 0; b < (without_gaps ? 1 : batch); ++b)
#pragma unroll 1
    for (int h = 0; h < (without_gaps ? 1 : heads); ++h) add(p.block_counts + b * c.batch + h * c.head);
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    stream.total += __shfl_xor_sync(0xffffffffU, stream.total, by);
    stream.longest = max(stream.longest, __shfl_xor_sync(0xffffffffU, stream.longest, by));
  }
  stream.total += static_cast<long long>(kTileCost) * batch * heads * rows;
  stream.total *= (c.head == 0 ? p.heads : 1) * (c.batch == 0 ? p.batch : 1) * (p.block_rows / block_rows(kConfig));
  return stream;
}

/// Works out the part of this CTA. A whole warp, before any load; who reads it waits for the warp.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void find_part(const ScoreFeatureParams& p, const SmemLayout<kConfig, kProblem>& smem) {
  constexpr int kAtOnce = 8;  // counts that are on the way together
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int q_tiles = (p.len_q + block_rows(kConfig) - 1) / block_rows(kConfig);
  const int all = q_tiles * p.heads * p.batch;
  const int cta = blockIdx.x * kConfig.virtual_ctas + smem.virtual_cta.index;
  Stream stream{.ctas = static_cast<int>(gridDim.x) * kConfig.virtual_ctas};
  const bool divides = p.block_counts != nullptr && count_lists<kConfig>(p, q_tiles, stream.ctas).divides();
  if (lane == 0) {
    ptx::st_shared_v4(smem.stream(StreamWords::begin), divides ? 0 : cta, 0, 1, 0);
    ptx::st_shared_v4(smem.stream(StreamWords::end), all, 0, 1, 0);
    ptx::st_shared_v4(smem.stream(StreamWords::divided), divides ? 1 : 0, 0, 0, 0);
  }
  __syncwarp();
  if (!divides) return;
  // Each lane adds up Q tiles in a row, and finds in these what begins or ends there.
  const int each = (all + 31) / 32;
  const int first = min(lane * each, all);
  const int end = min(first + each, all);
  long long own = 0;
  if (first < end) {
    ListWalk<kConfig> walk(p, q_tiles, first);
#pragma unroll 1
    for (int index = first; index < end; index += kAtOnce) {
      int blocks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        blocks[i] = index + i < end ? walk.blocks() : -kTileCost;
        walk.advance();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) own += blocks[i] + kTileCost;
    }
  }
  long long before = own;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const long long others = __shfl_up_sync(0xffffffffU, before, by);
    if (lane >= by) before += others;
  }
  stream.total = __shfl_sync(0xffffffffU, before, 31);
  before -= own;
  if (cta >= stream.parts()) {
    if (lane == 0) ptx::st_shared_v4(smem.stream(StreamWords::end), 0, 0, 1, 0);
  } else if (first < end) {
    const long long begins = stream.begin(cta);
    const long long ends = stream.begin(cta + 1);  // behind the last Q tile where there is no other part
    if ((begins >= before && begins < before + own) || (ends >= before && ends < before + own)) {
      ListWalk<kConfig> walk(p, q_tiles, first);
      StreamTile tile{before, 0};
#pragma unroll 1
      for (int index = first; index < end; ++index) {
        tile.blocks = walk.blocks();
        const auto keep = [&](int word, long long at, int from_start) {
          const int cut = tile.cut(at);
          if (cut == 0) return ptx::st_shared_v4(smem.stream(word), index, 0, 1, 0);
          if (cut == tile.blocks) return ptx::st_shared_v4(smem.stream(word), index + 1, 0, 1, 0);
          const Pieces pieces = pieces_of(stream, tile);
          ptx::st_shared_v4(smem.stream(word), index + from_start, cut, pieces.count, pieces.first_cta);
        };
        if (begins >= tile.begin && begins < tile.end()) keep(StreamWords::begin, begins, 0);
        if (ends >= tile.begin && ends < tile.end()) keep(StreamWords::end, ends, 1);
        tile.begin = tile.end();
        walk.advance();
      }
    }
  }
  __syncwarp();
}

/// The first Q tile of a part, where its Q tiles end, and whether it is of a launch whose Q tiles are divided.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ int first_of_part(const SmemLayout<kConfig, kProblem>& smem) {
  return static_cast<int>(ptx::ld_shared(smem.stream(StreamWords::begin)));
}
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ int end_of_part(const SmemLayout<kConfig, kProblem>& smem) {
  return static_cast<int>(ptx::ld_shared(smem.stream(StreamWords::end)));
}
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ bool is_divided(const SmemLayout<kConfig, kProblem>& smem) {
  return ptx::ld_shared(smem.stream(StreamWords::divided)) != 0;
}

/// What of Q tile `index` is this CTA's.
/// @param blocks its list, without what the mask hides at its end
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ TilePiece<true> piece_of_tile(const SmemLayout<kConfig, kProblem>& smem, int index,
                                                         const KeyBlocks& blocks) {
  unsigned begin[4];
  unsigned end[4];
  ptx::ld_shared_v4(begin, smem.stream(StreamWords::begin));
  ptx::ld_shared_v4(end, smem.stream(StreamWords::end));
  TilePiece<true> piece{{0, blocks.count}, 1, 0};
  if (end[1] != 0 && index + 1 == static_cast<int>(end[0])) {
    piece.tiles.end = min(blocks.count, static_cast<int>(end[1]));
    piece.pieces = static_cast<int>(end[2]);
    piece.first_cta = static_cast<int>(end[3]);
  }
  if (begin[1] != 0 && index == static_cast<int>(begin[0])) {
    piece.tiles.first = min(piece.tiles.end, static_cast<int>(begin[1]));
    piece.pieces = static_cast<int>(begin[2]);
    piece.first_cta = static_cast<int>(begin[3]);
  }
  const int each = blocks.keys / kConfig.block_n;
  piece.tiles = {piece.tiles.first * each, piece.tiles.end * each};
  return piece;
}

/// Of a Q tile in pieces, puts what a warp has of its rows into the workspace; the warp that arrives last then has the
/// rows of all pieces, added in their order, whichever that is.
/// @param at {pieces, first CTA}
/// @param warp among the consumers of a virtual CTA
/// @param acc_o unnormalised; row_max in log2 units; row_sum over the whole row
/// @return whether this is the last
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ bool merge_pieces(const ScoreFeatureParams& p, const Pieces& at, int cta, int warp, int lane,
                                             float (&acc_o)[padded_dim(kProblem.head_dim) / 2], float (&row_max)[2],
                                             float (&row_sum)[2]) {
  constexpr int kDim = padded_dim(kProblem.head_dim);
  constexpr int kWarps = virtual_cta_threads(kConfig) / 32;
  constexpr int kState = kDim / 8;  // behind the output, in 16 bytes a lane
  const auto piece_of = [&](int of) {
    return reinterpret_cast<float4*>(static_cast<float*>(p.workspace) +
                                     piece_at(of, of == at.first_cta, kWarps, warp, kDim)) +
           lane;
  };
  float4* const own = piece_of(cta);
#pragma unroll
  for (int i = 0; i < kState; ++i)
    own[32 * i] = make_float4(acc_o[4 * i], acc_o[4 * i + 1], acc_o[4 * i + 2], acc_o[4 * i + 3]);
  own[32 * kState] = make_float4(row_max[0], row_max[1], row_sum[0], row_sum[1]);
  __syncwarp();  // the lane that counts is behind what all have written
  unsigned before = 0;
  const auto last = static_cast<unsigned>(at.count - 1);
  if (lane == 0) before = ptx::atom_inc_acq_rel_gpu(p.semaphores + at.first_cta * kWarps + warp, last);
  if (__shfl_sync(0xffffffffU, before, 0) != last) return false;
  __syncwarp();
  row_max[0] = row_max[1] = -attention::kInfinity;
#pragma unroll 1
  for (int i = 0; i < at.count; ++i) {
    const float4 state = piece_of(at.first_cta + i)[32 * kState];
    row_max[0] = fmaxf(row_max[0], state.x);
    row_max[1] = fmaxf(row_max[1], state.y);
  }
  row_sum[0] = row_sum[1] = 0.0F;
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) acc_o[i] = 0.0F;
#pragma unroll 1
  for (int i = 0; i < at.count; ++i) {
    const float4* const piece = piece_of(at.first_cta + i);
    const float4 state = piece[32 * kState];
    const float weight[2] = {attention::rescale_factor(state.x, row_max[0]),
                             attention::rescale_factor(state.y, row_max[1])};
    row_sum[0] = fmaf(weight[0], state.z, row_sum[0]);
    row_sum[1] = fmaf(weight[1], state.w, row_sum[1]);
#pragma unroll
    for (int r = 0; r < kState; ++r) {
      const float4 x = piece[32 * r];
      acc_o[4 * r] = fmaf(weight[0], x.x, acc_o[4 * r]);
      acc_o[4 * r + 1] = fmaf(weight[0], x.y, acc_o[4 * r + 1]);
      acc_o[4 * r + 2] = fmaf(weight[1], x.z, acc_o[4 * r + 2]);
      acc_o[4 * r + 3] = fmaf(weight[1], x.w, acc_o[4 * r + 3]);
    }
  }
  return true;
}

}  // namespace heed::sm90_persistent
