/// A caller's heed_problem, read and checked: what cannot be is refused here, what no family serves yet by its name.
#pragma once

#include "device/device_facts.hpp"
#include "heed/heed.h"
#include "heed/heed.hpp"
#include "kernels/contract.hpp"

namespace heed::api {

/// Where the rows of a tensor lie, in elements.
struct TensorLayout : TensorStrides {
  long long step = 1;  ///< from one element of a row to the next
};

struct Problem {
  DeviceKind device = DeviceKind::cpu;
  int ordinal = 0;
  bool is_empty = false;  ///< no batch entry, head or query: nothing is computed and nothing written
  bool has_keys = true;   ///< else every row is zeros, and the workload counts one key that no row sees
  bool wants_lse = false;
  Workload workload;
  TensorLayout q;
  TensorLayout k;
  TensorLayout v;
  TensorLayout o;
};

/// @throws Error(usage) for a struct of another size or version and for strides that cannot be, Error(invalid_workload)
/// for sizes that cannot be, Error(unsupported) for what no family serves
Problem read_problem(const heed_problem* problem);

/// The problem of a workload, as a caller would describe it: dense tensors (batch, head, length, dim).
inline heed_problem problem_of(const Workload& w, DeviceKind device) {
  static_assert(static_cast<int>(Dtype::fp16) == HEED_FP16 && static_cast<int>(Dtype::bf16) == HEED_BF16 &&
                static_cast<int>(Dtype::fp32) == HEED_FP32);
  static_assert(static_cast<int>(Mask::none) == HEED_MASK_NONE &&
                static_cast<int>(Mask::causal_top_left) == HEED_MASK_CAUSAL_TOP_LEFT &&
                static_cast<int>(Mask::causal_bottom_right) == HEED_MASK_CAUSAL_BOTTOM_RIGHT &&
                static_cast<int>(Mask::window_top_left) == HEED_MASK_WINDOW_TOP_LEFT &&
                static_cast<int>(Mask::window_bottom_right) == HEED_MASK_WINDOW_BOTTOM_RIGHT);
  heed_problem p;
  heed_problem_init(&p);
  p.device_type = device == DeviceKind::cpu ? HEED_CPU : HEED_CUDA;
  p.batch = w.batch;
  p.heads = w.heads;
  p.heads_kv = w.heads_kv;
  p.len_q = w.len_q;
  p.len_k = w.len_k;
  p.dim = w.dim;
  p.dim_v = w.dim_v;
  p.dtype_q = p.dtype_kv = p.dtype_o = static_cast<int>(w.dtype);
  p.mask = static_cast<int>(w.mask);
  p.window_left = w.window.left;
  p.window_right = w.window.right;
  p.scale = w.scale.value_or(0);
  return p;
}

/// The byte after the last element of a tensor, from its first. Never overflows for a problem that read_problem took.
std::uint64_t extent_bytes(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t dim,
                           const TensorLayout& layout, int element_bytes);

}  // namespace heed::api
