#include "forward.hpp"

#include <chrono>

#include "current_device.hpp"
#include "plans.hpp"
#include "workspaces.hpp"

namespace heed::torch {
namespace {

constexpr std::uintptr_t kGpuAlignment = 16;  // heed.h: where a GPU's tensors begin

// A GPU's tensor that begins between two chunks of 16 bytes (a slice of odd offset), and one element that is repeated
// in every dimension: libheed reads strides that are all zero as dense ones. Both are rare.
bool must_be_copied(const Tensor& tensor, const heed_strides& strides, bool on_gpu) {
  if (strides.batch == 0 && strides.head == 0 && strides.row == 0 && strides.dim == 0) return true;
  return on_gpu && reinterpret_cast<std::uintptr_t>(const_address(tensor)) % kGpuAlignment != 0;
}

Tensor empty(const Call& call, std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
             std::int32_t dtype) {
  TensorHandle tensor = nullptr;
  check(libtorch().empty_strided(rank, sizes, strides, dtype, call.device_type, call.problem.device, &tensor),
        "allocating the output");
  return Tensor(tensor);
}

void set_features(const Features& f, heed_tensors& tensors) {
  const auto set = [](const Tensor& tensor, auto& place) {
    if (tensor) place = static_cast<std::remove_reference_t<decltype(place)>>(const_address(tensor));
  };
  set(f.bias, tensors.bias);
  set(f.sinks, tensors.sinks);
  set(f.alibi_slopes, tensors.alibi_slopes);
  set(f.key_lengths, tensors.seqused_k);
  set(f.cu_seqlens_q, tensors.cu_seqlens_q);
  set(f.cu_seqlens_k, tensors.cu_seqlens_k);
  set(f.page_table, tensors.page_table);
  set(f.block_counts, tensors.block_counts);
  set(f.block_indices, tensors.block_indices);
  set(f.prefix_lengths, tensors.prefix_lengths);
  set(f.relative_bias, tensors.relative_bias);
  set(f.out_gate, tensors.out_gate);
  set(f.out_norm_weight, tensors.out_norm_weight);
  set(f.scales.q.factors, tensors.q_scale);
  set(f.scales.k.factors, tensors.k_scale);
  set(f.scales.v.factors, tensors.v_scale);
  tensors.dropout_seed = static_cast<std::uint64_t>(f.dropout_seed);
  tensors.dropout_offset = static_cast<std::uint64_t>(f.dropout_offset);
}

void run_plan(PlanEntry& entry, const Call& call, const Inputs& inputs, Outputs& outputs) {
  heed_tensors tensors;
  heed_tensors_init(&tensors);
  outputs.o = empty(call, call.rank - call.lifted, call.o_sizes.data() + call.lifted,
                    call.o_strides.data() + call.lifted, call.dtype);
  if ((call.problem.flags & HEED_WANTS_LSE) != 0) {
    static const std::int32_t fp32 = libtorch().dtype_float32();
    const auto& sizes = call.lse_sizes;
    const std::int64_t strides[] = {sizes[1] * sizes[2], sizes[2], 1};
    const std::int64_t ragged_strides[] = {sizes[1], 1};
    outputs.lse = empty(call, call.rank - 1, sizes.data(), call.rank == 4 ? strides : ragged_strides, fp32);
    tensors.lse = static_cast<float*>(address_of(outputs.lse));
  }
  tensors.q = const_address(inputs.q);
  tensors.k = const_address(inputs.k);
  tensors.v = const_address(inputs.v);
  tensors.o = address_of(outputs.o);
  set_features(inputs.features, tensors);
  void* const stream = current_stream(call.problem);
  const Workspace workspace(entry, call, stream);
  const bool is_timed = call.problem.device_type == HEED_CPU;
  const auto begin = is_timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  if (heed_plan_run(entry.plan(), &tensors, workspace.address(), stream) != HEED_OK)
    throw std::runtime_error(heed_last_error());
  if (is_timed)
    entry.nanoseconds.fetch_add(
        static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count()),
        std::memory_order_relaxed);
  entry.calls.fetch_add(1, std::memory_order_relaxed);
}

// heed::unfused, which has the arguments of heed::forward but the last and returns O and the log-sum-exp.
Outputs run_unfused(const Inputs& inputs, const Masking& masking) {
  StableValue stack[] = {stable(inputs.q.shared()),     stable(inputs.k.shared()),   stable(inputs.v.shared()),
                         stable(masking.mask),          stable(masking.window_left), stable(masking.window_right),
                         stable_optional(masking.scale)};
  check(libtorch().call("heed::unfused", "", stack, kAbiVersion), "heed::unfused");
  return {tensor_of(stack[0]), tensor_of(stack[1])};
}

// The same with features: heed::unfused_features.
Outputs run_unfused_features(const Inputs& inputs, const Masking& masking) {
  const Features& f = inputs.features;
  StableValue stack[] = {stable(inputs.q.shared()),
                         stable(inputs.k.shared()),
                         stable(inputs.v.shared()),
                         stable(masking.mask),
                         stable(masking.window_left),
                         stable(masking.window_right),
                         stable_optional(masking.scale),
                         stable(f.softcap),
                         stable_optional(f.bias.shared()),
                         stable_optional(f.sinks.shared()),
                         stable_optional(f.alibi_slopes.shared()),
                         stable_optional(f.key_lengths.shared()),
                         stable_optional(f.cu_seqlens_q.shared()),
                         stable_optional(f.cu_seqlens_k.shared()),
                         stable_optional(f.page_table.shared()),
                         stable_optional(f.block_counts.shared()),
                         stable_optional(f.block_indices.shared()),
                         stable_optional(f.prefix_lengths.shared()),
                         stable(f.max_len_q),
                         stable(f.max_len_k),
                         stable(f.block_rows),
                         stable(f.block_keys),
                         stable(f.dropout),
                         stable(f.dropout_seed),
                         stable(f.dropout_offset),
                         stable_optional(f.relative_bias.shared()),
                         stable(f.relative_max_distance),
                         stable(f.relative_bidirectional),
                         stable_optional(f.out_gate.shared()),
                         stable_optional(f.out_norm_weight.shared()),
                         stable(f.out_norm_eps)};
  check(libtorch().call("heed::unfused_features", "", stack, kAbiVersion), "heed::unfused_features");
  return {tensor_of(stack[0]), tensor_of(stack[1])};
}

Masking masking_of(const StableValue* arguments) {
  return {number_of<std::int64_t>(arguments[0]), number_of<std::int64_t>(arguments[1]),
          number_of<std::int64_t>(arguments[2]), optional_number_of(arguments[3])};
}

Outputs forward(StableValue* stack, bool wants_lse) {
  const Inputs inputs{tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])};
  const Masking masking = masking_of(stack + 3);
  const bool or_unfused = number_of<bool>(stack[7]);
  Call call;
  const Refusal refusal =
      read_call(inputs.q.get(), inputs.k.get(), inputs.v.get(), masking, wants_lse, {.shared_heads = true}, call);
  std::string why;
  if (refusal == Refusal::none) {
    PlanEntry& entry = entry_of(call);
    if (entry.plan() != nullptr) {
      Outputs outputs;
      run_call(entry, call, inputs, masking, outputs);
      return outputs;
    }
    why = entry.refused();
  } else {
    why = std::string("Heed does not run a call because of ") + phrase(refusal);
  }
  if (!or_unfused) throw std::runtime_error(why);
  return run_unfused(inputs, masking);
}

// A call like another, of other tensors.
Refusal read_again(const Inputs& inputs, const Masking& masking, const Call& before, Call& call) {
  call.precision = before.precision;
  call.may_build = before.may_build;
  constexpr std::uint32_t kOfDenseCalls = HEED_WANTS_LSE | HEED_HAS_BIAS;
  if ((before.problem.flags & ~kOfDenseCalls) != 0 || before.problem.softcap != 0 || before.problem.dropout != 0)
    return read_featured_call(inputs.q.get(), inputs.k.get(), inputs.v.get(), masking, inputs.features, call);
  const bool wants_lse = (before.problem.flags & HEED_WANTS_LSE) != 0;
  const Refusal refusal =
      read_call(inputs.q.get(), inputs.k.get(), inputs.v.get(), masking, wants_lse, before.allowed, call);
  return refusal == Refusal::none && inputs.features.bias ? read_mask(inputs.features.bias, call) : refusal;
}

}  // namespace

void run_call(PlanEntry& entry, const Call& call, const Inputs& inputs, const Masking& masking, Outputs& outputs) {
  const CurrentDevice device(call.problem);
  const bool on_gpu = call.problem.device_type == HEED_CUDA;
  const bool copies_q = must_be_copied(inputs.q, call.problem.q_strides, on_gpu);
  const bool copies_k = must_be_copied(inputs.k, call.problem.k_strides, on_gpu);
  const bool copies_v = must_be_copied(inputs.v, call.problem.v_strides, on_gpu);
  if (!copies_q && !copies_k && !copies_v) {
    run_plan(entry, call, inputs, outputs);
    return;
  }
  const Inputs copied{copies_q ? inputs.q.cloned() : inputs.q.shared(),
                      copies_k ? inputs.k.cloned() : inputs.k.shared(),
                      copies_v ? inputs.v.cloned() : inputs.v.shared(), inputs.features.shared()};
  Call again;
  if (read_again(copied, masking, call, again) != Refusal::none)
    throw std::runtime_error("copies of tensors have another form than the tensors");
  PlanEntry& of_copies = entry_of(again);
  if (of_copies.plan() == nullptr) throw std::runtime_error(of_copies.refused());
  run_plan(of_copies, again, copied, outputs);
}

namespace {

// How a featured call is served.
struct Service {
  std::int64_t precision = 0;
  bool or_plain = false;    ///< as it is where the precision's mode does not serve it
  bool or_unfused = false;  ///< by PyTorch's operators where no plan runs it
};

void forward_featured(StableValue* stack, const Service& service, Scales scales) {
  Inputs inputs{tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])};
  const Masking masking = masking_of(stack + 3);
  Features& f = inputs.features;
  f.softcap = number_of<double>(stack[7]);
  Tensor* const tensors[] = {&f.bias,         &f.sinks,      &f.alibi_slopes, &f.key_lengths,   &f.cu_seqlens_q,
                             &f.cu_seqlens_k, &f.page_table, &f.block_counts, &f.block_indices, &f.prefix_lengths};
  for (std::size_t i = 0; i < std::size(tensors); ++i) *tensors[i] = optional_tensor_of(stack[8 + i]);
  std::int64_t* const numbers[] = {&f.max_len_q, &f.max_len_k, &f.block_rows, &f.block_keys};
  for (std::size_t i = 0; i < std::size(numbers); ++i) *numbers[i] = number_of<std::int64_t>(stack[18 + i]);
  f.dropout = number_of<double>(stack[22]);
  f.dropout_seed = number_of<std::int64_t>(stack[23]);
  f.dropout_offset = number_of<std::int64_t>(stack[24]);
  f.relative_bias = optional_tensor_of(stack[25]);
  f.relative_max_distance = number_of<std::int64_t>(stack[26]);
  f.relative_bidirectional = number_of<bool>(stack[27]);
  f.out_gate = optional_tensor_of(stack[28]);
  f.out_norm_weight = optional_tensor_of(stack[29]);
  f.out_norm_eps = number_of<double>(stack[30]);
  f.scales = std::move(scales);
  Call call;
  call.precision = service.precision;
  call.may_build = (service.precision != 0 && !service.or_plain) || f.scales.are_given();
  const Refusal refusal =
      read_featured_call(inputs.q.get(), inputs.k.get(), inputs.v.get(), masking, inputs.features, call);
  PlanEntry* entry = refusal == Refusal::none ? &entry_of(call) : nullptr;
  if (entry != nullptr && entry->plan() == nullptr && service.precision != 0 && service.or_plain) {
    set_precision(call, 0);
    entry = &entry_of(call);
  }
  Outputs outputs;
  if (entry != nullptr && entry->plan() != nullptr)
    run_call(*entry, call, inputs, masking, outputs);
  else if (service.or_unfused)
    outputs = run_unfused_features(inputs, masking);
  else
    throw std::runtime_error(entry != nullptr ? entry->refused()
                                              : std::string("Heed does not run a call because of ") + phrase(refusal));
  stack[0] = stable(std::move(outputs.o));
  stack[1] = stable(std::move(outputs.lse));
}

}  // namespace

void forward_features_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  forward_featured(stack, {.or_unfused = number_of<bool>(stack[31])}, {});
}

void forward_precision_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  const bool or_plain = number_of<bool>(stack[32]);
  forward_featured(stack, {number_of<std::int64_t>(stack[31]), or_plain, or_plain}, {});
}

void forward_scaled_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  Scales scales;
  Scales::One* const all[] = {&scales.q, &scales.k, &scales.v};
  for (std::size_t i = 0; i < std::size(all); ++i) {
    all[i]->factors = optional_tensor_of(stack[31 + i]);
    all[i]->rows = number_of<std::int64_t>(stack[34 + i]);
  }
  scales.out_dtype = number_of<std::int64_t>(stack[37]);
  forward_featured(stack, {}, std::move(scales));
}

void forward_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  stack[0] = stable(std::move(forward(stack, false).o));
}

void forward_lse_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  Outputs outputs = forward(stack, true);
  stack[0] = stable(std::move(outputs.o));
  stack[1] = stable(std::move(outputs.lse));
}

}  // namespace heed::torch
