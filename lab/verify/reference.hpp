/// The oracle of heed.hpp, and with it what fp32 can tell of each row.
#pragma once

#include <span>
#include <vector>

#include "heed/heed.hpp"

namespace heed {

/// How far a computation with fp32 scores can follow the exact one in a row, with p the row's probabilities.
struct RowCondition {
  double score_size = 0;     ///< scale |q| sqrt(sum_j p_j |k_j|^2): what the products of its scores add up to at most
  double value_size = 0;     ///< sqrt(sum_j p_j^2 |v_j|^2): the norm of the output were the values independent
  double value_spread = 0;   ///< sqrt(sum_j p_j |v_j - o|^2)
  double largest_value = 0;  ///< largest |v_j| it sees
  double lead = 0;           ///< its largest score less the next, where rounding may exchange them; else not computed
  /// Where rows of O are normed or gated: what their errors grow by (Entry::finish), which the sizes above are of
  /// values times; and that times the row's norm before.
  double growth = 1;
  double grown_size = 0;
  bool may_leave_fp32 = false;  ///< products of a score it sees, scaled or not, may add up beyond fp32
};

/// How far a score may be off in fp32 whose products add up to `size`: sqrt(dim) unit roundoffs for the sum, the
/// probabilistic bound of Higham and Mary (SIAM J. Sci. Comput. 41(5), 2019) where the deterministic one has dim, and 4
/// for scale, base of the exponential and subtraction of the maximum.
double fp32_score_error(double size, std::int64_t dim);

/// reference_attention. A score beyond the range of fp32 counts as infinite. Where a row sees NaN, or a score of
/// +infinity, or none but of -infinity, its output and log-sum-exp are NaN; a value that is NaN or infinite shows in
/// its column. @param condition gets one of every row
ReferenceRows reference_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                                  std::vector<RowCondition>& condition, int threads = 0);

}  // namespace heed
