/// What calls with features and without are read by.
#pragma once

#include <initializer_list>
#include <optional>

#include "call.hpp"

namespace heed::torch {

/// Of Q, K and V, which have one type and one device.
struct QkvShapes {
  Shape q, k, v;
  heed_dtype dtype = HEED_FP16;
};
/// `Refusal::none` where they have.
Refusal read_shapes(TensorHandle q, TensorHandle k, TensorHandle v, QkvShapes& shapes);
/// The same of tensors of one device, whose types may differ and have 8 bits: `dtype` is that of the query.
Refusal read_scaled_shapes(TensorHandle q, TensorHandle k, TensorHandle v, QkvShapes& shapes);
/// Of a tensor's elements, by PyTorch's number.
std::optional<heed_dtype> dtype_of(std::int32_t dtype);
/// The same of 8 bits too.
std::optional<heed_dtype> scaled_dtype_of(std::int32_t dtype);

/// Of a tensor of four dimensions.
heed_strides strides_of(const Shape& shape);
bool is_on_device_of(const Call& call, const Shape& shape);
/// Whether a tensor is dense, of these sizes and this type (PyTorch's number), on the call's device.
bool is_array(const Tensor& tensor, std::int32_t dtype, const Call& call, std::initializer_list<std::int64_t> sizes);
/// Adds a bias that broadcasts to the scores to the call's problem.
Refusal add_bias(const Tensor& bias, Call& call);
/// PyTorch's threads, of a problem for a CPU.
std::uint32_t threads_of(const heed_problem& problem);
/// Writes what tells the call's plan from another.
void write_key(Call& call, std::uint32_t threads);

}  // namespace heed::torch
