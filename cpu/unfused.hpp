/// The same attention done the plain way in the workload's own dtype: the yardstick of the gate's tolerance.
#pragma once

#include <span>
#include <vector>

#include "heed/heed.hpp"

namespace heed {

/// scores = round(scale * Q K^T), P = round(softmax(scores)), O = round(P V), each matrix rounded to workload.dtype as
/// three separate kernels would store it, sums in fp32. This is what PyTorch's math backend computes
/// (torch.nn.functional.scaled_dot_product_attention), up to where the scale is applied.
/// @return (rows, dim_v), values already rounded to workload.dtype
std::vector<float> unfused_attention(const Workload& workload, const HostTensors& tensors,
                                     std::span<const RowIndex> rows, int threads = 0);

}  // namespace heed
