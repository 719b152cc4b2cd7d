#include "verify/row_places.hpp"

#include <numeric>

#include "base/random.hpp"

namespace heed::verify {
namespace {

constexpr std::int64_t kSparePages = 2;       // that no entry has
constexpr std::int32_t kNoPage = 0x3fffffff;  // past an entry's last page the table may hold anything

}  // namespace

RowPlaces::RowPlaces(const Workload& w, std::vector<EntryLengths> lengths, std::uint64_t seed)
    : batch_(w.batch),
      len_q_(w.len_q),
      len_k_(w.len_k),
      page_size_(w.page_size),
      ragged_(w.ragged),
      has_lengths_(w.has_lengths()),
      lengths_(std::move(lengths)) {
  if (ragged_) {
    cu_seqlens_q_ = {0};
    for (const EntryLengths& entry : lengths_)
      cu_seqlens_q_.push_back(cu_seqlens_q_.back() + static_cast<std::int32_t>(entry.len_q));
  }
  if (ragged_ && page_size_ == 0) {
    cu_seqlens_k_ = {0};
    for (const EntryLengths& entry : lengths_)
      cu_seqlens_k_.push_back(cu_seqlens_k_.back() + static_cast<std::int32_t>(entry.len_k));
  }
  if (w.key_lengths || (ragged_ && page_size_ > 0))
    for (const EntryLengths& entry : lengths_) seqused_k_.push_back(static_cast<std::int32_t>(entry.len_k));
  if (page_size_ == 0) return;
  const auto pages_for = [&](std::int64_t keys) { return (keys + page_size_ - 1) / page_size_; };
  for (const EntryLengths& entry : lengths_) pages_ += pages_for(entry.len_k);
  pages_ += kSparePages;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages_));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  pages_of_entry_ = pages_for(len_k_);
  page_table_.assign(static_cast<std::size_t>(batch_ * pages_of_entry_), kNoPage);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < batch_; ++b)
    for (std::int64_t p = 0; p < pages_for(lengths_[static_cast<std::size_t>(b)].len_k); ++p)
      page_table_[static_cast<std::size_t>(b * pages_of_entry_ + p)] = order[next++];
}

RowPlace RowPlaces::query(std::int64_t batch, std::int64_t row) const {
  if (!ragged_) return {batch, row};
  return {0, cu_seqlens_q_[static_cast<std::size_t>(batch)] + row};
}

RowPlace RowPlaces::key(std::int64_t batch, std::int64_t row) const {
  if (page_size_ > 0)
    return {page_table_[static_cast<std::size_t>(batch * pages_of_entry_ + row / page_size_)], row % page_size_};
  if (!ragged_) return {batch, row};
  return {0, cu_seqlens_k_[static_cast<std::size_t>(batch)] + row};
}

}  // namespace heed::verify
