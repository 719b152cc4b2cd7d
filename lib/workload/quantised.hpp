/// Quantised Q, K and V of a workload: the text, what is wrong with them, and how their scale factors lie where a
/// caller has no layout of its own.
#pragma once

#include <string>
#include <string_view>

#include "heed/heed.hpp"
#include "kernels/contract.hpp"

namespace heed {

/// Whether a dtype has 8 bits, of elements that are nothing without a scale factor.
constexpr bool is_quantised(Dtype dtype) {
  return size_of(dtype) == 1;
}
/// The largest finite number of a quantised dtype: 448, 57344, 127.
double largest_of(Dtype dtype);

/// "qkv/e4m3/head", "q/int8/block128+k/int8/block64".
std::string to_string(const Quantised& quantised);
/// Its inverse. @throws Error(invalid_workload) naming the part that cannot be; `whole` is the workload's text
Quantised parse_quantised(std::string_view whole, std::string_view text);
/// What is wrong with the quantised tensors of a workload; "" for nothing.
std::string wrong_quantised(const Workload& workload);
/// "Q and K in int8, V in e4m3".
std::string words_of(const Quantised& quantised);

/// The element types of a workload's Q, K and V as programs are built for them.
Inputs inputs_of(const Workload& workload);

/// Numbers of a dense tensor of scale factors, (batch, heads, blocks of rows or columns): 1 in a dimension that shares
/// them.
struct ScaleSizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t blocks = 1;  ///< of `rows` rows
  std::int64_t columns = 1;
  [[nodiscard]] std::int64_t count() const { return batch * heads * blocks * columns; }
  /// Of factors in this order; 0 in a dimension that shares them.
  [[nodiscard]] Strides strides() const;
};
/// Of a tensor (batch, heads, rows, columns), its pages counted as batch entries where they have factors of rows.
ScaleSizes scale_sizes(const QuantisedTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                       std::int64_t columns);

}  // namespace heed
