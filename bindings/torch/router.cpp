#include "router.hpp"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "forward.hpp"
#include "plans.hpp"

namespace heed::torch {
namespace {

thread_local std::string noted_exception;
std::atomic<bool> is_strict{false};
std::atomic<int> precision_of_process{0};
thread_local int precision_of_thread = -1;

// The arguments of scaled_dot_product_attention.
struct Arguments {
  Inputs inputs;  ///< the mask tensor as a bias
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;

  explicit Arguments(const StableValue* stack)
      : inputs{tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])},
        dropout(number_of<double>(stack[4])),
        is_causal(number_of<bool>(stack[5])),
        scale(optional_number_of(stack[6])),
        enable_gqa(number_of<bool>(stack[7])) {
    inputs.features.bias = optional_tensor_of(stack[3]);
  }

  [[nodiscard]] const Tensor& mask() const { return inputs.features.bias; }
  [[nodiscard]] Masking masking() const {
    return {is_causal ? HEED_MASK_CAUSAL_TOP_LEFT : HEED_MASK_NONE, -1, -1, scale};
  }
};

// One bit for each backend that may be chosen.
unsigned selected_backends() {
  const Libtorch& t = libtorch();
  if (t.global_context == nullptr) return 0;
  const void* const context = t.global_context();
  unsigned bits = 0;
  for (const auto enabled : {t.enabled_flash, t.enabled_efficient, t.enabled_math, t.enabled_cudnn})
    bits = 2 * bits + (enabled != nullptr && enabled(context) ? 1U : 0U);
  return bits;
}

// A selection that was there when the override was installed is the user's usual one; a later one asks for a backend by
// name, unless it is of all: an override that was installed under sdpa_kernel outlives it.
std::atomic<unsigned> usual_backends{~0U};

std::atomic<bool> is_flash{false};
constexpr unsigned kFlash = 8;  // of selected_backends
constexpr unsigned kEvery = 15;

bool selects_backends() {
  const unsigned usual = usual_backends.load(std::memory_order_relaxed);
  if (usual == ~0U) return false;
  const unsigned selected = selected_backends();
  if (selected == usual || selected == kEvery) return false;
  return !(is_flash.load(std::memory_order_relaxed) && (selected & kFlash) != 0);
}

struct CountKey {
  PlanKey key;
  Refusal refusal;
  std::string python_count;  // of calls that Python counted: workload, whether it served them, reason
  friend bool operator==(const CountKey&, const CountKey&) = default;
};
struct CountHash {
  std::size_t operator()(const CountKey& key) const {
    return key.key.hash() ^ static_cast<std::size_t>(key.refusal) ^ std::hash<std::string>()(key.python_count);
  }
};
struct Count {
  bool is_served = false;  ///< by Python, without a plan
  std::string workload;
  std::string reason;
  std::uint64_t calls = 0;
};
constexpr std::size_t kMostCounts = 4096;  // of keys, beside those of others
constexpr const char* kOthers = "others";

std::mutex& mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
std::unordered_map<CountKey, Count, CountHash>& counts() {
  static auto* const all = new std::unordered_map<CountKey, Count, CountHash>;
  return *all;
}

// Whether there is no room for a key, so that its call is counted among the others of its reason.
bool is_other(const CountKey& key) {
  return counts().size() >= kMostCounts && !counts().contains(key);
}

void count(const Call& call, Refusal refusal, const std::string& detail) {
  // Call and its key are filled where the tensors have the form of attention.
  const bool has_form = call.problem.struct_size != 0;
  const std::lock_guard lock(mutex());
  CountKey key{call.key, refusal, {}};
  const bool among_others = is_other(key);
  if (among_others) key = {PlanKey{}, refusal, kOthers};
  Count& one = counts()[key];
  if (one.calls++ > 0) return;
  one.workload = among_others ? kOthers : has_form ? text_of(call.problem) : "";
  one.reason = among_others || detail.empty() ? phrase(refusal) : detail;
}

// Why the call is handed back, or `none` and its plan; `detail` is libheed's sentence, where it has one. A call in
// another form may have a mask tensor beside is_causal, and dropout, whose numbers Python draws.
Refusal refusal_of(const Arguments& a, bool wants_lse, bool is_other_form, Call& call, std::string& detail,
                   PlanEntry*& entry) {
  if (!wants_lse)
    call.precision =
        precision_of_thread >= 0 ? precision_of_thread : precision_of_process.load(std::memory_order_relaxed);
  const Refusal form = read_call(a.inputs.q.get(), a.inputs.k.get(), a.inputs.v.get(), a.masking(), wants_lse,
                                 {.shared_heads = a.enable_gqa, .broadcast = true}, call);
  if (!(a.dropout >= 0 && a.dropout <= 1)) return Refusal::dropout;
  if (selects_backends()) return Refusal::backend_selection;
  // Some of PyTorch's kernels raise for masks of fewer than two dimensions, and others compute.
  if (a.mask())
    if (const std::optional<Shape> mask = shape_of(a.mask().get()); mask && mask->rank < 2) return Refusal::mask_sizes;
  if (form != Refusal::none) return form;
  if (a.mask()) {
    if (a.is_causal && !is_other_form) return Refusal::mask_and_causal;
    if (const Refusal refusal = read_mask(a.mask(), call); refusal != Refusal::none) return refusal;
  }
  if (a.dropout != 0 && !is_other_form) return Refusal::dropout;  // which the other form has
  if (a.dropout != 0) set_dropout(call, a.dropout);
  entry = &entry_of(call);
  if (entry->plan() == nullptr && call.precision != 0) {
    set_precision(call, 0);
    entry = &entry_of(call);
  }
  if (entry->plan() != nullptr) return Refusal::none;
  detail = entry->refused();
  return Refusal::unsupported;
}

const NativeTensor& native(const Tensor& tensor) {
  return *reinterpret_cast<const NativeTensor*>(tensor.get());
}

NativeOptionalTensor native_mask(const Arguments& a) {
  return a.mask() ? NativeOptionalTensor{native(a.mask()).impl, true} : NativeOptionalTensor{};
}

// A handle is an at::Tensor on the heap.
Tensor owned(const NativeTensor& returned) {
  return Tensor(reinterpret_cast<TensorHandle>(new void*(returned.impl)));
}

// PyTorch's own function.
Tensor hand_back_natively(const Arguments& a) {
  return owned(libtorch().sdpa(native(a.inputs.q), native(a.inputs.k), native(a.inputs.v), native_mask(a), a.dropout,
                               a.is_causal, a.scale, a.enable_gqa));
}

// Through Python: O of a call that has another form, which is counted; empty where it has none, or where PyTorch
// refuses it, whose exception keeps its type where its own function is called (IndexError of a mask of one dimension).
Tensor in_other_form(const Arguments& a) {
  noted_exception.clear();
  StableValue stack[] = {stable(a.inputs.q.shared()),        stable(a.inputs.k.shared()), stable(a.inputs.v.shared()),
                         stable_optional(a.mask().shared()), stable(a.dropout),           stable(a.is_causal),
                         stable_optional(a.scale),           stable(a.enable_gqa)};
  if (libtorch().call("heed::in_other_form", "", stack, kAbiVersion) != 0) {
    if (libtorch().sdpa != nullptr && !is_strict.load(std::memory_order_relaxed)) return {};
    if (!noted_exception.empty()) throw std::runtime_error(noted_exception);
    check(1, "heed::in_other_form");
  }
  return optional_tensor_of(stack[0]);
}

// Through Python, which has a way to it. heed::hand_back has the schema of the call; its last argument says why.
Tensor hand_back(const Arguments& a, Refusal refusal) {
  if (libtorch().sdpa != nullptr && !is_strict.load(std::memory_order_relaxed)) return hand_back_natively(a);
  noted_exception.clear();
  StableValue stack[] = {
      stable(a.inputs.q.shared()),        stable(a.inputs.k.shared()), stable(a.inputs.v.shared()),
      stable_optional(a.mask().shared()), stable(a.dropout),           stable(a.is_causal),
      stable_optional(a.scale),           stable(a.enable_gqa),        stable(static_cast<std::int64_t>(refusal))};
  if (libtorch().call("heed::hand_back", "", stack, kAbiVersion) != 0) {
    if (!noted_exception.empty()) throw std::runtime_error(noted_exception);
    check(1, "heed::hand_back");
  }
  return tensor_of(stack[0]);
}

std::uint64_t python_keys = 0;

bool requires_grad(const Tensor& tensor) {
  return tensor && libtorch().requires_grad(native(tensor).impl);
}

// Whether a tensor is memory and nothing else. Tensors of traces and of torch.func refuse to say where they lie;
// numbers with the other sign than memory has (the imaginary part of a conjugate) are copied at a key that a short way
// passes by.
bool is_bare(const Tensor& tensor) {
  const void* address = nullptr;
  return !libtorch().tensor_has_dispatch(native(tensor)) && !libtorch().is_neg(native(tensor)) &&
         libtorch().tensor_const_data(tensor.get(), &address) == 0 && address != nullptr;
}

// Whether there is nothing to do above the devices.
bool is_bare(const Arguments& a) {
  const Libtorch& t = libtorch();
  if (t.grad_mode_is_enabled() &&
      (requires_grad(a.inputs.q) || requires_grad(a.inputs.k) || requires_grad(a.inputs.v) || requires_grad(a.mask())))
    return false;
  return !t.dispatch_mode_enabled() && t.forward_ad_level(0).pointer == nullptr && is_bare(a.inputs.q) &&
         is_bare(a.inputs.k) && is_bare(a.inputs.v) && (!a.mask() || is_bare(a.mask()));
}

// Through Python's kernel, whose exceptions keep their types.
Tensor route_by_python(const Arguments& a) {
  return owned(libtorch().sdpa_redispatch(python_keys, native(a.inputs.q), native(a.inputs.k), native(a.inputs.v),
                                          native_mask(a), a.dropout, a.is_causal, a.scale, a.enable_gqa));
}

void route_devices(const Arguments& a, StableValue* stack) {
  Call call{};
  std::string detail;
  PlanEntry* entry = nullptr;
  const Refusal refusal = refusal_of(a, false, false, call, detail, entry);
  if (refusal == Refusal::none) {
    Outputs outputs;
    run_call(*entry, call, a.inputs, a.masking(), outputs);
    stack[0] = stable(std::move(outputs.o));
    return;
  }
  // In strict mode it decides anew, by heed::refusal, and raises heed.NotServed.
  if (is_strict.load(std::memory_order_relaxed) && libtorch().sdpa_redispatch != nullptr) {
    stack[0] = stable(route_by_python(a));
    return;
  }
  if (may_have_other_form(refusal)) {
    if (Tensor o = in_other_form(a)) {
      stack[0] = stable(std::move(o));
      return;
    }
  }
  count(call, refusal, detail);
  stack[0] = stable(hand_back(a, refusal));
}

std::mutex& override_mutex() {
  static auto* const one = new std::mutex;
  return *one;
}
std::vector<LibraryHandle> overrides;

}  // namespace

void route_on_device(StableValue* stack, std::uint64_t, std::uint64_t) {
  route_devices(Arguments(stack), stack);
}

void route_before_autograd(StableValue* stack, std::uint64_t, std::uint64_t) {
  const Arguments a(stack);
  if (is_bare(a))
    route_devices(a, stack);
  else
    stack[0] = stable(route_by_python(a));
}

void set_python_keys(std::uint64_t keys) {
  python_keys = keys;
}

void refusal_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  const bool wants_lse = number_of<bool>(stack[8]);
  const bool is_other_form = number_of<bool>(stack[9]);
  const Arguments a(stack);
  Call call{};
  std::string detail;
  PlanEntry* entry = nullptr;
  const Refusal refusal = refusal_of(a, wants_lse, is_other_form, call, detail, entry);
  if (refusal != Refusal::none && !may_have_other_form(refusal)) count(call, refusal, detail);
  stack[0] = stable(static_cast<std::int64_t>(refusal));
}

void install_override(bool with_cuda) {
  const std::lock_guard lock(override_mutex());
  if (!overrides.empty()) return;
  usual_backends = selected_backends();
  const Libtorch& t = libtorch();
  const auto implement = [&](const char* key, BoxedKernel kernel) {
    LibraryHandle library = nullptr;
    check(t.library_of_implementations("aten", key, __FILE__, __LINE__, &library), "overriding an operator");
    overrides.push_back(library);
    check(t.library_implement(library, "scaled_dot_product_attention", kernel, kAbiVersion), "overriding an operator");
  };
  for (const std::string device : {"CPU", "CUDA"}) {
    if (device == "CUDA" && !with_cuda) continue;
    implement(device.c_str(), route_on_device);
    if (has_native_symbols()) implement(("Autograd" + device).c_str(), route_before_autograd);
  }
}

void remove_override() {
  const std::lock_guard lock(override_mutex());
  for (const LibraryHandle library : overrides) libtorch().delete_library(library);
  overrides.clear();
  usual_backends = ~0U;
}

CallsWithoutPlan calls_without_plan() {
  const std::lock_guard lock(mutex());
  CallsWithoutPlan all;
  for (const auto& [key, one] : counts()) all[{one.is_served, one.workload, one.reason}] += one.calls;
  return all;
}

void count_without_plan(bool is_served, const char* workload, const char* reason) {
  const std::lock_guard lock(mutex());
  const auto key_of = [&](const char* of) {
    return CountKey{PlanKey{}, Refusal::none, std::string(of) + (is_served ? "\n+" : "\n-") + reason};
  };
  if (is_other(key_of(workload))) workload = kOthers;
  Count& one = counts()[key_of(workload)];
  one.is_served = is_served;
  one.workload = workload;
  one.reason = reason;
  ++one.calls;
}

void reset_calls_without_plan() {
  const std::lock_guard lock(mutex());
  counts().clear();
}

void set_flash(bool value) {
  is_flash = value;
}

void set_strict(bool strict) {
  is_strict = strict;
}

void set_precision_of_process(int precision) {
  precision_of_process = precision;
}

void set_precision_of_thread(int precision) {
  precision_of_thread = precision;
}

void note_exception(const char* text) {
  noted_exception = text;
}

}  // namespace heed::torch
