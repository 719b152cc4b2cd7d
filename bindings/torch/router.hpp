/// Scaled-dot-product attention with PyTorch's signature: served by Heed, or handed back to PyTorch.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "call.hpp"

namespace heed::torch {

/// Kernel of an operator with the schema of aten::scaled_dot_product_attention, for the keys of devices: below
/// autograd. What Heed does not serve goes to PyTorch's own function, whose exceptions pass as they are.
void route_on_device(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
/// Kernel for the autograd keys. Where no gradient is wanted and nothing but plain tensors is there, it runs what is
/// for devices; else it calls Python's kernel of aten::scaled_dot_product_attention for `set_python_keys`, natively, so
/// that exceptions pass. Of use where has_native_symbols.
void route_before_autograd(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
/// A set of one dispatch key that no tensor has and that Python has put its kernel at (c10::DispatchKeySet::raw_repr).
void set_python_keys(std::uint64_t keys);
/// Kernel of heed::refusal, which has these arguments, whether a log-sum-exp is wanted, and whether the call is another
/// form of the user's: 0 where Heed serves the call, else a Refusal, which is counted unless may_have_other_form.
/// Python asks it above autograd.
void refusal_kernel(StableValue* stack, std::uint64_t arguments, std::uint64_t results);

/// Puts the router in the place of aten::scaled_dot_product_attention for CPUs, and for GPUs where `with_cuda`.
/// Counted: it ends with as many calls of remove_override.
void install_override(bool with_cuda);
void remove_override();

/// What was handed back, and what Python served without a plan: whether that, of which workload (or "" where the
/// tensors have no form of one), a reason, and how often.
using CallsWithoutPlan = std::map<std::tuple<bool, std::string, std::string>, std::uint64_t>;
CallsWithoutPlan calls_without_plan();
/// Counts a call that Python handed back or served by itself.
void count_without_plan(bool is_served, const char* workload, const char* reason);
/// Whether Heed is PyTorch's implementation of FlashAttention (torch.nn.attention.activate_flash_attention_impl): a
/// selection of backends that has it is served then.
void set_flash(bool is_flash);
/// Hands back through Python, which raises: set while Python is in strict mode.
void set_strict(bool strict);
/// Modes that quantise the inputs of served calls, as Call::precision has them. A call whose log-sum-exp is wanted, for
/// a gradient, and one that its mode does not serve, are served as they are.
void set_precision_of_process(int precision);
void set_precision_of_thread(int precision);  ///< in its place; -1: none of its own
void reset_calls_without_plan();

/// The sentence of an exception that Python's heed::hand_back raised on this thread: the C functions before
/// PyTorch 2.13 lose it.
void note_exception(const char* text);

}  // namespace heed::torch
