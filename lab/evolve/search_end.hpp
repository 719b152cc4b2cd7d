/// When a search has done enough.
#pragma once

#include "evolve/run_context.hpp"

namespace heed::evolve {

/// Says so where the budget has no room for one more trial beside those that are under way.
[[nodiscard]] bool is_out_of_time(const RunContext& run, int under_way = 0);

/// Says so where a trial is so near the floor that nothing is left to gain.
/// @param floor_us the lowest so far; lowered where the floor was measured again since
[[nodiscard]] bool has_reached_the_floor(RunContext& run, double& floor_us);

}  // namespace heed::evolve
