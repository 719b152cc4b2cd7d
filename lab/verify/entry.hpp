/// One entry of a batch as the oracle and the unfused computation see it: lengths of its own, where rows lie, and what
/// is done to scores beside the scale. Written apart from kernels/attention/features.hpp, which kernels follow; of
/// dropout the generator alone is theirs, which has known answers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "heed/heed.hpp"
#include "workload/elements.hpp"
#include "workload/features.hpp"
#include "workload/half.hpp"

namespace heed {

class Entry {
 public:
  Entry(const Workload& whole, const HostTensors& tensors, std::int64_t batch)
      : tensors_(tensors), batch_(batch), page_size_(whole.page_size), workload_(entry_of(whole, own_lengths(whole))) {
    if (whole.ragged) {
      first_query_ = tensors.cu_seqlens_q[batch];
      if (page_size_ == 0) first_key_ = tensors.cu_seqlens_k[batch];
    }
    is_ragged_ = whole.ragged;
    if (whole.prefix > 0) workload_.prefix = std::max(tensors.prefix_lengths[batch], 0);
  }

  /// A batch of 1 with the entry's own lengths.
  [[nodiscard]] const Workload& workload() const { return workload_; }

  /// Rows of Q, K and V in T: of quantised tensors each element times its factor.
  template <typename T>
  void load_query(std::int64_t head, std::int64_t row, T* to) const {
    load_elements(workload_.dtype_q(), tensors_.q, query(head, row), static_cast<std::size_t>(workload_.dim), to);
    if (!workload_.quantised || !workload_.quantised->q) return;
    const HostScales& s = tensors_.q_scales;
    const bool of_tensor = is_ragged_ && s.strides.row != 0;
    multiply(s, (of_tensor ? 0 : batch_ * s.strides.batch) + head * s.strides.head,
             (of_tensor ? first_query_ : 0) + row, workload_.dim, to);
  }
  template <typename T>
  void load_key(std::int64_t head, std::int64_t row, T* to) const {
    load_elements(workload_.dtype_k(), tensors_.k, key(head, row), static_cast<std::size_t>(workload_.dim), to);
    if (workload_.quantised && workload_.quantised->k) multiply_key(tensors_.k_scales, head, row, workload_.dim, to);
  }
  template <typename T>
  void load_value(std::int64_t head, std::int64_t row, T* to) const {
    load_elements(workload_.dtype_v(), tensors_.v, value(head, row), static_cast<std::size_t>(workload_.dim_v), to);
    if (workload_.quantised && workload_.quantised->v) multiply_key(tensors_.v_scales, head, row, workload_.dim_v, to);
  }

  /// Where a row lies, as an index of elements.
  [[nodiscard]] std::size_t query(std::int64_t head, std::int64_t row) const {
    return place(tensors_.q_strides, head, row, first_query_);
  }
  [[nodiscard]] std::size_t key(std::int64_t head, std::int64_t row) const {
    return place_of_key(tensors_.k_strides, head, row);
  }
  [[nodiscard]] std::size_t value(std::int64_t head, std::int64_t row) const {
    return place_of_key(tensors_.v_strides, head, row);
  }

  /// Whether the list of the row's block has the block of keys that a key is in.
  [[nodiscard]] bool lists(std::int64_t head, std::int64_t row, std::int64_t key) const {
    if (!workload_.blocks) return true;
    const std::int64_t block = row / workload_.blocks->rows;
    const Strides& c = tensors_.block_count_strides;
    const Strides& n = tensors_.block_index_strides;
    const std::int32_t* const numbers = tensors_.block_indices + batch_ * n.batch + head * n.head + block * n.row;
    const std::int32_t count = tensors_.block_counts[batch_ * c.batch + head * c.head + block * c.row];
    for (std::int32_t i = 0; i < count; ++i)
      if (numbers[i] == key / workload_.blocks->keys) return true;
    return false;
  }
  [[nodiscard]] bool changes_scores() const {
    return workload_.softcap != 0 || workload_.bias || workload_.relative || workload_.alibi;
  }

  /// A scaled score after softcap, bias and ALiBi; -infinity where the bias hides it.
  template <typename T>
  [[nodiscard]] T changed(T score, std::int64_t head, std::int64_t row, std::int64_t key) const {
    if (workload_.softcap != 0) {
      const auto cap = static_cast<T>(workload_.softcap);
      score = cap * std::tanh(score / cap);
    }
    if (workload_.bias) {
      const double added = bias(head, row, key);
      if (added == -INFINITY) return -INFINITY;  // whatever the score was
      score += static_cast<T>(added);
    }
    if (workload_.relative)
      score += static_cast<T>(tensors_.relative_bias[head * workload_.relative->buckets +
                                                     bucket(key - (row + workload_.len_k - workload_.len_q))]);
    if (workload_.alibi)
      score -= static_cast<T>(tensors_.alibi_slopes[head]) *
               static_cast<T>(std::abs(row + (workload_.len_k - workload_.len_q) - key));
    return score;
  }

  [[nodiscard]] bool drops() const { return workload_.dropout > 0; }
  /// What a probability is multiplied by: 0 where it is dropped, else 1 over the probability of keeping one.
  [[nodiscard]] double kept(std::int64_t head, std::int64_t row, std::int64_t key) const {
    if (!drops()) return 1;
    if (workload_.dropout >= 1) return 0;
    const auto& t = tensors_;
    const std::int64_t of_head = (batch_ + t.dropout_first_entry) * workload_.heads + head;
    const auto lane = static_cast<std::uint64_t>((row & 7) << 2 | (key & 7) >> 1);
    const std::uint64_t offset = t.dropout_offset + 32 * static_cast<std::uint64_t>(of_head) + lane;
    const Philox4 numbers =
        philox4x32({{static_cast<unsigned>(offset & 0xffffffff), static_cast<unsigned>(offset >> 32),
                     static_cast<unsigned>(row >> 4), static_cast<unsigned>(key >> 5)}},
                   static_cast<unsigned>(t.dropout_seed & 0xffffffff), static_cast<unsigned>(t.dropout_seed >> 32), 7);
    const int byte = static_cast<int>((key >> 3 & 3) << 2 | (row >> 3 & 1) << 1 | (key & 1));
    const unsigned number = numbers.word[byte / 4] >> byte % 4 * 8 & 0xff;
    const float keeping = 1.0F - static_cast<float>(workload_.dropout);
    return number > std::floor(255.0 * keeping) ? 0 : 1 / (1 - workload_.dropout);
  }

  /// Norms and gates a row of O in place, each step rounded by `rounded`: as modules of a model that follow attention.
  /// @return how many times as far as before the row may then be off, to first order: the derivative of a norm is a
  /// projection times its factor, so that a small error grows by that and the largest of weights times gates at most
  template <typename T, typename Round>
  double finish(std::int64_t head, std::int64_t row, T* out, const Round& rounded) const {
    const Workload& w = workload_;
    double of_norm = 1;
    std::vector<double> of_column(static_cast<std::size_t>(w.dim_v), 1.0);
    if (w.out_norm) {
      T squares = 0;
      for (std::int64_t d = 0; d < w.dim_v; ++d) squares += out[d] * out[d];
      const T factor = T(1) / std::sqrt(squares / static_cast<T>(w.dim_v) + static_cast<T>(w.out_norm->eps));
      of_norm = static_cast<double>(factor);
      const float* const weights = tensors_.out_norm_weight + (w.out_norm->by_head ? head * w.dim_v : 0);
      for (std::int64_t d = 0; d < w.dim_v; ++d) {
        out[d] = rounded(out[d] * factor * static_cast<T>(weights[d]));
        of_column[static_cast<std::size_t>(d)] = static_cast<double>(weights[d]);
      }
    }
    if (w.out_gate != OutGate::none) {
      const std::size_t first = place(tensors_.out_gate_strides, head, row, first_query_);
      for (std::int64_t d = 0; d < w.dim_v; ++d) {
        const auto at = first + static_cast<std::size_t>(d * tensors_.out_gate_column_stride);
        const T gate = static_cast<T>(load_element(w.dtype, tensors_.out_gate, at));
        const T open = rounded(T(1) / (T(1) + std::exp(-gate)));
        out[d] = rounded(out[d] * open);
        of_column[static_cast<std::size_t>(d)] *= static_cast<double>(open);
      }
    }
    double most = 0;
    for (const double factor : of_column) most = std::max(most, std::abs(factor));
    return of_norm * most;
  }

  /// The score without a value of a head's rows; -infinity where there is none.
  [[nodiscard]] double sink(std::int64_t head) const {
    return workload_.sinks ? static_cast<double>(tensors_.sinks[head]) : -INFINITY;
  }

 private:
  template <typename T>
  static void multiply(const HostScales& s, std::int64_t first, std::int64_t row, std::int64_t columns, T* to) {
    const float* const factors = s.at + first + row / s.rows * s.strides.row;
    for (std::int64_t d = 0; d < columns; ++d) to[d] *= static_cast<T>(factors[d * s.channel]);
  }
  template <typename T>
  void multiply_key(const HostScales& s, std::int64_t head, std::int64_t row, std::int64_t columns, T* to) const {
    const std::int64_t of_head = head * s.strides.head;
    if (s.strides.row == 0) return multiply(s, batch_ * s.strides.batch + of_head, 0, columns, to);
    if (page_size_ > 0) {
      const std::int64_t page = tensors_.page_table[batch_ * tensors_.page_table_stride + row / page_size_];
      return multiply(s, page * s.strides.batch + of_head, row % page_size_, columns, to);
    }
    multiply(s, (is_ragged_ ? 0 : batch_ * s.strides.batch) + of_head, first_key_ + row, columns, to);
  }

  [[nodiscard]] EntryLengths own_lengths(const Workload& whole) const {
    EntryLengths lengths{whole.len_q, whole.len_k};
    if (whole.ragged) {
      lengths.len_q = tensors_.cu_seqlens_q[batch_ + 1] - tensors_.cu_seqlens_q[batch_];
      if (tensors_.cu_seqlens_k != nullptr)
        lengths.len_k = tensors_.cu_seqlens_k[batch_ + 1] - tensors_.cu_seqlens_k[batch_];
    }
    if (whole.has_lengths() && tensors_.seqused_k != nullptr) lengths.len_k = tensors_.seqused_k[batch_];
    return lengths;
  }

  [[nodiscard]] std::size_t place(const Strides& s, std::int64_t head, std::int64_t row, std::int64_t first) const {
    return static_cast<std::size_t>((is_ragged_ ? 0 : batch_ * s.batch) + head * s.head + (first + row) * s.row);
  }
  [[nodiscard]] std::size_t place_of_key(const Strides& s, std::int64_t head, std::int64_t row) const {
    if (page_size_ == 0) return place(s, head, row, first_key_);
    const std::int64_t page = tensors_.page_table[batch_ * tensors_.page_table_stride + row / page_size_];
    return static_cast<std::size_t>(page * s.batch + head * s.head + row % page_size_ * s.row);
  }

  /// Transformers' T5Attention._relative_position_bucket, line by line; its logarithms are in fp32.
  [[nodiscard]] std::int64_t bucket(std::int64_t relative_position) const {
    std::int64_t num_buckets = workload_.relative->buckets;
    std::int64_t first = 0;
    if (workload_.relative->bidirectional) {
      num_buckets /= 2;
      if (relative_position > 0) first = num_buckets;
      relative_position = std::abs(relative_position);
    } else {
      relative_position = -std::min<std::int64_t>(relative_position, 0);
    }
    const std::int64_t max_exact = num_buckets / 2;
    if (relative_position < max_exact) return first + relative_position;
    const float ratio = std::log(static_cast<float>(relative_position) / static_cast<float>(max_exact)) /
                        static_cast<float>(std::log(static_cast<double>(workload_.relative->max_distance) /
                                                    static_cast<double>(max_exact)));
    const auto above = static_cast<std::int64_t>(ratio * static_cast<float>(num_buckets - max_exact));
    return first + std::min(max_exact + above, num_buckets - 1);
  }

  [[nodiscard]] double bias(std::int64_t head, std::int64_t row, std::int64_t key) const {
    const Strides& s = tensors_.bias_strides;
    const auto at =
        static_cast<std::size_t>(batch_ * s.batch + head * s.head + row * s.row + key * tensors_.bias_key_stride);
    switch (workload_.bias->dtype) {
      case BiasDtype::boolean:
        return static_cast<const unsigned char*>(tensors_.bias)[at] != 0 ? 0.0 : -INFINITY;
      case BiasDtype::fp16:
        return shown(load_element(Dtype::fp16, tensors_.bias, at), 65504.0);
      case BiasDtype::bf16:
        return shown(load_element(Dtype::bf16, tensors_.bias, at), 0x1.fep127);
      case BiasDtype::fp32:
        break;
    }
    return shown(load_element(Dtype::fp32, tensors_.bias, at), 0x1.fffffep127);
  }
  static double shown(double bias, double largest) { return bias <= -largest ? -INFINITY : bias; }

  const HostTensors& tensors_;
  std::int64_t batch_;
  std::int64_t page_size_;
  std::int64_t first_query_ = 0;
  std::int64_t first_key_ = 0;
  bool is_ragged_ = false;
  Workload workload_;
};

}  // namespace heed
