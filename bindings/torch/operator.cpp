// The functions that Python calls through ctypes: no exception leaves them.
#include <cstring>
#include <exception>
#include <vector>

#include "append.hpp"
#include "forward.hpp"
#include "plans.hpp"
#include "router.hpp"
#include "workspaces.hpp"

#define HEED_TORCH_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace heed::torch;

thread_local std::string last_error;

template <typename Call>
int guarded(const Call& call) noexcept {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    try {
      last_error = error.what();
    } catch (...) {
      last_error.clear();
    }
    return 1;
  }
}

void implement(const char* key, const std::vector<std::pair<const char*, BoxedKernel>>& kernels) {
  LibraryHandle library = nullptr;  // registered until the process ends
  check(libtorch().library_of_implementations("heed", key, __FILE__, __LINE__, &library), "registering the operator");
  for (const auto& [name, kernel] : kernels)
    check(libtorch().library_implement(library, name, kernel, kAbiVersion), name);
}

}  // namespace

/// What was wrong with the calling thread's last call that returned 1.
HEED_TORCH_API const char* heed_torch_last_error() {
  return last_error.c_str();
}

/// Finds PyTorch's functions in its libtorch.so and registers the kernels of the operators that Python has defined in
/// the namespace heed. @return 0, or 1 with a sentence in heed_torch_last_error
HEED_TORCH_API int heed_torch_register(const char* libtorch_path, std::uint64_t python_keys) {
  return guarded([&] {
    attach_libtorch(libtorch_path);
    for (const char* key : {"CPU", "CUDA"})
      implement(key, {{"forward", forward_kernel},
                      {"forward_lse", forward_lse_kernel},
                      {"forward_features", forward_features_kernel},
                      {"forward_precision", forward_precision_kernel},
                      {"forward_scaled", forward_scaled_kernel},
                      {"append_kv", append_kernel},
                      {"refusal", refusal_kernel},
                      {"scaled_dot_product_attention", route_on_device}});
    set_python_keys(python_keys);
    if (has_native_symbols())
      for (const char* key : {"AutogradCPU", "AutogradCUDA"})
        implement(key, {{"scaled_dot_product_attention", route_before_autograd}});
  });
}

/// Whether the library's kernels stand at the autograd keys and may be installed; else Python registers its own.
HEED_TORCH_API int heed_torch_has_native_symbols() {
  return has_native_symbols() ? 1 : 0;
}
HEED_TORCH_API int heed_torch_install(int with_cuda) {
  return guarded([&] { install_override(with_cuda != 0); });
}
HEED_TORCH_API int heed_torch_remove() {
  return guarded([] { remove_override(); });
}
HEED_TORCH_API void heed_torch_set_strict(int strict) {
  set_strict(strict != 0);
}
HEED_TORCH_API void heed_torch_set_flash(int is_flash) {
  set_flash(is_flash != 0);
}
/// The mode of every thread's calls of scaled_dot_product_attention, as Call::precision has it.
HEED_TORCH_API void heed_torch_set_precision(int precision) {
  set_precision_of_process(precision);
}
/// That of the calling thread's calls in its place; -1: none of its own.
HEED_TORCH_API void heed_torch_set_thread_precision(int precision) {
  set_precision_of_thread(precision);
}
HEED_TORCH_API void heed_torch_count(int is_served, const char* workload, const char* reason) {
  (void)guarded([&] { count_without_plan(is_served != 0, workload, reason); });
}
HEED_TORCH_API void heed_torch_note_exception(const char* text) {
  (void)guarded([&] { note_exception(text); });
}
HEED_TORCH_API const char* heed_torch_refusal(int refusal) {
  return refusal >= 0 && refusal < static_cast<int>(Refusal::count) ? phrase(static_cast<Refusal>(refusal)) : "";
}
HEED_TORCH_API int heed_torch_may_have_other_form(int refusal) {
  return may_have_other_form(static_cast<Refusal>(refusal)) ? 1 : 0;
}
HEED_TORCH_API int heed_torch_forget() {
  return guarded([] {
    forget_plans();
    forget_appends();
    free_workspaces();
  });
}
HEED_TORCH_API int heed_torch_reset_counts() {
  return guarded([] {
    reset_plan_counts();
    reset_calls_without_plan();
  });
}

/// Calls `visit` for each problem that was asked for: its text, the variant that runs it and where its program is from
/// ("" where it is refused), the reason for either, the mode that quantised its inputs or "", calls, and nanoseconds of
/// a CPU; then for each that was handed back, where `served` is 0 and the variant is "", or that took no kernel, where
/// the variant is "none".
HEED_TORCH_API int heed_torch_report(void* context,
                                     void (*visit)(void* context, int served, const char* workload, const char* variant,
                                                   const char* origin, const char* reason, const char* precision,
                                                   std::uint64_t calls, std::uint64_t nanoseconds)) {
  return guarded([&] {
    for (const PlanCount& one : plan_counts())
      visit(context, 1, one.workload.c_str(), one.variant.c_str(), one.origin.c_str(), one.reason.c_str(),
            one.precision.c_str(), one.calls, one.nanoseconds);
    for (const auto& [key, calls] : calls_without_plan()) {
      const auto& [is_served, workload, reason] = key;
      visit(context, is_served ? 1 : 0, workload.c_str(), is_served ? "none" : "", "", reason.c_str(), "", calls, 0);
    }
  });
}
