/// libheed in C++: plans that destroy themselves, and exceptions where the C interface has codes.
///
///     heed_problem problem = heed::c::problem();
///     problem.device_type = HEED_CUDA;
///     problem.len_q = problem.len_k = 512;
///     const heed::c::Plan plan(problem);
///     plan.prepare(workspace, stream);         // once for a workspace
///     plan.run(tensors, workspace, stream);    // as often as wanted
///
/// Header alone, C++17; heed.h documents the structs and every call. The compiled code is that of the C interface, so
/// that a program and the library may be built by different compilers.
#pragma once

#include <heed/heed.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace heed::c {

/// What the library refused: what() is the sentence of heed_last_error().
class Error : public std::runtime_error {
 public:
  Error(heed_status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
  /// Why, as a code: HEED_UNSUPPORTED and the like.
  [[nodiscard]] heed_status status() const noexcept { return status_; }

 private:
  heed_status status_;
};

/// Does nothing for HEED_OK. @throws Error for every other status of the calling thread's last call
inline void check(heed_status status) {
  if (status != HEED_OK) throw Error(status, heed_last_error());
}

/// As heed_problem_init sets it: one head of one query and key of dim 64, fp16, no mask, on a CPU.
[[nodiscard]] inline heed_problem problem() {
  heed_problem fresh;
  heed_problem_init(&fresh);
  return fresh;
}

/// Tensors without addresses.
[[nodiscard]] inline heed_tensors tensors() {
  heed_tensors fresh;
  heed_tensors_init(&fresh);
  return fresh;
}

/// Options that leave every choice to the library.
[[nodiscard]] inline heed_options options() {
  heed_options fresh;
  heed_options_init(&fresh);
  return fresh;
}

/// What a plan of `problem` would run and why, or what is not supported and the nearest thing that is.
[[nodiscard]] inline std::string explain(const heed_problem& problem, const heed_options* options = nullptr) {
  std::string text(heed_explain(&problem, options, nullptr, 0), '\0');
  const std::size_t bytes = heed_explain(&problem, options, &text[0], text.size() + 1);
  if (bytes < text.size()) text.resize(bytes);
  return text;
}

/// A heed_plan and its end. Moved, not copied; a plan that was moved from is empty and refuses every call.
class Plan {
 public:
  /// An empty plan.
  Plan() noexcept = default;
  /// @throws Error if no program of the library runs the problem on its device
  explicit Plan(const heed_problem& problem) { check(heed_plan_create(&problem, nullptr, &plan_)); }
  /// @throws Error the same, and for options that cannot be
  Plan(const heed_problem& problem, const heed_options& options) {
    check(heed_plan_create(&problem, &options, &plan_));
  }
  Plan(Plan&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  Plan& operator=(Plan&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  /// Runs that are queued must have ended.
  ~Plan() { heed_plan_destroy(plan_); }

  /// What runs, why, and the workspace that it takes. Texts live as long as the plan.
  [[nodiscard]] heed_plan_info info() const {
    heed_plan_info known;
    heed_plan_info_init(&known);
    check(heed_plan_get_info(plan_, &known));
    return known;
  }

  /// Sets the zeroed part of a workspace: once before its first run, and after a run that failed.
  void prepare(void* workspace, void* stream = nullptr) const { check(heed_plan_prepare(plan_, workspace, stream)); }

  /// Queues one run on a CUstream; on a CPU it is done on return.
  void run(const heed_tensors& tensors, void* workspace = nullptr, void* stream = nullptr) const {
    check(heed_plan_run(plan_, &tensors, workspace, stream));
  }

  /// Queues a run for each of `count` tensors, in order. Returns the microseconds that a CPU took, 0 on a GPU.
  double run_many(const heed_tensors* tensors, std::size_t count, void* workspace = nullptr, void* stream = nullptr,
                  std::uint32_t flags = 0) const {
    double microseconds = 0;
    check(heed_plan_run_many(plan_, tensors, count, workspace, stream, flags, &microseconds));
    return microseconds;
  }

  /// For calls of the C interface; null if empty.
  [[nodiscard]] const heed_plan* get() const noexcept { return plan_; }
  [[nodiscard]] explicit operator bool() const noexcept { return plan_ != nullptr; }

 private:
  heed_plan* plan_ = nullptr;
};

}  // namespace heed::c
