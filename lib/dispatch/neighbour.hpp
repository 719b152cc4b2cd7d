/// When a champion of one workload is run for another: the rule, and its numbers.
///
/// A search says something of its own workload. A workload nearby gets the champion of that search where all of this
/// holds, else the program that the rule for defaults names:
///
/// 1. Both are of one class (`is_same_class`): dtype, head dims, layout, query heads a key head, mask with its
/// alignment
///    and window, and either few queries or many.
/// 2. They are near (`neighbour_distance`): batch * heads_kv and len_q together, which are the tiles of a launch,
/// differ
///    by a factor of at most kMostTilesRatio, so that the tiles take about as many waves on the chip; len_k, which is
///    the work of a tile, by at most kMostKeysRatio.
/// 3. The champion is built for all shapes, and legal for the workload.
/// 4. The default for the workload is the very variant that the champion was measured against, by its config under
///    the names of today. Where the rule names another one, nothing says that the champion is the faster one: the rule
///    was made from measurements, too.
/// 5. No search of a workload of the class that is as near, or nearer, ended with its default unbeaten.
///
/// Of several champions the nearest runs; of equally near ones one found on a device of this name, then the one with
/// the higher lower end of its ratio.
#pragma once

#include <cstdint>
#include <optional>

#include "heed/heed.hpp"

namespace heed::dispatch {

/// A launch of 132 tiles, one wave of an H100, may so become one of 106 to 165: not two full waves.
inline constexpr double kMostTilesRatio = 1.25;
inline constexpr double kMostKeysRatio = 2;
/// Workloads of at most so many queries go to families that split keys over the chip (fwd_sm80_decode,
/// fwd_sm90_decode).
inline constexpr std::int64_t kMostDecodeQueries = 16;

[[nodiscard]] bool is_same_class(const Workload& a, const Workload& b);

/// |log2| of the ratios of batch * heads_kv, len_q and len_k, summed; nothing where they are of different classes or
/// further from each other than the rule allows. The scale plays no part: programs get it with a launch.
[[nodiscard]] std::optional<double> neighbour_distance(const Workload& a, const Workload& b);

}  // namespace heed::dispatch
