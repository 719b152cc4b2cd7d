/// What quantising costs in accuracy, by named modes (quantise/modes.hpp), on given values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "quantise/modes.hpp"
#include "verify/accuracy.hpp"
#include "verify/inputs.hpp"

namespace heed::verify {

/// Values as the mode quantises them: smoothed and rotated, in fp32. @param seed of the rotation's signs
InputValues prepared_by(const Workload& workload, const quantise::Mode& mode, InputValues values, std::uint64_t seed);

/// What the mode costs: exact attention of the quantised numbers against exact attention of the values as the
/// workload's dtype holds them. Infinite errors where a value becomes infinite before it is quantised, which rows of O
/// show as NaN.
Accuracy cost_of(const Workload& workload, const quantise::Mode& mode, const InputValues& values,
                 const std::vector<RowIndex>& rows, std::uint64_t seed);

/// Which values become infinite where the mean of K is taken out or rows are rotated, in fp32: "64 values of Q, the
/// first in batch entry 0, head 1, row 3, column 0"; "" where none does. @param seed that of cost_of
std::string lost_values(const Workload& workload, const quantise::Mode& mode, const InputValues& values,
                        std::uint64_t seed);

}  // namespace heed::verify
