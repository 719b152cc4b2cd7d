/// heed::forward, heed::forward_lse and heed::forward_features: attention by a plan, on tensors with memory.
#pragma once

#include "call.hpp"
#include "plans.hpp"

namespace heed::torch {

struct Outputs {
  Tensor o;
  Tensor lse;  ///< (batch, heads, len_q), or (heads, total_q), fp32; empty where it is not wanted
};

/// Tensors of one device and type; those that a GPU cannot read at their address are copied.
struct Inputs {
  Tensor q, k, v;
  Features features = {};
};

/// Runs a call that `read_call` has read, by its plan, on PyTorch's current stream.
void run_call(PlanEntry& entry, const Call& call, const Inputs& inputs, const Masking& masking, Outputs& outputs);

/// Kernels of the operators, to be registered for CPU and CUDA. Where libheed has no program and the argument
/// `or_unfused` is true, heed::unfused computes it, which Python implements with PyTorch's operators.
void forward_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
void forward_lse_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
void forward_features_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
/// heed::forward_precision: the same of inputs that a mode quantises, whose number is `precision`. What the mode does
/// not serve is refused, or served as it is where the argument `or_plain` is true.
void forward_precision_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
/// heed::forward_scaled: the same of tensors of 8 bits with scale factors. Never unfused.
void forward_scaled_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);

}  // namespace heed::torch
