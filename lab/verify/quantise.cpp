#include "verify/quantise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/parallel.hpp"
#include "workload/elements.hpp"

namespace heed::verify {
namespace {

constexpr std::byte kNoNumber_int8{0x80};

// What a group of values has been seen to hold: nothing, only NaN or infinity, numbers.
constexpr float kNothing = -2;
constexpr float kNoNumbers = -1;

float size_of_number(float x) {
  const float size = std::abs(x);
  return size <= std::numeric_limits<float>::max() ? size : kNoNumbers;
}

// Eight at once: one waits for its last comparison.
float largest_of_row(const float* values, std::int64_t count) {
  std::array<float, 8> largest;
  largest.fill(kNothing);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::int64_t j = 0; j < 8; ++j) {
      float& known = largest[static_cast<std::size_t>(j)];
      const float size = size_of_number(values[i + j]);
      known = size > known ? size : known;
    }
  for (; i < count; ++i) largest[0] = std::max(largest[0], size_of_number(values[i]));
  return *std::max_element(largest.begin(), largest.end());
}

}  // namespace

Scales::Scales(const QuantisedTensor& tensor, const RowPlaces& places, bool are_queries, const Values& values,
               std::int64_t heads, std::int64_t rows, std::int64_t columns, std::int64_t padding_rows)
    : tensor_(tensor), places_(places), are_queries_(are_queries) {
  const auto batch = static_cast<std::int64_t>(places.lengths().size());
  const std::int64_t blocks = are_queries ? places.query_blocks() : places.key_blocks();
  const std::int64_t rows_of_block = (are_queries ? places.query_rows() : places.key_rows()) + padding_rows;
  const ScaleSizes sizes = scale_sizes(tensor, by_rows() ? blocks : batch, heads, rows_of_block, columns);
  strides_ = sizes.strides();
  factors_.assign(static_cast<std::size_t>(sizes.count()), kNothing);
  const auto largest_of_head = [&](std::int64_t of_head, std::vector<float>& largest) {
    const std::int64_t entry = of_head / heads, head = of_head % heads;
    const EntryLengths& lengths = places.lengths()[static_cast<std::size_t>(entry)];
    const std::int64_t count = are_queries ? lengths.len_q : lengths.len_k;
    const auto raise = [](float& known, float size) { known = std::max(known, size); };
    // Factors of heads lie beside each other: they are written once a head, not with every row, for each write would
    // take the cache line from the threads of other heads.
    float of_all = kNothing;
    for (std::int64_t row = 0; row < count; ++row) {
      const float* const from = values.data() + (of_head * rows + row) * columns;
      if (channel() != 0)
        for (std::int64_t d = 0; d < columns; ++d) raise(largest[index(entry, head, row, d)], size_of_number(from[d]));
      else
        raise(by_rows() ? largest[index(entry, head, row, 0)] : of_all, largest_of_row(from, columns));
    }
    if (channel() == 0 && !by_rows()) raise(largest[index(entry, head, 0, 0)], of_all);
  };
  if (tensor.by == ScaleBy::tensor) {
    std::vector<std::vector<float>> of_heads(static_cast<std::size_t>(batch * heads), {kNothing});
    parallel_for(batch * heads, 0, [&](std::int64_t i) { largest_of_head(i, of_heads[static_cast<std::size_t>(i)]); });
    for (const std::vector<float>& of_head : of_heads) factors_[0] = std::max(factors_[0], of_head[0]);
  } else if (by_rows()) {
    // Rows of two sequences may share a block.
    parallel_for(heads, 0, [&](std::int64_t head) {
      for (std::int64_t entry = 0; entry < batch; ++entry) largest_of_head(entry * heads + head, factors_);
    });
  } else {
    parallel_for(batch * heads, 0, [&](std::int64_t i) { largest_of_head(i, factors_); });
  }
  const auto most = static_cast<float>(largest_of(tensor.dtype));
  for (float& factor : factors_) {
    if (factor > 0)
      factor = std::max(factor / most, std::numeric_limits<float>::min());
    else
      factor = factor < 0 && by_rows() ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
  }
}

std::size_t Scales::index(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  if (!by_rows()) return static_cast<std::size_t>(batch * strides_.batch + head * strides_.head + channel() * column);
  const RowPlace at = are_queries_ ? places_.query(batch, row) : places_.key(batch, row);
  return static_cast<std::size_t>(at.block * strides_.batch + head * strides_.head +
                                  at.row / tensor_.rows * strides_.row);
}

void store_quantised(Dtype dtype, void* data, std::size_t index, const float* values, std::size_t count,
                     const float* factors, bool by_column) {
  if (by_column) {
    for (std::size_t i = 0; i < count; ++i) store_quantised(dtype, data, index + i, values + i, 1, factors + i, false);
    return;
  }
  store_elements(dtype, data, index, values, count, *factors);  // NaN where the factor is
  if (dtype == Dtype::int8)
    for (std::size_t i = 0; i < count; ++i)
      if (std::isnan(values[i])) static_cast<std::byte*>(data)[index + i] = kNoNumber_int8;
}

std::uint64_t most_scale_bytes(const QuantisedTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                               std::int64_t columns) {
  return static_cast<std::uint64_t>(scale_sizes(tensor, batch, heads, rows, columns).count()) * sizeof(float);
}

}  // namespace heed::verify
