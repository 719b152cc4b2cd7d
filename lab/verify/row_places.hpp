/// Where rows of a scene's tensors lie: in a block a batch entry, one after another where tensors are ragged, in pages.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/features.hpp"

namespace heed::verify {

/// A row's place: block `block` of a tensor (blocks, heads, rows, dim), or (blocks, rows, heads, dim).
struct RowPlace {
  std::int64_t block = 0;
  std::int64_t row = 0;
};

/// Element 0 of a row, as an index of elements of its tensor.
inline std::int64_t element_index(const Strides& s, const RowPlace& at, std::int64_t head) {
  return at.block * s.batch + head * s.head + at.row * s.row;
}

class RowPlaces {
 public:
  RowPlaces() = default;
  /// @param seed of the order of pages
  RowPlaces(const Workload& workload, std::vector<EntryLengths> lengths, std::uint64_t seed);

  [[nodiscard]] const std::vector<EntryLengths>& lengths() const { return lengths_; }
  [[nodiscard]] RowPlace query(std::int64_t batch, std::int64_t row) const;
  [[nodiscard]] RowPlace key(std::int64_t batch, std::int64_t row) const;

  /// Blocks of Q and O and the rows of one; of K and V.
  [[nodiscard]] std::int64_t query_blocks() const { return ragged_ ? 1 : batch_; }
  [[nodiscard]] std::int64_t query_rows() const { return ragged_ ? cu_seqlens_q_.back() : len_q_; }
  [[nodiscard]] std::int64_t key_blocks() const { return page_size_ > 0 ? pages_ : ragged_ ? 1 : batch_; }
  [[nodiscard]] std::int64_t key_rows() const {
    return page_size_ > 0 ? page_size_ : ragged_ ? cu_seqlens_k_.back() : len_k_;
  }
  /// Whether every row of K and V is one of an entry.
  [[nodiscard]] bool fills_keys() const { return !has_lengths_ && page_size_ == 0; }

  // Arrays of a launch; empty where the workload has none.
  [[nodiscard]] const std::vector<std::int32_t>& cu_seqlens_q() const { return cu_seqlens_q_; }
  [[nodiscard]] const std::vector<std::int32_t>& cu_seqlens_k() const { return cu_seqlens_k_; }
  [[nodiscard]] const std::vector<std::int32_t>& seqused_k() const { return seqused_k_; }
  [[nodiscard]] const std::vector<std::int32_t>& page_table() const { return page_table_; }
  [[nodiscard]] std::int64_t pages() const { return pages_; }
  [[nodiscard]] std::int64_t pages_of_entry() const { return pages_of_entry_; }  ///< of the page table's rows

 private:
  std::int64_t batch_ = 0, len_q_ = 0, len_k_ = 0, page_size_ = 0;
  bool ragged_ = false;
  bool has_lengths_ = false;
  std::vector<EntryLengths> lengths_;
  std::vector<std::int32_t> cu_seqlens_q_, cu_seqlens_k_, seqused_k_, page_table_;
  std::int64_t pages_ = 0;
  std::int64_t pages_of_entry_ = 0;
};

}  // namespace heed::verify
