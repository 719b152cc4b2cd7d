/// Inputs that are not finite, or whose scores are not: what a row sees of them must show, and reach no other row.
#pragma once

#include <vector>

#include "base/random.hpp"
#include "verify/inputs.hpp"

namespace heed::verify {

/// One thing that is not finite, put into the tensors of one key head of one batch entry.
enum class Blemish {
  query_nan,     ///< one element of one query that sees a key
  key_nan,       ///< one element of one key
  value_nan,     ///< one element of one value
  value_inf,     ///< the same, infinity
  scores_above,  ///< every score of the head's queries beyond the largest of fp32
  scores_below,  ///< every score below the lowest of fp32: all are -infinity, as if the mask hid every key
  scores_mixed,  ///< products beyond fp32 of both signs
};

/// Keys that every row sees.
KeyRange seen_by_every_row(const Workload& workload);
/// The first row that sees a key; where none does, the last.
std::int64_t seeing_row(const Workload& workload);
/// The workload with no more rows than see one key together, where its mask has a left bound.
Workload with_a_shared_key(const Workload& workload);

/// What all families must show: keys and values of these are seen by every row.
std::vector<Blemish> seen_by_all(const Workload& workload);
/// What a family must besides that is strict (is_strict_with_nan): keys and values of these are hidden by the
/// mask from some rows and seen by others. Where the mask has both bounds, those at odd places are for its left edge.
std::vector<Blemish> hidden_from_some(const Workload& workload);

/// @param key the key or value that is not finite; of no matter to others
void apply(Blemish blemish, const Workload& workload, InputValues& values, std::int64_t batch, std::int64_t key_head,
           std::int64_t key, Random& random);

}  // namespace heed::verify
