/// Which config fwd_sm90_stream starts from: a rule over rows, keys, processors and head dim, as measured on an H200.
#pragma once

#include <cstdint>
#include <functional>

#include "heed/heed.hpp"
#include "kernels/stream/config.hpp"

namespace heed {

/// Row tiles of a launch with so many row groups a block, all heads and batch entries together.
std::int64_t stream_row_tiles(int row_groups, const Workload& workload);

/// @param processors of the device
/// @param is_legal whether a config fits the device, knobs that contradict each other reconciled
/// @return legal, but for stream::canonical
stream::Config stream_default(const Workload& workload, std::int64_t processors,
                              const std::function<bool(const stream::Config&)>& is_legal);

}  // namespace heed
