/// heed_list_blocks: which blocks of keys a boolean mask or a bias leaves to blocks of rows.
#pragma once

#include "lib/listing/list_blocks.hpp"

namespace heed::listing {

inline constexpr int kWarps = kListThreads / 32;
/// Blocks of keys whose effects a thread block keeps before it lists them.
inline constexpr int kAtOnce = kListThreads;

template <BiasElement kElement>
__device__ __forceinline__ unsigned read_number(const char* from) {
  constexpr int kBytes = BiasTraits<kElement>::bytes;
  if constexpr (kBytes == 1)
    return *reinterpret_cast<const unsigned char*>(from);
  else if constexpr (kBytes == 2)
    return *reinterpret_cast<const unsigned short*>(from);
  else
    return *reinterpret_cast<const unsigned*>(from);
}

/// Of the numbers of a word.
template <BiasElement kElement>
__device__ __forceinline__ unsigned effects_of_word(unsigned word) {
  constexpr int kBits = 8 * BiasTraits<kElement>::bytes;
  unsigned effects = 0;
#pragma unroll
  for (int at = 0; at < 32; at += kBits)
    effects |= effect_of<kElement>(kBits == 32 ? word : word >> at & ((1U << kBits % 32) - 1));
  return effects;
}

/// What the bias does to the scores of one block, to each lane of the warp. Lanes take 16 bytes of a row each where
/// these lie at a multiple of 16 and are all seen; a warp ends where nothing more can be found.
template <BiasElement kElement>
__device__ __forceinline__ unsigned effects_of_block(const Pass& pass, const char* bias, int first_row, int block,
                                                     int lane) {
  constexpr int kBytes = BiasTraits<kElement>::bytes;
  constexpr int kEach = 16 / kBytes;           // numbers of a lane
  constexpr int kLanesOfRow = kBlock / kEach;  // 4, 8 or 16
  constexpr int kRowsAtOnce = 32 / kLanesOfRow;
  const int rows = min(kBlock, pass.len_q - first_row);
  const int first = block * kBlock + lane % kLanesOfRow * kEach;
  unsigned effects = 0;
#pragma unroll 1
  for (int step = 0; step < rows; step += kRowsAtOnce) {
    const int row = first_row + step + lane / kLanesOfRow;
    if (row < first_row + rows) {
      const KeysOfRow keys = keys_of_row(pass, row, block);
      const char* const from = bias + (row * pass.bias_row + first * pass.bias_key) * kBytes;
      if (pass.is_wide != 0 && first >= keys.begin && first + kEach <= keys.end) {
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        effects |= effects_of_word<kElement>(words.x) | effects_of_word<kElement>(words.y) |
                   effects_of_word<kElement>(words.z) | effects_of_word<kElement>(words.w);
      } else {
#pragma unroll 1
        for (int i = 0; i < kEach; ++i)
          if (first + i >= keys.begin && first + i < keys.end)
            effects |= effect_of<kElement>(read_number<kElement>(from + i * pass.bias_key * kBytes));
      }
    }
    // All lanes know the same.
    const bool hides = __any_sync(0xFFFFFFFFU, (effects & kHides) != 0);
    const bool shows = __any_sync(0xFFFFFFFFU, (effects & kShows) != 0);
    const bool changes = __any_sync(0xFFFFFFFFU, (effects & kChanges) != 0);
    effects = (hides ? kHides : 0) | (shows ? kShows : 0) | (changes ? kChanges : 0);
    if ((effects & kPartial) == kPartial || changes) break;
  }
  return effects;
}

__device__ __forceinline__ unsigned effects_of_block(const Pass& pass, const char* bias, int first_row, int block,
                                                     int lane) {
  switch (static_cast<BiasElement>(pass.element)) {
    case BiasElement::boolean:
      return effects_of_block<BiasElement::boolean>(pass, bias, first_row, block, lane);
    case BiasElement::fp16:
      return effects_of_block<BiasElement::fp16>(pass, bias, first_row, block, lane);
    case BiasElement::bf16:
      return effects_of_block<BiasElement::bf16>(pass, bias, first_row, block, lane);
    case BiasElement::fp32:
      break;
  }
  return effects_of_block<BiasElement::fp32>(pass, bias, first_row, block, lane);
}

/// Thread blocks share the lists; a grid may have any size. Of a list each warp looks at every eighth block of keys,
/// and each thread then puts the number of one in its place.
/// @param found (kAtOnce) numbers of shared memory
__device__ inline void list_blocks(const Pass& pass, unsigned* found) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (long long index = blockIdx.x; index < lists_of(pass); index += gridDim.x) {
    const ListPlace at = place_of(pass, index);
    const char* const bias = bias_of_head(pass, at);
    int listed = 0;
    for (int first = 0; first < pass.most; first += kAtOnce) {
      const int blocks = min(kAtOnce, pass.most - first);
      for (int block = thread / 32; block < blocks; block += kWarps) {
        const unsigned effects = effects_of_block(pass, bias, at.block * kBlock, first + block, lane);
        if (lane == 0) found[block] = effects;
      }
      __syncthreads();
      int before = 0;
      int all = 0;
      for (int block = 0; block < blocks; ++block) {
        const int one = is_listed(found[block]) ? 1 : 0;
        if (block < thread) before += one;
        all += one;
      }
      if (thread < blocks && is_listed(found[thread]))
        pass.indices[index * pass.most + listed + before] = number_of(first + thread, found[thread]);
      listed += all;
      __syncthreads();  // all have read what the next ones overwrite
    }
    if (thread == 0) pass.counts[index] = listed;
  }
}

}  // namespace heed::listing
