/// Tensors and launch of one attention problem with features (kernels/attention/features.hpp) for an emulated kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "elements.hpp"
#include "feature_shape.hpp"
#include "kernels/attention/features.hpp"
#include "simt.hpp"

namespace heed::emulator {

class FeatureTensors {
 public:
  FeatureTensors(const Problem& problem, const FeatureShape& shape, std::uint64_t seed)
      : problem_(problem), shape_(shape), random_(seed) {
    p_.batch = shape.batch;
    p_.heads = shape.heads;
    p_.heads_kv = shape.heads_kv;
    p_.group_size = shape.heads / shape.heads_kv;
    p_.len_q = shape.len_q;
    p_.len_k = shape.len_k;
    p_.right_offset = shape.right_offset;
    p_.left_offset = shape.left_offset;
    p_.aligned_to_the_end = shape.to_the_end ? 1 : 0;
    p_.scale = 1.0F / std::sqrt(static_cast<float>(problem.head_dim));
    p_.softcap = shape.softcap;
    if (shape.dropout > 0) {
      p_.dropout_seed = random_.next();
      p_.dropout_offset = random_.next();
      p_.dropout_first_entry = static_cast<int>(random_.below(1000));
    }
    p_.dropout_threshold = dropout_threshold(shape.dropout);
    p_.dropout_scale = dropout_scale(shape.dropout);
    p_.dropout_first_key = shape.cut_keys;
    seed_ = {p_.dropout_seed, p_.dropout_offset};
    first_entry_ = p_.dropout_first_entry;
    for (int b = 0; b < shape.batch; ++b) entries_.push_back(entry_of(shape, b));
    if (shape.blocks) make_blocks(*shape.blocks);
    make_queries();
    make_keys();
    if (shape.bias) make_bias(*shape.bias);
    for (int i = 0; i < (shape.slopes == 2 ? shape.batch : shape.slopes) * shape.heads; ++i)
      slopes_.push_back(std::exp2(-0.5F * static_cast<float>(i) - 1.0F));
    if (shape.slopes != 0) p_.alibi_slopes = slopes_.data();
    p_.alibi_batch = shape.slopes == 2 ? shape.heads : 0;
    if (shape.relative) {
      for (int i = 0; i < shape.heads * shape.relative->all; ++i) relative_.push_back(normal() * 2);
      p_.relative_bias = relative_.data();
      p_.relative_buckets = *shape.relative;
    }
    make_output();
    const auto given = [](const auto& numbers) { return numbers.empty() ? nullptr : numbers.data(); };
    p_.sinks = given(shape_.sinks);
    p_.cu_seqlens_q = given(shape_.cu_q);
    p_.cu_seqlens_k = given(shape_.cu_k);
    p_.seqused_k = given(shape_.used_k);
    p_.prefix_lengths = given(shape_.prefixes);
  }
  FeatureTensors(const FeatureTensors&) = delete;
  FeatureTensors& operator=(const FeatureTensors&) = delete;

  [[nodiscard]] FeatureParams& params() { return p_; }
  [[nodiscard]] std::vector<Range> readable() const { return {q_.range(), k_.range(), v_.range()}; }

 protected:
  static std::size_t at(long long i) { return static_cast<std::size_t>(i); }
  float normal() {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random_.uniform());
    return sum - 6.0F;
  }

  [[nodiscard]] bool sees(int b, int row, int key) const {
    const FeatureEntry& e = entries_[at(b)];
    const int moved = shape_.to_the_end ? (e.len_k - e.len_q) - (shape_.len_k - shape_.len_q) : 0;
    if (row >= e.len_q || key >= e.len_k) return false;
    const bool in_prefix = !shape_.prefixes.empty() && key < shape_.prefixes[at(b)];
    if (problem_.mask != MaskKind::none && !in_prefix && key > row + shape_.right_offset + moved) return false;
    return problem_.mask != MaskKind::window || key >= row + shape_.left_offset + moved;
  }
  /// Whether the list of a row's block has the block of a key.
  [[nodiscard]] bool lists(int b, int h, int row, int key) const {
    return !shape_.blocks ||
           listed_[list_of(b, h, row / shape_.blocks->rows) * at(key_blocks_) + at(key / shape_.blocks->keys)];
  }
  /// Whether that list says that the bias is not read there.
  [[nodiscard]] bool is_full(int b, int h, int row, int key) const {
    return shape_.blocks &&
           full_[list_of(b, h, row / shape_.blocks->rows) * at(key_blocks_) + at(key / shape_.blocks->keys)];
  }
  [[nodiscard]] bool is_seen(int b, int kv_head, int key) const {
    for (int h = kv_head * p_.group_size; h < (kv_head + 1) * p_.group_size; ++h)
      for (int i = 0; i < entries_[at(b)].len_q; ++i)
        if (sees(b, i, key) && lists(b, h, i, key)) return true;
    return false;
  }

  // ---- lists of blocks: behind each a block that it has not, if there is one
  [[nodiscard]] std::size_t list_of(int b, int h, int block) const {
    return at((shape_.blocks->per_batch ? b * list_heads_ : 0) + (shape_.blocks->per_head ? h : 0)) * at(row_blocks_) +
           at(block);
  }
  void make_blocks(const ListsOfBlocks& t) {
    row_blocks_ = (shape_.len_q + t.rows - 1) / t.rows;
    key_blocks_ = (shape_.len_k + t.keys - 1) / t.keys;
    list_heads_ = t.per_head ? shape_.heads : 1;
    const std::size_t lists = at((t.per_batch ? shape_.batch : 1) * list_heads_ * row_blocks_);
    const std::size_t most = at(key_blocks_) + 3;
    listed_.assign(lists * at(key_blocks_), false);
    full_ = listed_;
    for (std::size_t list = 0; list < lists; ++list) {
      std::vector<int> numbers = {-1, key_blocks_};
      int behind = 1 << 28;
      for (int key = 0; key < key_blocks_; ++key)
        if (static_cast<int>(list) % row_blocks_ < t.whole || random_.chance(t.density)) {
          listed_[list * at(key_blocks_) + at(key)] = true;
          const bool full = t.full > 0 && shape_.bias && random_.chance(t.full);
          full_[list * at(key_blocks_) + at(key)] = full;
          numbers.push_back(full ? key + kFullBlock : key);
        } else {
          behind = key;
        }
      for (std::size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random_.below(i)]);
      counts_.push_back(static_cast<int>(numbers.size()));
      numbers.resize(most, behind);
      numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    }
    p_.block_counts = counts_.data();
    p_.block_indices = numbers_.data();
    p_.block_rows = t.rows;
    p_.block_keys = t.keys;
    p_.block_most = static_cast<int>(most);
    p_.block_count_strides = {t.per_batch ? list_heads_ * row_blocks_ : 0, t.per_head ? row_blocks_ : 0, 1};
    const auto room = static_cast<long long>(most);
    p_.block_index_strides = {p_.block_count_strides.batch * room, p_.block_count_strides.head * room, room};
  }

  // ---- tensors: NaN wherever nobody should look
  [[nodiscard]] std::size_t query_place(int b, int h, int row) const {
    const FeatureEntry& e = entries_[at(b)];
    const long long batch = shape_.cu_q.empty() ? b * p_.q_strides.batch : 0;
    return at(batch + h * p_.q_strides.head + (e.first_q + row) * p_.q_strides.row);
  }
  [[nodiscard]] std::size_t key_place(int b, int h, int key) const {
    if (shape_.page_size != 0)
      return at(pages_[at(b)][at(key / shape_.page_size)] * p_.k_strides.batch + h * p_.k_strides.head +
                key % shape_.page_size * p_.k_strides.row);
    const long long batch = shape_.cu_k.empty() ? b * p_.k_strides.batch : 0;
    return at(batch + h * p_.k_strides.head + (entries_[at(b)].first_k + key) * p_.k_strides.row);
  }
  [[nodiscard]] std::size_t lse_place(int b, int h, int row) const {
    if (shape_.cu_q.empty()) return at(b * p_.lse_batch + h * p_.lse_head + row);
    return at(h * p_.lse_head + entries_[at(b)].first_q + row);
  }

  void make_queries() {
    const long long d = problem_.head_dim;
    const long long h = shape_.heads;
    const bool packed = !shape_.cu_q.empty();
    const long long rows = packed ? *std::max_element(shape_.cu_q.begin(), shape_.cu_q.end()) : shape_.len_q;
    p_.q_strides = packed ? TensorStrides{-1, d, h * d} : TensorStrides{h * rows * d, rows * d, d};
    p_.o_strides = p_.q_strides;
    p_.lse_head = rows + 3;
    p_.lse_batch = packed ? -1 : h * p_.lse_head + 5;
    q_ = Elements(problem_.element, at((packed ? 1 : shape_.batch) * h * rows * d) + 8);
    o_ = Elements::untouched(problem_.element, q_.size() + 64);
    lse_.assign(at(packed ? h * p_.lse_head : shape_.batch * p_.lse_batch) + 16,
                std::numeric_limits<float>::quiet_NaN());
    for (int b = 0; b < shape_.batch; ++b)
      for (int head = 0; head < shape_.heads; ++head)
        for (int i = 0; i < entries_[at(b)].len_q; ++i)
          for (int c = 0; c < problem_.head_dim; ++c)
            q_.set(query_place(b, head, i) + at(c), normal() * shape_.score_scale);
    if (packed) p_.total_q = static_cast<int>(rows);
    p_.q = q_.data();
    p_.o = o_.data();
    p_.lse = lse_.data();
  }

  void make_keys() {
    const long long d = problem_.head_dim;
    const long long h = shape_.heads_kv;
    long long blocks = shape_.batch;  // of one batch stride
    long long rows = shape_.len_k;
    if (shape_.page_size != 0) {
      rows = shape_.page_size;
      blocks = make_pages();
    } else if (!shape_.cu_k.empty()) {
      rows = *std::max_element(shape_.cu_k.begin(), shape_.cu_k.end());
      blocks = 1;
      p_.total_k = static_cast<int>(rows);
    }
    p_.k_strides =
        shape_.heads_first ? TensorStrides{rows * h * d, rows * d, d} : TensorStrides{rows * h * d, d, h * d};
    p_.v_strides = p_.k_strides;
    k_ = Elements(problem_.element, at(blocks * rows * h * d) + 8);
    v_ = k_;
    for (int b = 0; b < shape_.batch; ++b)
      for (int j = 0; j < entries_[at(b)].len_k; ++j)
        for (int head = 0; head < shape_.heads_kv; ++head)
          if (is_seen(b, head, j))
            for (int c = 0; c < problem_.head_dim; ++c) {
              k_.set(key_place(b, head, j) + at(c), normal());
              v_.set(key_place(b, head, j) + at(c), c < columns() ? normal() : 0.0F);
            }
    p_.k = k_.data();
    p_.v = v_.data();
  }

  // ---- norms and gates: gates lie apart from each other, with NaN between rows and behind the last of an entry
  [[nodiscard]] int columns() const { return shape_.out_columns != 0 ? shape_.out_columns : problem_.head_dim; }
  [[nodiscard]] std::size_t gate_place(int b, int h, int row, int column) const {
    const FeatureEntry& e = entries_[at(b)];
    const TensorStrides& s = gate_strides_;
    return at((shape_.cu_q.empty() ? b * s.batch : 0) + h * s.head + (e.first_q + row) * s.row +
              (shape_.gate == 1 ? column : 0));
  }
  void make_output() {
    p_.out_columns = columns();
    if (shape_.norm != 0) {
      for (int i = 0; i < (shape_.norm == 2 ? shape_.heads : 1) * columns(); ++i)
        weights_.push_back(1 + normal() * 0.25F);
      p_.out_norm_weight = weights_.data();
      p_.out_norm_head = shape_.norm == 2 ? columns() : 0;
      p_.out_norm_eps = shape_.norm_eps;
    }
    if (shape_.gate == 0) return;
    p_.out_gate_column = shape_.gate == 1 ? 1 : 0;
    const long long pitch = (shape_.gate == 1 ? columns() : 1) + 3;
    const bool packed = !shape_.cu_q.empty();
    const long long rows = packed ? *std::max_element(shape_.cu_q.begin(), shape_.cu_q.end()) : shape_.len_q;
    p_.out_gate_strides = gate_strides_ = {packed ? -1 : rows * shape_.heads * pitch, pitch, shape_.heads * pitch};
    gates_ = Elements(problem_.element, at((packed ? 1 : shape_.batch) * rows * shape_.heads * pitch));
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < shape_.heads; ++h)
        for (int i = 0; i < entries_[at(b)].len_q; ++i)
          for (int c = 0; c < (shape_.gate == 1 ? columns() : 1); ++c)
            gates_.set(gate_place(b, h, i, c),
                       i % 7 == 6 && c == 0 ? (i % 2 == 0 ? INFINITY : -INFINITY) : normal() * 2);
    p_.out_gate = gates_.data();
  }

  /// Shuffled pages, of which three are nobody's. Of the first and the last page the table has numbers that are out of
  /// range and mean these, and behind an entry's last page garbage.
  long long make_pages() {
    const int size = shape_.page_size;
    const int width = (shape_.len_k + size - 1) / size + 2;
    int used = 0;
    for (const FeatureEntry& e : entries_) used += (e.len_k + size - 1) / size;
    std::vector<int> order(at(used + 3));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    p_.pages = used + 3;
    p_.page_size = size;
    p_.page_table_batch = width;
    table_.assign(at(shape_.batch * width), 0x40000000);
    std::size_t next = 0;
    for (int b = 0; b < shape_.batch; ++b) {
      pages_.emplace_back();
      for (int i = 0; i < (entries_[at(b)].len_k + size - 1) / size; ++i) {
        const int page = order[next++];
        pages_.back().push_back(page);
        table_[at(b * width + i)] = page == 0 ? -3 : page == p_.pages - 1 ? p_.pages + 7 : page;
      }
    }
    p_.page_table = table_.data();
    return p_.pages;
  }

  // ---- biases
  [[nodiscard]] long long bias_place(int b, int h, int row, int key) const {
    return b * p_.bias_batch + h * p_.bias_head + row * p_.bias_row + key * p_.bias_key;
  }
  [[nodiscard]] int bias_bytes() const {
    const auto element = static_cast<BiasElement>(p_.bias_element);
    return element == BiasElement::boolean ? 1 : element == BiasElement::fp32 ? 4 : 2;
  }
  /// As a bias is added: -infinity where it hides.
  [[nodiscard]] double bias_at(int b, int h, int row, int key) const {
    const std::byte* from = bias_.data() + bias_place(b, h, row, key) * bias_bytes();
    switch (static_cast<BiasElement>(p_.bias_element)) {
      case BiasElement::boolean:
        return *from != std::byte{0} ? 0.0 : -INFINITY;
      case BiasElement::fp16:
      case BiasElement::bf16: {
        const bool bf16 = static_cast<BiasElement>(p_.bias_element) == BiasElement::bf16;
        const double x = load_16(bf16, from);
        return x <= (bf16 ? -0x1.fep127 : -65504.0) ? -INFINITY : x;
      }
      default: {
        float x = 0;
        std::memcpy(&x, from, 4);
        return x <= -std::numeric_limits<float>::max() ? -INFINITY : x;
      }
    }
  }
  void set_bias(long long place, bool hide) {
    std::byte* to = bias_.data() + place * bias_bytes();
    const float lowest = random_.chance(0.5) ? -INFINITY : -std::numeric_limits<float>::max();
    const float x = hide ? lowest : normal() * 2;
    switch (static_cast<BiasElement>(p_.bias_element)) {
      case BiasElement::boolean:
        *to = hide ? std::byte{0} : std::byte{static_cast<unsigned char>(1 + random_.below(255))};
        return;
      case BiasElement::fp16:
      case BiasElement::bf16: {
        const bool bf16 = static_cast<BiasElement>(p_.bias_element) == BiasElement::bf16;
        const float finite = bf16 ? -0x1.fep127F : -65504.0F;
        const std::uint16_t rounded = round_16(bf16, hide && !std::isinf(lowest) ? finite : x);
        std::memcpy(to, &rounded, 2);
        return;
      }
      case BiasElement::fp32:
        std::memcpy(to, &x, 4);
    }
  }
  void make_bias(const BiasTensor& t) {
    p_.bias_element = static_cast<int>(t.element);
    p_.bias_key = t.per_key ? t.key_stride : 0;
    long long extent = t.per_key ? static_cast<long long>(shape_.len_k) * t.key_stride : 1;
    const auto dimension = [&](bool has, int size, int padding) {
      if (!has) return 0LL;
      const long long stride = extent + padding;
      extent = stride * size;
      return stride;
    };
    p_.bias_row = dimension(t.per_row, shape_.len_q, t.row_padding);
    p_.bias_head = dimension(t.per_head, shape_.heads, 0);
    p_.bias_batch = dimension(t.per_batch, shape_.batch, 0);
    bias_.assign(at(extent * bias_bytes()), std::byte{0xff});  // NaN of every type
    std::vector<bool> is_set(at(extent));
    for (int b = 0; b < shape_.batch; ++b)
      for (int h = 0; h < shape_.heads; ++h)
        for (int i = 0; i < shape_.len_q; ++i)
          for (int j = 0; j < shape_.len_k; ++j) {
            const long long place = bias_place(b, h, i, j);
            if (!sees(b, i, j) || !lists(b, h, i, j) || is_set[at(place)]) continue;
            is_set[at(place)] = true;
            set_bias(place, random_.chance(0.1) || (t.hides_rows && (i % 5 == 0 || (i % 3 == 0 && j < 70))));
          }
    p_.bias = bias_.data();
  }

  Problem problem_;
  FeatureShape shape_;
  Random random_;
  FeatureParams p_{};
  std::array<std::uint64_t, 2> seed_{};  ///< and the offset
  int first_entry_ = 0;
  std::vector<FeatureEntry> entries_;
  Elements q_, k_, v_, o_;
  std::vector<float> lse_;
  std::vector<float> slopes_;
  std::vector<float> relative_;
  std::vector<float> weights_;
  Elements gates_;
  TensorStrides gate_strides_{};
  std::vector<std::byte> bias_;
  std::vector<int> table_;
  std::vector<std::vector<int>> pages_;  ///< of an entry
  int row_blocks_ = 0;
  int key_blocks_ = 0;
  int list_heads_ = 0;
  std::vector<int> counts_, numbers_;
  std::vector<bool> listed_;  ///< (lists, key blocks)
  std::vector<bool> full_;    ///< likewise
};

}  // namespace heed::emulator
