/// fwd_sm90_fp8: what entries of a batch that differ (lengths, keys in pages) ask of a config. Shared by the host, nvcc
/// and NVRTC.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/sm90/fp8/config.hpp"

namespace heed::sm90_fp8 {

/// Whether entries have keys of their own. Where keys lie in pages none in front are cut off the launch
/// (kernels/attention/features.hpp), so that the first keys that a row sees may be any.
HEED_HOST_DEVICE constexpr bool entries_differ(const Features& f) {
  return f.lengths || f.pages;
}

/// Keys of a page that are read one after the other, by bulk copies of K and by the threads that transpose V: an atom
/// of the swizzle of K's boxes, and a quarter of a slab.
inline constexpr int kPageStep = 8;

HEED_HOST_DEVICE constexpr bool pages_fit(long long page_size) {
  return page_size % kPageStep == 0;
}
/// Rows of the boxes that keys in pages come in: the most that divide a page and a KV tile and are a power of two, so
/// that no box lies in two pages or two tiles.
HEED_HOST_DEVICE constexpr int rows_of_page_box(const Config& c, int page_size) {
  const int of_page = page_size & -page_size;
  const int of_tile = c.block_n & -c.block_n;
  return of_page < of_tile ? of_page : of_tile;
}

}  // namespace heed::sm90_fp8
