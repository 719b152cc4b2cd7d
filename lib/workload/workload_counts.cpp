// What rows of a workload see, and what its attention takes in operations and bytes.
#include <algorithm>
#include <cmath>

#include "heed/heed.hpp"
#include "workload/blocks.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

namespace heed {

double Workload::softmax_scale() const {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(dim)));
}

bool Workload::has_right_bound() const {
  return is_window(mask) ? window.right != Window::kAll : mask != Mask::none;
}

std::int64_t Workload::own_key(std::int64_t row) const {
  return row + (is_aligned_to_the_end(mask) ? len_k - len_q : 0);
}

KeyRange Workload::keys_of(std::int64_t row) const {
  const KeySpan span = key_span(mask_kind(*this), mask_bounds(*this), static_cast<int>(row), static_cast<int>(row + 1));
  return {span.begin, std::max<std::int64_t>(span.end, std::min(prefix, len_k))};
}

KeyRange Workload::seen_keys() const {
  const KeySpan span = key_span(mask_kind(*this), mask_bounds(*this), 0, static_cast<int>(len_q));
  return {span.begin, std::max<std::int64_t>(span.end, std::min(prefix, len_k))};
}

namespace {

// Sums count(entry) over the entries of the batch, each a workload of its own. Of many entries as many are looked at as
// tell the sum: their lengths are spread evenly.
template <typename Count>
double sum_over_entries(const Workload& w, const Count& count) {
  if (!w.has_lengths() && w.prefix == 0) return static_cast<double>(w.batch) * count(entry_of(w, {w.len_q, w.len_k}));
  constexpr std::int64_t kMost = 4096;
  Workload some = w;
  some.batch = std::min(w.batch, kMost);
  double sum = 0;
  const std::vector<EntryLengths> lengths = lengths_of(some);
  const std::vector<std::int32_t> prefixes = prefix_lengths_of(some);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    Workload entry = entry_of(w, lengths[b]);
    if (!prefixes.empty()) entry.prefix = prefixes[b];
    sum += count(entry);
  }
  return sum * static_cast<double>(w.batch) / static_cast<double>(some.batch);
}

}  // namespace

double Workload::visible_scores() const {
  if (blocks) return listed_scores(*this);
  return static_cast<double>(heads) * sum_over_entries(*this, [](const Workload& entry) {
           if (entry.prefix > 0) {
             double scores = 0;
             for (std::int64_t row = 0; row < entry.len_q; ++row)
               scores += static_cast<double>(entry.keys_of(row).count());
             return scores;
           }
           return heed::visible_scores(mask_kind(entry), mask_bounds(entry), static_cast<int>(entry.len_q));
         });
}

double Workload::flops() const {
  return 2.0 * static_cast<double>(dim + dim_v) * visible_scores();
}

double Workload::bytes() const {
  // Biases of hidden scores need not be read, nor a bias that entries share more than once.
  const double scores = static_cast<double>(batch * heads) * static_cast<double>(len_q) * static_cast<double>(len_k);
  const double biases = bias ? static_cast<double>(bias_sizes(*this).count()) *
                                   static_cast<double>(size_of(bias->dtype)) * visible_scores() / scores
                             : 0;
  const auto row_bytes = [](std::int64_t columns, Dtype of) {
    return static_cast<double>(columns) * static_cast<double>(size_of(of));
  };
  const double tensors = sum_over_entries(*this, [&](const Workload& entry) {
    return static_cast<double>(entry.heads) * static_cast<double>(entry.len_q) *
               (row_bytes(dim, dtype_q()) + row_bytes(dim_v, dtype)) +
           static_cast<double>(entry.heads_kv) * static_cast<double>(entry.seen_keys().count()) *
               (row_bytes(dim, dtype_k()) + row_bytes(dim_v, dtype_v()));
  });
  const std::int64_t gates_of_row = out_gate == OutGate::element ? dim_v : out_gate == OutGate::head ? 1 : 0;
  const double gates = sum_over_entries(*this, [&](const Workload& entry) {
    return static_cast<double>(entry.heads) * static_cast<double>(entry.len_q) * row_bytes(gates_of_row, dtype);
  });
  return tensors + biases + gates;
}

}  // namespace heed
