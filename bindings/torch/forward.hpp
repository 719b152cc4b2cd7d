/// heed::forward and heed::forward_lse: attention by a plan, on tensors with memory.
#pragma once

#include "call.hpp"

namespace heed::torch {

struct Outputs {
  Tensor o;
  Tensor lse;  ///< (batch, heads, len_q) fp32; empty where it is not wanted
};

/// Tensors of one device and type; those that a GPU cannot read at their address are copied.
struct Inputs {
  Tensor q, k, v;
};

/// Runs a call, on PyTorch's current stream. @return whether libheed has a program for it; where it has none, `why` is
/// a sentence
bool run_forward(const Inputs& inputs, const Masking& masking, bool wants_lse, Outputs& outputs, std::string& why);

/// Kernels of the operators, to be registered for CPU and CUDA. Where libheed has no program and the argument
/// `or_unfused` is true, heed::unfused computes it, which Python implements with PyTorch's operators.
void forward_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
void forward_lse_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);

}  // namespace heed::torch
