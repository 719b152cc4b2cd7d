/// Calls of heed::forward_scaled: tensors of 8 bits with scale factors (heed_scales).
#pragma once

#include "call_parts.hpp"

namespace heed::torch {

/// Element types of a call's problem, and that of O.
Refusal read_types(const QkvShapes& shapes, const Scales& scales, Call& call);

/// Scale factors of a problem whose sizes are read. False where a tensor of 8 bits has none, or one of another size,
/// type or device than it must have.
bool read_scales(const Scales& scales, bool ragged_queries, bool ragged_keys, Call& call);

}  // namespace heed::torch
