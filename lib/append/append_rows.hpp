/// Rows of new keys and values written behind those of a cache: what a launch is told, and where each row goes, on
/// every device.
///
/// Row i of entry b becomes key before[b] + i of that entry, in pages of a pool or in the entry's part of one tensor,
/// as attention reads them (kernels/attention/features.hpp). FlashAttention does so in flash_attn_with_kvcache(k=, v=),
/// FlashInfer in append_paged_kv_cache, vLLM in reshape_and_cache. Elements are copied, or quantised by factors that
/// are given; where each row has a factor, the row's own is found and written too (quantise_rows.hpp says how).
///
/// What would lie beyond the cache is not written: keys before 0 and from len_cache on, rows of a page that there is
/// not. Where cu_seqlens decrease, or reach past the new rows, nothing is.
#pragma once

#include "lib/quantise/quantise_rows.hpp"

namespace heed::append {

/// K or V.
struct Tensor {
  /// The new rows and the cache: from, to, factors, strides of both, scales without an address, from_step, element,
  /// to_element, heads, dim, to_dim = dim, is_wide of `from`. Where to_element is element, rows are copied.
  quantise::TensorPass rows;
  long long to_step;   ///< from one element of a row of the cache to the next
  int finds_factor;    ///< whether each row has a factor, which is written; else factors are given
  int is_copied_wide;  ///< whether rows are copied, and both sides can be moved 16 bytes at a time
};

/// The parameter of the entry `heed_append_rows`.
struct Append {
  Tensor k;
  Tensor v;
  const int* lengths;      ///< (batch), of the cache: before the append, or after it
  int* lengths_after;      ///< (batch); null: not wanted
  const int* cu_seqlens;   ///< (batch + 1): new rows of entries follow each other; null: each has len_new
  const int* page_table;   ///< (batch, pages of len_cache keys); null: no pages
  long long table_stride;  ///< from one entry of the page table to the next
  int batch;
  int heads;
  int len_new;    ///< the most that an entry gets; more are not written
  int total_new;  ///< rows of the one tensor, with cu_seqlens
  int len_cache;  ///< keys that an entry has room for
  int page_size;
  int pages;
  int are_after;  ///< whether `lengths` are those after the append
};

inline constexpr int kAppendThreads = 256;
/// Begins of entries that a thread block keeps in shared memory; those of more are read where they lie.
inline constexpr int kStaged = 1024;

HEED_HOST_DEVICE constexpr bool is_copied(const Tensor& t) {
  return t.rows.to_element == t.rows.element;
}

HEED_HOST_DEVICE inline long long rows_of_all(const Append& a) {
  return a.cu_seqlens != nullptr ? a.total_new : static_cast<long long>(a.batch) * a.len_new;
}

/// Rows that an entry gets.
HEED_HOST_DEVICE inline int rows_of_entry(const Append& a, int entry) {
  return a.cu_seqlens == nullptr ? a.len_new : clamped(a.cu_seqlens[entry + 1] - a.cu_seqlens[entry], 0, a.len_new);
}

/// The key that an entry's first new row becomes. A length below 0 counts as 0.
HEED_HOST_DEVICE inline int first_key(const Append& a, int entry) {
  const int length = a.lengths[entry] < 0 ? 0 : a.lengths[entry];
  return a.are_after != 0 ? length - rows_of_entry(a, entry) : length;
}

/// Keys of an entry after the append, as attention counts them (seqused_k).
/// @param is_appended whether rows are written
HEED_HOST_DEVICE inline int length_after(const Append& a, int entry, bool is_appended) {
  const long long length = a.lengths[entry] < 0 ? 0 : a.lengths[entry];
  const long long after = a.are_after != 0 || !is_appended ? length : length + rows_of_entry(a, entry);
  return after < a.len_cache ? static_cast<int>(after) : a.len_cache;
}

/// The entry whose new rows are [begins[entry], begins[entry + 1]), which do not decrease, of row `row`; -1 where none
/// has it.
HEED_HOST_DEVICE inline int entry_of(const int* begins, int batch, int row) {
  if (row < begins[0] || row >= begins[batch]) return -1;
  int low = 0, high = batch;  // begins[low] <= row < begins[high]
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (begins[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Where a row lies in the cache.
struct Place {
  int entry;
  int part;  ///< the page, or the entry, that the batch stride of the cache counts
  int row;   ///< of that part; -1: nowhere, and the row is not written
};

/// Of row `i` of an entry.
HEED_HOST_DEVICE inline Place place_of(const Append& a, int entry, int i) {
  if (i >= a.len_new) return {entry, 0, -1};
  const long long key = static_cast<long long>(first_key(a, entry)) + i;
  if (key < 0 || key >= a.len_cache) return {entry, 0, -1};
  const int at = static_cast<int>(key);
  if (a.page_table == nullptr) return {entry, entry, at};
  const int page = a.page_table[entry * a.table_stride + at / a.page_size];
  // A reader takes the nearest page there is; a writer would overwrite the keys of others.
  if (page < 0 || page >= a.pages) return {entry, 0, -1};
  return {entry, page, at % a.page_size};
}

HEED_HOST_DEVICE constexpr long long cache_offset(const Tensor& t, const Place& at, int head) {
  const TensorStrides& s = t.rows.to_strides;
  return at.part * s.batch + head * s.head + at.row * s.row;
}
/// Of the first element of a new row.
HEED_HOST_DEVICE constexpr long long new_offset(const Append& a, const Tensor& t, int entry, int i, int begin,
                                                int head) {
  const TensorStrides& s = t.rows.from_strides;
  return a.cu_seqlens != nullptr ? (static_cast<long long>(begin) + i) * s.row + head * s.head
                                 : entry * s.batch + i * s.row + head * s.head;
}
/// The index of the factor of a row, of column 0 where columns have their own.
HEED_HOST_DEVICE inline long long factor_index(const Tensor& t, const Place& at, int head) {
  const TensorScales& s = t.rows.scales;
  return s.strides.row == 0 ? at.entry * s.strides.batch + head * s.strides.head
                            : scale_index(s, at.part, head, at.row);
}

}  // namespace heed::append
