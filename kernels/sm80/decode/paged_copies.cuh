/// fwd_sm80_decode: keys and values that lie in pages, of any size. A warp looks the pages of a tile up a round before
/// it asks for the tile, one key a lane, and lanes tell each other where rows lie: so every page number is read once
/// for K and V, and the wait for it passes while the warp computes.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/ptx/global.cuh"
#include "kernels/sm80/decode/config.hpp"

namespace heed::sm80_decode {

/// What a tile of keys is looked up in. Of problems without pages nothing.
template <const Config& kConfig, const Problem& kProblem, bool kPages = kProblem.features.pages>
struct PagesOfTile {};

/// Where this lane's keys of a tile lie: keys `lane`, `lane` + 32, ...
template <const Config& kConfig, const Problem& kProblem>
struct PagesOfTile<kConfig, kProblem, true> {
  static constexpr int kKeys = (kConfig.block_n + 31) / 32;

  int page[kKeys];
  int row[kKeys];  ///< of the page

  /// Starts to look up the tile whose first key is `first`. Nothing is looked up of keys from `end` on.
  __device__ __forceinline__ void look_up(const ScoreFeatureParams& p, int entry, int first, int end) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = first + static_cast<int>(threadIdx.x) % 32 + 32 * i;
      page[i] = entry;  // where a launch has no pages, the strides of pages are those of entries
      row[i] = key;
      if (p.page_table == nullptr) continue;
      const int index = divide(key, p.page_size);
      row[i] = key - index * p.page_size;
      page[i] = key < end ? clamped(p.page_table[entry * p.page_table_batch + index], 0, p.pages - 1) : 0;
    }
  }

  /// Where they lie, in bytes from the first key of the head in the first page.
  __device__ __forceinline__ void offsets_of(long long (&offsets)[kKeys], long long page_bytes,
                                             long long row_bytes) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) offsets[i] = page[i] * page_bytes + row[i] * row_bytes;
  }
};

/// This thread's share of a group's tiles of K, or of V: kCopies chunks of 16 bytes a tile.
template <const Config& kConfig, const Problem& kProblem>
struct PagedSource {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kKeyBytes = key_bytes(kProblem);
  static constexpr int kChunks = kDim * kKeyBytes / 16;
  static constexpr int kCopyRows = threads_per_group(kConfig) / kChunks;
  static constexpr int kFetchBytes = 128 * static_cast<int>(kConfig.l2_prefetch_size);
  using Pages = PagesOfTile<kConfig, kProblem>;
  static_assert(32 % kCopyRows == 0, "rows that are copied at once are looked up at once");

  unsigned long long from;  ///< the thread's chunk of the head's first key in the first page
  long long row_bytes;

  /// @param offset of the head in the first page
  __device__ __forceinline__ PagedSource(const void* tensor, long long offset, long long row_stride, int, int chunk)
      : from(reinterpret_cast<unsigned long long>(tensor) + kKeyBytes * (offset + 16 / kKeyBytes * chunk)),
        row_bytes(kKeyBytes * row_stride) {}

  /// Starts copying the tile whose first key is `first` and whose pages are looked up; keys from `end` on become
  /// zeros. For whole warps.
  /// @param page_stride elements from one page to the next
  __device__ __forceinline__ void copy(unsigned tile, int first, int end, const Pages& pages,
                                       long long page_stride) const {
    const int copy_row = static_cast<int>(threadIdx.x) % threads_per_group(kConfig) / kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    long long offsets[Pages::kKeys];
    pages.offsets_of(offsets, kKeyBytes * page_stride, row_bytes);
#pragma unroll
    for (int i = 0; i < kBlockN / kCopyRows; ++i) {
      const int row = copy_row + i * kCopyRows;
      const long long offset = __shfl_sync(0xffffffffU, offsets[i * kCopyRows / 32], row % 32);
      const bool inside = first + row < end;
      // Where nothing is read the address must still be one that could be.
      ptx::cp_async_cg_16_fetch<kFetchBytes>(
          tile + key_chunk_offset(kConfig.smem_layout, kDim * kKeyBytes / 2, row, chunk), inside ? from + offset : from,
          inside ? 16 : 0);
    }
  }
};

template <bool kPages, class Plain, class Paged>
struct SourceWhere {
  using Type = Plain;
};
template <class Plain, class Paged>
struct SourceWhere<true, Plain, Paged> {
  using Type = Paged;
};

}  // namespace heed::sm80_decode
