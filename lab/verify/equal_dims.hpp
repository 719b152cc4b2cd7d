/// Head dims of V unlike that of Q and K, which kernels do not have.
#pragma once

#include "verify/inputs.hpp"

namespace heed::verify {

/// The same attention with one head dim: columns of zeros behind those of V, or of Q and K, which add nothing to a
/// score. Values are filled up likewise, and the scale stays what it was. Where the dims are equal, nothing changes.
/// @throws Error(unsupported) where columns of zeros would count: norms and gates of a narrower V
Workload with_equal_dims(const Workload& workload, InputValues& values);

}  // namespace heed::verify
