/// A plan of the C interface with tensors whose right output is known.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/device_memory.hpp"
#include "heed/heed.h"
#include "verify/compare.hpp"
#include "verify/scene.hpp"

namespace heed::conformance {

/// The problem that a caller would describe to run the tensors of a scene, log-sum-exp included.
heed_problem problem_of(const verify::Scene& scene, DeviceKind device);
/// These tensors, where the scene's image lies at `base`.
heed_tensors tensors_of(const verify::Scene& scene, std::byte* base);

/// What a plan runs.
struct Program {
  std::string variant;     ///< its full text; empty: what libheed chooses
  std::string_view image;  ///< its binary; empty: looked for in `programs`
  std::string programs;    ///< a file of programs; empty: libheed's own
  int threads = 0;         ///< of a CPU plan; 0: libheed's choice
};

/// heed_plan with its end. @throws Error(internal) with libheed's sentence where it refuses
class PlanHandle {
 public:
  PlanHandle(const heed_problem& problem, const Program& program);
  ~PlanHandle() { heed_plan_destroy(plan_); }
  PlanHandle(const PlanHandle&) = delete;
  PlanHandle& operator=(const PlanHandle&) = delete;
  [[nodiscard]] const heed_plan* get() const { return plan_; }
  [[nodiscard]] const heed_plan_info& info() const { return info_; }

 private:
  heed_plan* plan_ = nullptr;
  heed_plan_info info_{};
};

/// A workload with inputs drawn from N(0, 1) and what else its features need, lengths of entries from nothing to all
/// there are, rows of NaN behind each head's own, and a plan for them.
class CheckedPlan {
 public:
  CheckedPlan(const Workload& workload, DeviceKind device, const Program& program, std::uint64_t seed);

  [[nodiscard]] DeviceKind device() const { return device_; }
  [[nodiscard]] const Workload& workload() const { return scene_.workload(); }
  [[nodiscard]] const verify::Scene& scene() const { return scene_; }
  [[nodiscard]] const PlanHandle& plan() const { return plan_; }
  /// Of an image as a run left it, against the oracle: values, log-sum-exp, and that nothing else was written.
  [[nodiscard]] verify::Comparison check(const std::vector<std::byte>& after);

 private:
  DeviceKind device_;
  verify::Scene scene_;
  PlanHandle plan_;
  std::optional<verify::Reference> reference_;  // made at the first check
};

/// The tensors of a CheckedPlan on its device, with a workspace and a stream of their own. The plan must outlive it.
class CheckedRun {
 public:
  explicit CheckedRun(const CheckedPlan& plan);

  /// Tensors as before any run: poison in O and the log-sum-exp.
  void reset();
  /// Queues one run. @throws Error(internal) with libheed's sentence
  void run();
  void wait() const { stream_.wait(); }
  [[nodiscard]] void* stream() const { return stream_.get(); }
  /// Waits, and what now lies where the image was put.
  const std::vector<std::byte>& result();

 private:
  const CheckedPlan& plan_;
  Stream stream_;
  Memory image_;
  Memory workspace_;
  void* workspace_address_;
  heed_tensors tensors_;
  std::vector<std::byte> result_;
};

}  // namespace heed::conformance
