/// Which config fwd_sm90_stream starts from: a rule over rows, keys, processors and head dim, as measured on an H200.
#pragma once

#include <cstdint>
#include <functional>

#include "heed/heed.hpp"
#include "kernels/stream/config.hpp"

namespace heed {

/// A row tile's keys over two blocks, two blocks a multiprocessor, a long one beside a short one: causal launches of
/// one such wave. The best of some 100 configs at b1h8l1024d64 causal on an H200: 5.19 us; fwd_sm90 5.77.
inline constexpr stream::Config kSplitRows{.row_groups = 1,
                                           .key_groups = 1,
                                           .cluster = 2,
                                           .stages = 3,
                                           .overlap = stream::Overlap::products,
                                           .product_order = stream::ProductOrder::alternating,
                                           .vote = stream::Vote::after_products,
                                           .masking = stream::Masking::apart,
                                           .shares = stream::Shares::ahead,
                                           .store = stream::Store::rows,
                                           .tile_order = stream::TileOrder::folded,
                                           .arrival = stream::Arrival::ahead,
                                           .upkeep = stream::Upkeep::conditions,
                                           .packing = stream::Packing::step_later,
                                           .adding = stream::Adding::step_later,
                                           .min_blocks = 2};

/// Four row groups a block that multiply one after the other, and the keys of their rows in two blocks of a cluster:
/// launches of one wave without a mask at head dims up to 64.
inline constexpr stream::Config kSplitKeys{.row_groups = 4,
                                           .key_groups = 1,
                                           .cluster = 2,
                                           .stages = 3,
                                           .product_order = stream::ProductOrder::scores_first,
                                           .reference = stream::Reference::first_keys,
                                           .turns = stream::Turns::in_order,
                                           .producer = stream::Producer::own_group,
                                           .store = stream::Store::rows,
                                           .tile_order = stream::TileOrder::heads_first,
                                           .packing = stream::Packing::step_later};

/// Row tiles of a launch with so many row groups a block, all heads and batch entries together.
std::int64_t stream_row_tiles(int row_groups, const Workload& workload);

/// @param processors of the device
/// @param is_legal whether a config fits the device, knobs that contradict each other reconciled
/// @return legal, but for stream::canonical
stream::Config stream_default(const Workload& workload, std::int64_t processors,
                              const std::function<bool(const stream::Config&)>& is_legal);

}  // namespace heed
