#include "verify/quantise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr std::byte kNoNumber_int8{0x80};

// What a group of values has been seen to hold: nothing, only NaN or infinity, numbers.
constexpr float kNothing = -2;
constexpr float kNoNumbers = -1;

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
    for (std::int64_t row = 0; row < (are_queries ? lengths.len_q : lengths.len_k); ++row) {
      const float* const from = values.data() + (of_head * rows + row) * columns;
      const std::size_t first = index(entry, head, row, 0);
      for (std::int64_t d = 0; d < columns; ++d) {
        float& known = largest[first + static_cast<std::size_t>(channel() * d)];
        known = std::max(known, std::isfinite(from[d]) ? std::abs(from[d]) : kNoNumbers);
      }
    }
  };
  if (tensor.by == ScaleBy::tensor) {
    std::vector<std::vector<float>> of_heads(static_cast<std::size_t>(batch * heads), {kNothing});
    parallel_for(batch * heads, 0, [&](std::int64_t i) { largest_of_head(i, of_heads[static_cast<std::size_t>(i)]); });
    for (const std::vector<float>& of_head : of_heads) factors_[0] = std::max(factors_[0], of_head[0]);
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

void store_quantised(Dtype dtype, void* data, std::size_t index, float value, float factor) {
  if (dtype == Dtype::int8 && std::isnan(value))
    static_cast<std::byte*>(data)[index] = kNoNumber_int8;
  else
    store_element(dtype, data, index, std::isnan(factor) ? factor : value / factor);
}

std::uint64_t most_scale_bytes(const QuantisedTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                               std::int64_t columns) {
  return static_cast<std::uint64_t>(scale_sizes(tensor, batch, heads, rows, columns).count()) * sizeof(float);
}

}  // namespace heed::verify
