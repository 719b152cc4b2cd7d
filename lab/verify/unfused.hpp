/// The same attention done the plain way in the workload's own dtype: the yardstick of the gate's tolerance.
#pragma once

#include <span>
#include <vector>

#include "heed/heed.hpp"

namespace heed {

/// S = scale * Q K^T and softmax in fp32, P rounded to workload.dtype, O = round(P V / row sums): the roundings that no
/// fused kernel avoids. Scores are not rounded to the dtype as PyTorch's math backend does: at scores of 1,100 bf16
/// would be off by 4 in the exponent, and what follows says nothing of what a kernel may do.
struct UnfusedRows {
  std::vector<float> out;  ///< (rows, dim_v), already rounded to workload.dtype
  std::vector<float> lse;  ///< (rows)
};
UnfusedRows unfused_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                              int threads = 0);

}  // namespace heed
