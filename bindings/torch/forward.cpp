#include "forward.hpp"

#include <chrono>

#include "plans.hpp"
#include "workspaces.hpp"

namespace heed::torch {
namespace {

constexpr std::uintptr_t kGpuAlignment = 16;  // heed.h: where a GPU's tensors begin

const void* const_address(const Tensor& tensor) {
  const void* address = nullptr;
  check(libtorch().tensor_const_data(tensor.get(), &address), "asking for an address");
  return address;
}

void* address_of(const Tensor& tensor) {
  void* address = nullptr;
  check(libtorch().tensor_data(tensor.get(), &address), "asking for an address");
  return address;
}

// A GPU's tensor that begins between two chunks of 16 bytes (a slice of odd offset), and one element that is repeated
// in every dimension: libheed reads strides that are all zero as dense ones. Both are rare.
bool must_be_copied(const Tensor& tensor, const heed_strides& strides, bool on_gpu) {
  if (strides.batch == 0 && strides.head == 0 && strides.row == 0 && strides.dim == 0) return true;
  return on_gpu && reinterpret_cast<std::uintptr_t>(const_address(tensor)) % kGpuAlignment != 0;
}

// Makes a GPU current while it lives, if it is not.
class CurrentDevice {
 public:
  explicit CurrentDevice(const heed_problem& problem) {
    const Libtorch& t = libtorch();
    if (problem.device_type != HEED_CUDA || t.new_device_guard == nullptr) return;
    std::int32_t current = -1;
    if (t.current_device != nullptr && t.current_device(&current) == 0 && current == problem.device) return;
    check(t.new_device_guard(problem.device, &guard_), "choosing a GPU");
  }
  ~CurrentDevice() {
    if (guard_ != nullptr) libtorch().delete_device_guard(guard_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

void* current_stream(const heed_problem& problem) {
  if (problem.device_type != HEED_CUDA) return nullptr;
  void* stream = nullptr;
  if (libtorch().current_cuda_stream == nullptr) throw std::runtime_error("this PyTorch was built without CUDA");
  check(libtorch().current_cuda_stream(problem.device, &stream), "asking for the current stream");
  return stream;
}

Tensor empty(const Call& call, std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
             std::int32_t dtype) {
  TensorHandle tensor = nullptr;
  check(libtorch().empty_strided(rank, sizes, strides, dtype, call.device_type, call.problem.device, &tensor),
        "allocating the output");
  return Tensor(tensor);
}

void run_plan(PlanEntry& entry, const Call& call, const Inputs& inputs, Outputs& outputs) {
  heed_tensors tensors;
  heed_tensors_init(&tensors);
  outputs.o = empty(call, 4, call.o_sizes.data(), call.o_strides.data(), call.dtype);
  if ((call.problem.flags & HEED_WANTS_LSE) != 0) {
    static const std::int32_t fp32 = libtorch().dtype_float32();
    const std::int64_t strides[] = {call.o_sizes[1] * call.o_sizes[2], call.o_sizes[2], 1};
    outputs.lse = empty(call, 3, call.o_sizes.data(), strides, fp32);
    tensors.lse = static_cast<float*>(address_of(outputs.lse));
  }
  tensors.q = const_address(inputs.q);
  tensors.k = const_address(inputs.k);
  tensors.v = const_address(inputs.v);
  tensors.o = address_of(outputs.o);
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

Outputs forward(StableValue* stack, bool wants_lse) {
  const Inputs inputs{tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])};
  const Masking masking{number_of<std::int64_t>(stack[3]), number_of<std::int64_t>(stack[4]),
                        number_of<std::int64_t>(stack[5]), optional_number_of(stack[6])};
  const bool or_unfused = number_of<bool>(stack[7]);
  Call call;
  const Refusal refusal = read_call(inputs.q.get(), inputs.k.get(), inputs.v.get(), masking, wants_lse, true, call);
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
                      copies_v ? inputs.v.cloned() : inputs.v.shared()};
  Call again;
  const bool wants_lse = (call.problem.flags & HEED_WANTS_LSE) != 0;
  if (read_call(copied.q.get(), copied.k.get(), copied.v.get(), masking, wants_lse, true, again) != Refusal::none)
    throw std::runtime_error("copies of tensors have another form than the tensors");
  PlanEntry& of_copies = entry_of(again);
  if (of_copies.plan() == nullptr) throw std::runtime_error(of_copies.refused());
  run_plan(of_copies, again, copied, outputs);
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
