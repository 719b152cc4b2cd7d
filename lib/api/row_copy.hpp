/// A copy of a tensor's rows, as plans make them.
#pragma once

#include "api/problem.hpp"
#include "padding/padding.hpp"

namespace heed::api {

/// Of a tensor of these sizes to rows of `to_dim` elements. Ragged rows are those of one batch entry, and pages count
/// as batch entries.
inline padding::RowCopy row_copy(const void* from, const TensorLayout& from_layout, const TensorSizes& sizes, void* to,
                                 const TensorLayout& to_layout, std::int64_t to_dim, int element_bytes) {
  padding::RowCopy copy{.from = from,
                        .to = to,
                        .from_strides = from_layout,
                        .to_strides = to_layout,
                        .from_step = from_layout.step,
                        .to_step = to_layout.step,
                        .batch = sizes.batch,
                        .heads = static_cast<int>(sizes.heads),
                        .rows = static_cast<int>(sizes.rows),
                        .from_dim = static_cast<int>(sizes.dim),
                        .to_dim = static_cast<int>(to_dim),
                        .is_wide = 0,
                        .element_bytes = element_bytes};
  copy.is_wide = padding::is_wide(copy) ? 1 : 0;
  return copy;
}

}  // namespace heed::api
