/// Scaled-dot-product attention with PyTorch's signature: served by Heed, or handed back to PyTorch.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "call.hpp"

namespace heed::torch {

/// Kernels of an operator with the schema of aten::scaled_dot_product_attention. That for the keys of devices runs a
/// plan at once; that for the autograd keys calls heed::forward, or heed::forward_lse where a gradient is wanted, so
/// that traces, modes and subclasses of tensors see those. What Heed does not serve goes to heed::hand_back, which
/// Python implements.
void route_on_device(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
void route_before_autograd(StableValue* stack, std::uint64_t arguments, std::uint64_t results);

/// Puts the router in the place of aten::scaled_dot_product_attention for CPUs, and for GPUs where `with_cuda`.
/// Counted: it ends with as many calls of remove_override.
void install_override(bool with_cuda);
void remove_override();

/// What was handed back: of a workload (or "" where the tensors have no form of one) and a reason, how often.
using HandedBack = std::map<std::pair<std::string, std::string>, std::uint64_t>;
HandedBack handed_back();
void reset_handed_back();

/// The sentence of an exception that Python's heed::hand_back raised on this thread: the C functions before
/// PyTorch 2.13 lose it.
void note_exception(const char* text);

}  // namespace heed::torch
