/// fwd_sm90_persistent: what entries of a batch that differ ask of a config (entries.cuh). Shared by the host, nvcc and
/// NVRTC.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/sm90/persistent/config.hpp"

namespace heed::sm90_persistent {

/// Whether entries or Q tiles have numbers of their own, which may be the work of the launch before.
HEED_HOST_DEVICE constexpr bool entries_differ(const Features& f) {
  return f.lengths || f.prefix || f.blocks;
}

/// Whether a tile may hold rows behind the last key that an entry's rows see: other entries' keys, keys that are not in
/// use, what lies in a page behind its last key, keys that are behind an entry's prefix and no row's. Without features
/// maps end there. And of listed blocks of keys, those that are hidden from the rows whose list it is.
HEED_HOST_DEVICE constexpr bool reads_past_keys(const Features& f) {
  return f.lengths || f.pages || f.prefix || f.blocks;
}

/// Whether Q tile `index` has rows of an entry with so many: those of a launch are as many as its longest entry has.
HEED_HOST_DEVICE constexpr bool has_rows(const Config& c, int index, int len_q) {
  return index * block_rows(c) < len_q;
}

/// Rows of the boxes that keys in pages come in: the most that divide a page and a KV tile, whose keys are a power of
/// two. A multiple of 8, as pages are (pages_fit), so that each box begins where its swizzle does.
HEED_HOST_DEVICE constexpr int rows_of_page_box(const Config& c, int page_size) {
  const int power = page_size & -page_size;
  return power < c.block_n ? power : c.block_n;
}
HEED_HOST_DEVICE constexpr bool pages_fit(long long page_size) {
  return page_size % 8 == 0;
}
/// The origin of a Q tile (kv_tiles.hpp) whose keys may lie in pages: where a box begins. What lies between that and
/// the first key that a row sees is hidden, and is zeroed where it is before all rows' first.
HEED_HOST_DEVICE inline int origin_of_boxes(const Config& c, const ScoreFeatureParams& p, int origin) {
  return p.page_table == nullptr ? origin : origin & -rows_of_page_box(c, p.page_size);
}

}  // namespace heed::sm90_persistent
