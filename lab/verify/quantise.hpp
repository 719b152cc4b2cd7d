/// A scene's Q, K and V as quantised tensors: the scale factors of given values, and each value as an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "heed/heed.hpp"
#include "verify/inputs.hpp"
#include "verify/row_places.hpp"
#include "workload/quantised.hpp"

namespace heed::verify {

/// Factors of one tensor, by the largest magnitude of what shares one: largest |x| / largest element, so that none
/// saturates. Values that are NaN or infinite do not count. Where all are zero the factor is 1. Where all are NaN, or
/// no row has the factor, it is NaN if it is one of rows, for nobody may read it.
class Scales {
 public:
  /// @param are_queries of `places`, else keys  @param values (batch, heads, rows, columns)
  /// @param padding_rows rows after each head's own, which have factors too
  Scales(const QuantisedTensor& tensor, const RowPlaces& places, bool are_queries, const Values& values,
         std::int64_t heads, std::int64_t rows, std::int64_t columns, std::int64_t padding_rows);

  [[nodiscard]] const std::vector<float>& factors() const { return factors_; }
  /// As a launch has them.
  [[nodiscard]] Strides strides() const { return strides_; }
  [[nodiscard]] int rows() const { return static_cast<int>(tensor_.rows); }
  [[nodiscard]] int channel() const { return tensor_.by == ScaleBy::channel ? 1 : 0; }

  /// The index of the factor of a value, in an entry's own row.
  [[nodiscard]] std::size_t index(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

 private:
  [[nodiscard]] bool by_rows() const { return tensor_.by == ScaleBy::block || tensor_.by == ScaleBy::token; }

  QuantisedTensor tensor_;
  const RowPlaces& places_;
  bool are_queries_;
  Strides strides_;
  std::vector<float> factors_;
};

/// Values of a quantised tensor as elements from `index` on. In int8, which has no NaN, a NaN is -128, that no number
/// becomes.
/// @param factors one of all, or one of each if `by_column`
void store_quantised(Dtype dtype, void* data, std::size_t index, const float* values, std::size_t count,
                     const float* factors, bool by_column);

/// Bytes that a tensor's factors take at most. @param rows with their padding, of pages those of all pages
std::uint64_t most_scale_bytes(const QuantisedTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                               std::int64_t columns);

}  // namespace heed::verify
